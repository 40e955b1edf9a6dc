"""The new facts about ids in one journal entry, in compact form (6.1.1)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from millwheel.model.deliveries import split_ids
from millwheel.worker.dedup.sequencers import SequencerRow
from millwheel.worker.dedup.verdict import DedupError

__all__ = ["FORMAT", "IdDelta", "decode_positions", "decode_sequencer", "encode_positions"]

FORMAT: Final = 1

PositionsWire = list[Any]
"""[first, count] for a run, [first, [gap, …]] with gaps: a few bytes each in MessagePack."""


def encode_positions(positions: Sequence[int]) -> PositionsWire:
    """Encode distinct positions, in any order, as a run or as gaps."""
    ordered = sorted(positions)
    first = ordered[0]
    if ordered[-1] - first == len(ordered) - 1:
        return [first, len(ordered)]
    return [first, list(map(operator.sub, ordered[1:], ordered))]


def decode_positions(wire: PositionsWire) -> Sequence[int]:
    """The positions that ``encode_positions`` was given, sorted."""
    first, rest = wire
    if isinstance(rest, int):
        return range(first, first + rest)
    return list(accumulate(rest, initial=first))


def decode_sequencer(wire: Sequence[Any]) -> SequencerRow:
    """A row of the sequencer map. MessagePack has turned its span into a list."""
    computation, span, sequencer = wire
    return computation, span if isinstance(span, str) else (span[0], span[1]), sequencer


@dataclass(slots=True)
class IdDelta:
    """The facts of one commit. The ids are those that the commit consumes. The other facts are new since the previous
    take.

    Only ``positions``, ``opaque`` and ``batches`` must not be lost. The other facts let a takeover forget what the
    previous owner had forgotten.
    """

    positions: list[tuple[str, Sequence[int]]] = field(default_factory=list)
    opaque: list[tuple[str, int, Sequence[bytes]]] = field(default_factory=list)
    """(computation, time from which they may be forgotten, ids)."""
    batches: list[tuple[str, int, Sequence[bytes]]] = field(default_factory=list)
    admitted: list[tuple[str, str]] = field(default_factory=list)
    """(sequence, the injector process that sends it or "" for a journal)."""
    marks: list[tuple[str, int, Sequence[int]]] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)
    sequencers: list[SequencerRow] = field(default_factory=list)
    horizons: list[tuple[str, int, int]] = field(default_factory=list)
    """(computation, its watermark, the collection horizon that follows from it)."""

    def to_wire(self) -> list[Any]:
        """Lists, strings, ints and bytes for the journal entry's MessagePack. Empty if there are no facts."""
        columns: list[list[Any]] = [
            [[sequence, *encode_positions(positions)] for sequence, positions in self.positions],
            [[computation, collect, b"".join(ids)] for computation, collect, ids in self.opaque],
            [[query, batch, b"".join(ids)] for query, batch, ids in self.batches],
            [list(row) for row in self.admitted],
            [list(mark) for mark in self.marks],
            list(self.retired),
            [list(row) for row in self.sequencers],
            [list(horizon) for horizon in self.horizons],
        ]
        return [FORMAT, *columns] if any(columns) else []

    @classmethod
    def from_wire(cls, wire: Sequence[Any]) -> IdDelta:
        """Decode what ``to_wire`` returned.

        Raises:
            DedupError: The facts have another format.
        """
        if not wire:
            return cls()
        if wire[0] != FORMAT:
            raise DedupError(f"ids of format {wire[0]}; this version reads format {FORMAT}")
        _, positions, opaque, batches, admitted, marks, retired, sequencers, horizons = wire
        return cls(
            positions=[(sequence, decode_positions(rest)) for sequence, *rest in positions],
            opaque=[(computation, collect, split_ids(blob)) for computation, collect, blob in opaque],
            batches=[(query, batch, split_ids(blob)) for query, batch, blob in batches],
            admitted=[(sequence, origin) for sequence, origin in admitted],
            marks=[(sequence, mark, unacked) for sequence, mark, unacked in marks],
            retired=list(retired),
            sequencers=[decode_sequencer(row) for row in sequencers],
            horizons=[(computation, watermark, horizon) for computation, watermark, horizon in horizons],
        )
