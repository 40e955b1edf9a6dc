"""Reads what a journal stores of ids, at a takeover (6.1.1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from millwheel.model.deliveries import split_ids
from millwheel.worker.dedup.known_sequencers import SequencerRow
from millwheel.worker.dedup.results import FORMAT, RANGES_FORMAT, DedupError, IdDelta, PositionsWire

__all__ = ["decode_delta", "decode_positions", "decode_ranges", "decode_sequencer"]


def decode_delta(wire: Sequence[Any]) -> IdDelta:
    """Decode what ``IdDelta.to_wire`` returned.

    Raises:
        DedupError: The facts have another format.
    """
    if not wire:
        return IdDelta()
    if wire[0] not in (FORMAT, RANGES_FORMAT):
        raise DedupError(f"ids of format {wire[0]}; this version reads formats {FORMAT} and {RANGES_FORMAT}")
    _, positions, opaque, batches, admitted, marks, retired, sequencers, horizons, *more = wire
    return IdDelta(
        positions=[(sequence, decode_positions(rest)) for sequence, *rest in positions],
        opaque=[(group, collect, split_ids(blob)) for group, collect, blob in opaque],
        batches=[(query, batch, split_ids(blob)) for query, batch, blob in batches],
        admitted=[(sequence, injector) for sequence, injector in admitted],
        marks=[(sequence, mark, unacked) for sequence, mark, unacked in marks],
        retired=list(retired),
        sequencers=[decode_sequencer(row) for row in sequencers],
        horizons=[(group, watermark, horizon) for group, watermark, horizon in horizons],
        ranges=[(sequence, decode_ranges(numbers)) for sequence, numbers in (more[0] if more else ())],
    )


def decode_positions(wire: PositionsWire) -> Sequence[int]:
    """The positions that ``encode_positions`` was given, sorted."""
    first, rest = wire
    if isinstance(rest, int):
        return range(first, first + rest)
    return list(accumulate(rest, initial=first))


def decode_ranges(wire: Sequence[int]) -> list[range]:
    """The ranges that ``encode_ranges`` was given."""
    return [range(first, first + count) for first, count in zip(wire[::2], wire[1::2], strict=True)]


def decode_sequencer(wire: Sequence[Any]) -> SequencerRow:
    """A row of the sequencer map. MessagePack has turned its span into a list."""
    group, span, sequencer = wire
    return group, span if isinstance(span, str) else (span[0], span[1]), sequencer
