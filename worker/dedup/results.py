"""What a duplicate check returns: the verdict on a delivery, and the new facts about ids in an entry (6.1.1)."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from millwheel.worker.dedup.known_sequencers import SequencerRow

__all__ = [
    "FORMAT",
    "RANGES_FORMAT",
    "CheckOutcome",
    "DedupError",
    "DeliveryVerdict",
    "IdDelta",
    "PendingIds",
    "encode_positions",
    "encode_ranges",
]

Id = TypeVar("Id", int, bytes)

FORMAT: Final = 1
RANGES_FORMAT: Final = 2
"""The format of facts with ranges of positions. A cluster has them from format ``POSITION_RANGES`` on
(``millwheel/model/formats.py``). Facts without ranges are written in the first format."""

PositionsWire = list[Any]
"""[first, count] for a run, [first, [gap, …]] with gaps: a few bytes each in MessagePack."""


class DedupError(Exception):
    """The caller broke the protocol of check, take and committed. The state would be wrong, so the owner stops."""


class CheckOutcome(Enum):
    """The result for a delivery as a whole."""

    CHECKED = 1
    """Each record has its own result, in the verdict's lists."""
    UNKNOWN_SEQUENCE = 2
    """This receiver has no marks for the sequence. The caller reads (linearizably) whether the sequence is alive. If
    so, it calls ``admit`` and checks again. Otherwise it calls ``retire`` and answers REFUSED_SEQUENCER."""
    REFUSED_SEQUENCER = 3
    """The sender has a successor, or its sequence is retired: not ACKed, and the sender must not repeat it."""
    SEND_AGAIN = 4
    """An opaque copy so old that its ids may have been collected: not ACKed. A sender whose records are not ACKed
    sends them again with its present watermark. A stray copy is not repeated."""


class DeliveryVerdict:
    """The result of one ``check``. The caller uses it to take, resolve or abandon the fresh records.

    Indexes are those of the delivery's records. Each index is in exactly one of the lists. If ``all_fresh``, the lists
    are empty and every record is fresh.
    """

    __slots__ = ("all_fresh", "collect_from", "duplicates", "fresh", "ids", "outcome", "range", "size", "source",
                 "unsure", "waiting")  # fmt: skip

    def __init__(self, outcome: CheckOutcome, size: int, ids: Sequence[Any] = (), source: Any = None) -> None:
        """``ids``: the ids of the records. ``source``: what knows of them. Both only if the outcome is CHECKED."""
        self.outcome = outcome
        self.size = size
        self.ids = ids
        self.source = source
        self.all_fresh = False
        """Every record is fresh: the common case, which needs no list."""
        self.range: range | None = None
        """Set if every record is fresh and the delivery is complete: its positions are pending as this range."""
        self.fresh: Sequence[int] = ()
        """New records, now pending. The caller takes or abandons them."""
        self.duplicates: Sequence[int] = ()
        """Copies of committed records: ACK now."""
        self.waiting: Sequence[int] = ()
        """Copies of records that are not committed yet: answer REFUSED_FULL. The next copy is checked again. Nothing
        is stored for them: a record may wait for long, and its sender repeats it as often."""
        self.unsure: dict[int, tuple[str, ...]] = {}
        """The id segments that must be read before ``resolve`` can decide, by index."""
        self.collect_from = 0
        """The time from which opaque ids may be forgotten."""

    @property
    def fresh_indexes(self) -> Sequence[int]:
        """The indexes of the fresh records, also if ``all_fresh``."""
        return range(self.size) if self.all_fresh else self.fresh

    @property
    def segments(self) -> frozenset[str]:
        """Every segment that must be read."""
        return frozenset(name for names in self.unsure.values() for name in names)

    def __repr__(self) -> str:
        if self.all_fresh:
            return f"DeliveryVerdict({self.outcome.name}, all {self.size} fresh)"
        return (
            f"DeliveryVerdict({self.outcome.name}, fresh={list(self.fresh)}, duplicates={list(self.duplicates)}, "
            f"waiting={list(self.waiting)}, unsure={self.unsure})"
        )


