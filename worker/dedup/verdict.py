"""The result of the duplicate check for one delivery (6.1.1)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

__all__ = ["CheckOutcome", "DedupError", "DeliveryVerdict", "Resolution"]


class DedupError(Exception):
    """The caller broke the protocol of check, take and committed. The state would be wrong, so the owner stops."""


class CheckOutcome(Enum):
    """The result for a delivery as a whole."""

    JUDGED = 1
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

    __slots__ = ("_collect_from", "_ids", "_source", "all_fresh", "duplicates", "fresh", "outcome", "size", "unsure",
                 "waiting")  # fmt: skip

    def __init__(self, outcome: CheckOutcome, size: int) -> None:
        self.outcome = outcome
        self.size = size
        self.all_fresh = False
        """Every record is fresh: the common case, which needs no list."""
        self.fresh: Sequence[int] = ()
        """New records, now pending. The caller takes or abandons them."""
        self.duplicates: Sequence[int] = ()
        """Copies of committed records: ACK now."""
        self.waiting: Sequence[int] = ()
        """Copies of records that are not committed yet: answer REFUSED_FULL. The next copy is checked again. Nothing
        is stored for them: a record may wait for long, and its sender repeats it as often."""
        self.unsure: dict[int, tuple[str, ...]] = {}
        """The id segments that must be read before ``resolve`` can decide, by index."""
        self._ids: Sequence[Any] = ()
        self._source: Any = None
        self._collect_from = 0

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


class Resolution(NamedTuple):
    """The results for a verdict's unsure records."""

    fresh: list[int]
    """Now pending. The caller takes or abandons them."""
    duplicates: list[int]
    """Copies of committed records: ACK now."""
    again: list[int]
    """Their segment was collected meanwhile: answer REFUSED_FULL. The next copy is checked again."""
