"""What must hold of an interval between two events."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.model.core_protocol import RisingValues, require
from millwheel.worker.interval.commits.commits import CommitPipeline
from millwheel.worker.interval.holds import Hold, Holds
from millwheel.worker.interval.hooks.scheduler import KeyScheduler
from millwheel.worker.interval.intake import increasing
from millwheel.worker.interval.pump import IntervalPump
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.interval.timers import effective_hold

__all__ = ["IntervalInvariants", "check_holds"]


class IntervalInvariants:
    """The invariants of one owner of an interval. The object remembers the values that must not fall."""

    def __init__(
        self, state: IntervalState, scheduler: KeyScheduler, commits: CommitPipeline, pump: IntervalPump
    ) -> None:
        self._state = state
        self._scheduler = scheduler
        self._commits = commits
        self._pump = pump
        self._rising = RisingValues()

    def check(self, serving: bool) -> None:
        """Check them all. It visits all timers and holds.

        Args:
            serving: Whether the owner serves. Then its pump may skip passes.

        Raises:
            InvariantError: Something that must not fall has fallen, a count is not balanced, or a pass was skipped.
            RuntimeError: A hold was lost, or ended too early.
        """
        self._check_data()
        if not serving:
            return
        output = self._state.output.value
        require(output <= self._pump.reported_input(output), "no output watermark is above the input watermark (G7)")
        if self._pump.is_at_rest():
            self._check_rest()

    def _check_data(self) -> None:
        state, journal = self._state, self._state.journal
        point = journal.truncation_point
        self._rising.check(
            watermark=state.clocks.watermark,
            output=state.output.value,
            elapsed=state.clocks.elapsed,
            committed=journal.committed,
            truncation_point=point,
        )
        require(point <= journal.committed <= journal.sealed, "truncation point, commit and batch are in this order")
        intake, outbox, unacked = state.intake, state.outbox, state.outbox.unacked
        require(intake.records == len(intake.pending), "each received record holds the input watermark, once (G7)")
        open_records = sum(receipt.open for receipt in intake.unfinished)
        require(intake.records == open_records, "each received record has an unfinished receipt")
        # The first alone: what reorders records puts them there, and a search of a long queue takes long.
        in_order = not intake.queue or increasing(intake.queue[0].indexes)
        require(in_order, "queued records are in the delivery's order (G1)")
        require(intake.bytes >= 0 and (intake.records > 0 or intake.bytes == 0), "the queue's bytes are balanced (G13)")
        require(len(unacked.held) == len(outbox), "each outbound batch holds the output watermark, once (G7)")
        require((unacked.records == 0) == (len(outbox) == 0), "the outbox's records are balanced (G13)")
        require(unacked.bytes >= 0 and (unacked.records > 0 or unacked.bytes == 0), "its bytes are balanced, too (G13)")
        _check_panes(state)
        stated: list[int | None] = [*state.holds.of_keys.values()]
        for domain, table in state.timers.tables.items():
            if len(table):
                stated += [effective_hold(one, domain) for _, _, one in table.items()]
        stated += [part.hold for part in state.timers.spilled.parts.values()]
        passing = [*self._scheduler.holds(), *self._commits.holds()]
        check_holds(state.holds, (at for at in stated if at is not None), passing)

    def _check_rest(self) -> None:
        """Check that the passes of the pump have nothing to do when an event skips them, and the deadline is known."""
        pump, runner = self._pump, self._scheduler.runner
        deadline, ran = pump.next_deadline(), runner.work_in_batch()
        idle = not pump.work() and ran == runner.work_in_batch()
        require(idle, "passes that an event skips have nothing to do (G8)")
        now = self._state.clocks.wall_at(self._state.clocks.elapsed)
        # All deadlines that have passed ask for a Tick now.
        same = {None if at is None else max(at, now) for at in (deadline, pump.next_deadline())}
        require(len(same) == 1, "the deadline is known (G8)")


def _check_panes(state: IntervalState) -> None:
    """Check the panes by columns: each is in one place, and the first end is known."""
    panes, timers = state.panes, state.timers.event_time
    for window in panes.windows.values():
        require(window.sealed <= len(window.keys), "a sealed row has a key")
        require(all(len(column) >= len(window.keys) for column in window.columns), "each row has its columns")
        here = window.listed()  # to make its rows would change what is checked
        require(len(here) == window.count, "each pane has its key")
        for rows in (here, window.closing):
            require(all(window.keys[row] == key for key, row in rows.items()), "each pane has its row")
        require(here.keys().isdisjoint(window.closing), "a pane that leaves the table is not there")
        leaving = {window.keys[row] for row in window.leaving}
        require(leaving.isdisjoint(here) and leaving.isdisjoint(window.closing), "a pane leaves the table once")
        rows = {key: row for row, key in enumerate(window.keys) if row >= window.first}
        require(window.first < 0 or rows == here, "the first row of a window is known")
        tag = window.timer[2]
        both = any(timers.get(key, tag) is not None for key in here)
        require(not both, "a pane is in the table or in the state of its key (G1)")
    ends = [window.end for window in panes.windows.values() if window.count]
    require(panes.first_end == min(ends, default=None), "the first end of a window is known (G7)")


def check_holds(holds: Holds, stated: Iterable[int], passing: Iterable[Hold]) -> None:
    """Check that each hold has an owner, and each owner its hold.

    Args:
        holds: The holds.
        stated: The stated holds that the timers, the spilled timers and the keys have.
        passing: The passing holds of all owners.

    Raises:
        RuntimeError: A hold was lost, or ended too early.
    """
    kept, needed = dict(holds.stated.items()), _counted(stated)
    if kept != needed:
        raise RuntimeError(f"the stated holds are {kept}, and their owners have {needed}")
    covering = holds._open
    owned = [hold for hold in passing if hold.count]
    if len(owned) != len(covering) or set(owned) != covering.keys():
        times = sorted(hold.at for hold in covering), sorted(hold.at for hold in owned)
        raise RuntimeError("the passing holds are at {}, and those of owners at {}".format(*times))
    kept, needed = dict(holds.passing.items()), _counted(hold.at for hold in covering)
    if kept != needed:
        raise RuntimeError(f"the passing holds are {needed}, and the output watermark stands by {kept}")


def _counted(times: Iterable[int]) -> dict[int, int]:
    """How often each time appears. It is called after each event of a checked interval, and mostly with few times."""
    counts: dict[int, int] = {}
    for at in times:
        counts[at] = counts.get(at, 0) + 1
    return counts
