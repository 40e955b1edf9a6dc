"""What an interval has at work, by timestamps: what its low watermark is the minimum of (sections 4.5, 7.2)."""

from __future__ import annotations

from millwheel.core.sketch import TimestampSketch
from millwheel.core.time import MAX_TIMESTAMP
from millwheel.rpc.watermarks import PendingWork
from millwheel.worker.interval.state import IntervalState

__all__ = ["pending_work"]


def pending_work(state: IntervalState) -> PendingWork:
    """A sketch of the timestamps of received and uncommitted records, un-ACKed productions, timers and holds.

    Records that were delivered together count at the oldest of them, and so do productions that are sent together.
    Takes time in proportion to deliveries, shipments and times of timers: made when somebody asks.
    """
    sketch = TimestampSketch()
    sketch.add(state.intake.pending.items())
    sketch.add((shipment.held, shipment.count()) for shipment in state.outbox)
    sketch.add(state.hold_times.items())
    sketch.add(state.timers[False].times())
    # Of what is in the store the first of each part is known.
    sketch.add((part.first, part.count) for part in state.far.of_domain(False))
    return PendingWork(sketch, min(state.intake.newest, MAX_TIMESTAMP))
