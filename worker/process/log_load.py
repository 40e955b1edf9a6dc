"""What the log of a stream keeps, and how far its readers are, for the owner's load report."""

from __future__ import annotations

from heapq import nsmallest
from typing import Final

from millwheel.model.stream_names import is_dead_letter_stream
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.worker.log import LogCore
from millwheel.worker.log.letter_figures import unhandled_letters

__all__ = ["log_load"]

_MAX_CURSORS: Final = 100
_MICROSECONDS: Final = 1e6


def log_load(core: LogCore) -> wire.LogLoad:
    """Return what a log keeps now. Of many cursors, it has those that are furthest behind."""
    records, clock, durable = core.state.records, core.state.clock, core.state.cursors.durable
    load = wire.LogLoad(
        first_offset=records.start,
        end_offset=records.end,
        kept_bytes=records.kept,
        cursors=[
            wire.LogCursor(cursor=name, acked_offset=acked)
            for name, acked in nsmallest(_MAX_CURSORS, durable.items(), key=lambda one: (one[1], one[0]))
        ],
        cursor_count=len(durable),
    )
    if is_dead_letter_stream(core.state.config.stream):
        load.unhandled_letters = unhandled_letters(core.state)
    if records.end > records.start:
        oldest = records.closed[0] if records.closed else records.open
        load.oldest_seconds = max(clock.age - oldest.opened, 0) / _MICROSECONDS
    return load