class PendingIds(Generic[Id]):
    """The pending ids of one source of ids.

    Invariant: an id is here from the verdict "fresh" or "unsure" until it is committed, abandoned or resolved as a
    duplicate. So at most one copy of a record is fresh.
    """

    __slots__ = ("ids",)

    def __init__(self) -> None:
        self.ids: set[Id] = set()

    def __bool__(self) -> bool:
        return bool(self.ids)

    def settle(self, ids: Sequence[Id]) -> None:
        """Remove the ids from the pending ones.

        Raises:
            DedupError: An id was not pending.
        """
        pending = self.ids
        before = len(pending)
        pending.difference_update(ids)
        if before - len(pending) != len(ids):
            raise DedupError(
                f"{len(ids)} ids were settled, {before - len(pending)} of them pending: one was taken twice"
            )


def encode_positions(positions: Sequence[int]) -> PositionsWire:
    """Encode distinct positions, in any order, as a run or as gaps."""
    ordered = sorted(positions)
    first = ordered[0]
    if ordered[-1] - first == len(ordered) - 1:
        return [first, len(ordered)]
    return [first, list(map(operator.sub, ordered[1:], ordered))]


def encode_ranges(ranges: Iterable[range]) -> list[int]:
    """Encode ranges of positions: the first position and the number of each."""
    # len() of a range fails from 2^63 on.
    return [number for one in ranges for number in (one.start, one.stop - one.start)]


@dataclass(slots=True)
class IdDelta:
    """The facts of one commit. The ids are those that the commit consumes. The other facts are new since the previous
    take.

    Only ``positions``, ``ranges``, ``opaque`` and ``batches`` must not be lost. A floor in ``sequencers`` also drops
    what earlier deltas say of its group. The other facts let a takeover forget what the previous owner had forgotten.
    A range also needs ``admitted`` of its sequence, which is in the same delta or an earlier one.
    """

    positions: list[tuple[str, Sequence[int]]] = field(default_factory=list)
    opaque: list[tuple[str, int, Sequence[bytes]]] = field(default_factory=list)
    """(group, time from which they may be forgotten, ids)."""
    batches: list[tuple[str, int, Sequence[bytes]]] = field(default_factory=list)
    admitted: list[tuple[str, str]] = field(default_factory=list)
    """(sequence, the injector process that sends it or "" for a journal)."""
    marks: list[tuple[str, int, Sequence[int]]] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)
    sequencers: list[SequencerRow] = field(default_factory=list)
    horizons: list[tuple[str, int, int]] = field(default_factory=list)
    """(group, its watermark, the collection horizon that follows from it)."""
    ranges: list[tuple[str, Sequence[range]]] = field(default_factory=list)
    """(sequence, ranges of positions: each record there that was due to this receiver is committed)."""
    sources: list[Any] = field(default_factory=list, compare=False, repr=False)
    """The objects that the ids were taken from. In memory only."""

    def to_wire(self) -> list[Any]:
        """Lists, strings, ints and bytes for the journal entry's MessagePack. Empty if there are no facts."""
        columns: list[list[Any]] = [
            [[sequence, *encode_positions(positions)] for sequence, positions in self.positions],
            [[group, collect, b"".join(ids)] for group, collect, ids in self.opaque],
            [[query, batch, b"".join(ids)] for query, batch, ids in self.batches],
            [list(row) for row in self.admitted],
            [list(mark) for mark in self.marks],
            list(self.retired),
            [list(row) for row in self.sequencers],
            [list(horizon) for horizon in self.horizons],
        ]
        if self.ranges:
            return [RANGES_FORMAT, *columns, [[sequence, encode_ranges(ranges)] for sequence, ranges in self.ranges]]
        return [FORMAT, *columns] if any(columns) else []
