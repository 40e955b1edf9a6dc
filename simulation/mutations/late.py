"""Late records, and bounds (sections 4.5, 5.2; G13, G14)."""

from __future__ import annotations

from millwheel.worker.interval.hooks import runner
from millwheel.worker.interval.hooks.runner import Runner
from millwheel.worker.interval.receiver import IntervalReceiver
from simulation.mutations.base import mutation, replace, rewriting

__all__: list[str] = []


@mutation("G14", "a record behind the watermark is flagged as late")
def unflagged() -> None:
    """No record is flagged as late for hooks."""
    replace(runner, "Record", lambda made: lambda *columns: made(*columns[:5], False, *columns[6:]))


rewriting(
    "usual-though-late",
    "G14",
    "only a delivery without a late record takes the way of usual records",
    Runner,
    "or receipt.held < clocks.watermark",
    "or False",
)


@mutation(
    "G13",
    "records ahead of the watermark are refused while too many wait",
    seeds=0,
    test="tests/worker/interval/test_ids.py::test_a_delivery_that_is_refused_whole_is_not_acked_as_well",
    why="memory has no bound there",
)
def boundless_intake() -> None:
    """An interval admits every delivery, also if its queue is full."""
    replace(IntervalReceiver, "has_room", lambda _: lambda self: True)
