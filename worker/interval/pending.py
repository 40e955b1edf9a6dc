"""The pending work of an interval by timestamps. Its low watermark is the minimum of these (sections 4.5, 7.2)."""

from __future__ import annotations

from millwheel.model.sketch import TimestampSketch
from millwheel.model.time import MAX_TIMESTAMP, TimeDomain
from millwheel.rpc.watermarks import PendingWork
from millwheel.worker.interval.state import IntervalState

__all__ = ["pending_work"]


def pending_work(state: IntervalState) -> PendingWork:
    """A sketch of the timestamps of uncommitted records, productions without an ACK, timers and holds.

    Records that were delivered together count at the oldest of them, as do productions that are sent together. The cost
    is proportional to the numbers of deliveries, outbound batches and timer times. So the sketch is computed on
    request.
    """
    sketch = TimestampSketch()
    sketch.add(state.intake.pending.items())
    sketch.add((outbound.held, outbound.count()) for outbound in state.outbox)
    sketch.add(state.holds.items())
    sketch.add(state.timers.tables[TimeDomain.EVENT_TIME].times())
    sketch.add((window.end, window.count) for window in state.panes.windows.values() if window.count)
    # For a part of spilled timers only the first time is known.
    sketch.add((part.first, part.count) for part in state.timers.spilled.of_domain(TimeDomain.EVENT_TIME))
    return PendingWork(sketch, min(state.intake.newest, MAX_TIMESTAMP))
