"""Timers: in order, never early, each once (sections 4.1, 4.6)."""

from __future__ import annotations

from typing import Any

from millwheel.model.time import MAX_TIMESTAMP, TimeDomain, seconds
from millwheel.worker.interval.hooks.scheduler import KeyScheduler
from millwheel.worker.interval.spilled_timers import SpilledTimers
from millwheel.worker.interval.timers import IntervalTimers, TimerTable
from simulation.mutations.base import mutation, replace, rewrite

__all__: list[str] = []


@mutation("G6", "a timer waits for its time")
def early_timers() -> None:
    """Timers are due before their time."""

    def make(due_until: Any) -> Any:
        def early(self: IntervalTimers, domain: TimeDomain, *arguments: Any) -> int:
            limit: int = due_until(self, domain, *arguments)
            return min(MAX_TIMESTAMP, limit + seconds(5))

        return early

    replace(IntervalTimers, "due_until", make)


@mutation("G5", "due timers fire in the order of their times")
def unsorted_timers() -> None:
    """Of several due timers, the last one fires first."""

    def make(pop_due: Any) -> Any:
        return lambda self, upto, limit: pop_due(self, upto, limit)[::-1]

    replace(TimerTable, "pop_due", make)


@mutation("G5", "no timer fires before an earlier one that is in the store still")
def far_timers_overtaken() -> None:
    """Timers in memory fire without regard to spilled ones."""
    rewrite(IntervalTimers.due_until, "if (first := self.spilled.first[domain]) is not None:", "if False:")


@mutation("G6", "a timer that is set again or cancelled is void where it is stored")
def unvoided_timers() -> None:
    """Changes of a timer after it was spilled have no effect on its stored copy."""
    replace(SpilledTimers, "current_rows", lambda _: lambda self, rows: list(rows))


@mutation(
    "G5",
    "no record of a key runs before a timer of it that is due",
    test="tests/worker/interval/test_order.py::test_due_timers_of_blocked_keys_are_not_overtaken",
    why="it is seldom that a key's record is in line in the step in which its timer falls due: in one of 100 seeds",
)
def records_first() -> None:
    """Records run before the timers that are due."""
    first = "    if room and self._table.keys:"
    records = "    if self._intake.queue and not self.runner.full():\n        self.runner.run_queue(True)\n"
    rewrite(KeyScheduler.run, first, records + first)
