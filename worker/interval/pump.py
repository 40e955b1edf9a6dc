"""What an interval does after each event while it serves: it runs hooks, commits and reports (4.5, 5.1, 6.1)."""

from __future__ import annotations

from typing import Final

from millwheel.model.time import TimeDomain
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.worker.interval.cache.eviction import evict_cells
from millwheel.worker.interval.commits.commit_wait import CommitWait
from millwheel.worker.interval.commits.commits import CommitPipeline
from millwheel.worker.interval.hold_explanations import BLOCKED, hold_detail, hold_subject
from millwheel.worker.interval.hooks.scheduler import KeyScheduler
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import (
    Acknowledged,
    Appended,
    Delivery,
    GroupWatermarks,
    HooksSlow,
    IntervalEffect,
    IntervalEvent,
    Report,
)
from millwheel.worker.owner import OwnerPump

__all__ = ["IntervalPump"]

_REPEAT_REPORT_US: Final = 5_000_000
"""Minimum time in microseconds before an unchanged watermark is reported again because its key has failed again."""


class IntervalPump(OwnerPump[IntervalEvent, IntervalEffect]):
    """Runs, fires, commits and reports as far as possible."""

    def __init__(self, state: IntervalState, scheduler: KeyScheduler, commits: CommitPipeline) -> None:
        self._state = state
        self._scheduler = scheduler
        self._blocked_keys = scheduler.blocked_keys
        self._commits = commits
        self._checkpoints = commits.checkpoints
        self._reported: tuple[int, int, int, bytes | None] | None = None
        self._reported_failures = 0
        self._reported_at = 0
        self._timer_due_at: int | None = None
        """The wall-clock time of the next processing-time timer."""
        self._alarm: int | None = None
        """When blocked keys or commits need a Tick, a time of ``elapsed``."""
        self._followed = False
        """Whether another delivery is the next event, as the driver says."""
        self._gathers = False
        """Whether the batch waits for the records of the next delivery, which is the next event."""
        self._gathers_since = 0
        """When that wait began, a time of ``elapsed``."""
        self._wait = CommitWait(state, scheduler.runner, commits.checkpoints)

    def run(self, event: IntervalEvent) -> list[IntervalEffect]:
        """Do everything that is possible after ``event``, and report the output watermark."""
        if self._skips_work(event):
            return self._report()
        self._followed = isinstance(event, Delivery | Appended | GroupWatermarks) and event.followed
        if not self._gathers:
            self._gathers_since = self._state.clocks.elapsed
        self._gathers = False
        rests = type(event) is Appended and self._rests_after_append()
        out = self._end_step() if rests else self.work()
        out += self._report()
        return out

    def next_deadline(self) -> int | None:
        """The wall-clock time at which a Tick is due if no other event comes before. None: no Tick is needed."""
        timer_due, alarm = self._timer_due_at, self._alarm
        if alarm is None:
            return timer_due
        at = self._state.clocks.wall_at(alarm)
        return at if timer_due is None or at < timer_due else timer_due

    def _skips_work(self, event: IntervalEvent) -> bool:
        """Whether ``event`` is a broadcast watermark or an ACK, and leaves the passes nothing to do.

        A broadcast watermark advances the input watermark before it is decided.
        """
        kind = type(event)
        if kind is GroupWatermarks:
            self._state.clocks.advance(self._state.intake.pending.min())
            return self.is_at_rest()
        if kind is Acknowledged:
            # The next commit journals ACKs of weak productions. A base may wait for ACKs of parents' productions.
            return not self._commits.weak_commits.acked and not self._checkpoints.pressing and self.is_at_rest()
        return False

    def _rests_after_append(self) -> bool:
        """Whether nothing has waited for the append, so that the passes have nothing to do. Its effects are decided.

        The usual case of light load: no record came while the append was in flight, nor a duplicate, which is to be
        counted then.
        """
        self._state.clocks.advance(self._state.intake.pending.min())
        batch, commits = self._scheduler.runner.batch, self._commits
        if batch or batch.hold is not None or self._state.ids.duplicates:
            return False
        return not commits.weak_commits.acked and not self._checkpoints.pressing and self.is_at_rest()

    def is_at_rest(self) -> bool:
        """Whether an event that only raises the watermark, or makes room in the outbox, can skip the passes.

        Invariant (G8): after the pump of an event, all work that is left waits for one of two things.

        - It waits for the event that answers an append, a read, a write or an asynchronous hook.
        - It waits for the watermark, the time or ACKs: queued records, timers, blocked keys, queued weak commits, and
          rows of which the next slice is captured or settled soon.

        So a watermark or an ACK may skip the passes if there is nothing of the second kind. An append may skip them if
        moreover no batch waits for it. And a strong commit that has just begun ends them: no other one begins with it.
        ``check_invariants`` runs them in that state, and they must do nothing.
        """
        state, clocks, timers = self._state, self._state.clocks, self._state.timers
        if state.intake.queue or state.blocked.keys or timers.ahead or timers.spilled.parts:
            return False
        if (
            self._commits.weak_commits.queue
            or self._checkpoints.rows.left
            or self._checkpoints.rows.settling
            or self._gathers
            or self._wait.until is not None
        ):
            return False
        event, processing = timers.event_time.first_time, timers.processing_time.first_time
        if event is not None and event <= clocks.watermark:
            return False
        if state.panes.windows and (end := state.panes.first_end) is not None and end <= clocks.watermark:
            return False
        # A timer that was due, and waited for room, has no deadline. The clock may have been set back since.
        if processing is not None and (processing <= clocks.wall or processing != self._timer_due_at):
            return False
        return state.cells.bytes_held <= state.cells.limit_bytes

    def work(self) -> list[IntervalEffect]:
        """Run the passes of the pump. Their order is fixed:

        1. Settle a slice of the rows that were written. If it is the last one, or none is left, evict states. Once.
        2. Repeat: report progress, advance the input watermark, load spilled timers, run hooks (``_run``), end queued
           weak commits, commit.
        3. Ask for spilled timers and rows, pass on what hooks left to do, and find the next deadline, once.

        Why the repetition ends: another round follows only for the reasons below. Each of them uses something up,
        and no round adds to it.

        - A weak commit without lasting effects ended. It had consumed records, and records come by events only.
        - Rows of spilled timers were loaded. They come by events only.
        - A commit began. A strong one, or one with timers, needs that nothing is in flight, so each event has one at
          most. A weak one consumes records.
        - The open commit has room again, because an append began. Or a request to release the interval was answered.
        - Only blocked records of a delivery are left, fewer than its sender knows of. Records come by events only.
        - Several pieces of work of one key were undone (``again``). Each runs alone from then on. If it fails alone,
          the failure policy decides, and a retry waits for its time.
        """
        state, scheduler, commits, checkpoints = self._state, self._scheduler, self._commits, self._checkpoints
        blocked_keys, clocks, spilled = self._blocked_keys, state.clocks, state.timers.spilled
        if checkpoints.rows.settling:
            checkpoints.rows.settle(scheduler.busy())
        if not checkpoints.rows.settling and state.cells.bytes_held > state.cells.limit_bytes:
            # What the next slices pack makes room, too. They follow at once, so the cache is over its limit for a few
            # steps. An eviction between two slices would search all states, and drop some that are packed soon.
            evict_cells(state.cells, scheduler.busy(), state.timers.next_of_key)
        out = commits.report_progress()
        while True:
            clocks.advance(state.intake.pending.min())
            if spilled.parts:
                out.extend(checkpoints.spilling.pump())
            releasing, full = checkpoints.releasing, commits.open_commit_full
            blocked_keys.again = False
            if not blocked_keys.stopped:
                self._run()
            settled = False
            if commits.weak_commits.queue:
                settled, effects = commits.settle_weak()
                out += effects
            if settled or (spilled.parts and checkpoints.spilling.may_take_in):
                # The queue is empty and no append is in flight, so the watermark can advance and timers read from the
                # store can be loaded now.
                continue
            began, effects = self._commit()
            out += effects
            if began and commits.strong and self.is_at_rest():
                break
            out += (progress := commits.report_progress())
            more = began or checkpoints.releasing != releasing
            more = bool(progress) or more or (full and not commits.open_commit_full)
            if not more and (commits.open_commit_full or not blocked_keys.again):
                # The current batch has no room in the open commit, or nothing is left to run. The ACK or append that
                # makes room is an event of its own.
                break
        if spilled.parts:
            # The watermark may have reached spilled timers, or memory may have few timers left. Request the spilled
            # part now, because no other event may come.
            out.extend(checkpoints.spilling.ask())
        out += self._end_step()
        return out

    def _commit(self) -> tuple[bool, list[IntervalEffect]]:
        """Seal the batch and start its commit, unless it waits for more records. Returns whether a commit began."""
        self._gathers = self._waits_for_records()
        if self._gathers or self._wait.goes_on():
            return False, []
        began, effects = self._commits.try_commit()
        if began:
            self._wait.until = None
        return began, effects

    def _end_step(self) -> list[IntervalEffect]:
        """Pass on what hooks left to do, and find the next deadline."""
        state, scheduler, commits = self._state, self._scheduler, self._commits
        out = scheduler.take_effects()
        if state.meter.slow is not None:
            out.append(HooksSlow(state.meter.slow))
            state.meter.slow = None
        self._timer_due_at = scheduler.next_timer_due()
        self._alarm = commits.next_alarm()
        for at in (scheduler.next_retry(), self._wait.alarm()):
            if at is not None and (self._alarm is None or at < self._alarm):
                self._alarm = at
        return out

    def _waits_for_records(self) -> bool:
        """Whether the batch waits for more records before it is sealed.

        A key that occurs in several deliveries has its state encoded and journaled once for all of them. So while the
        next delivery is there already, the batch grows up to its limits, as long as keys occur again.

        Invariant (G8): the next event of this core is a delivery. It ends the wait, or the next one is behind it. The
        first event after ``gathered_for`` ends it in any case: deliveries of duplicates add nothing to the batch. Who
        could break it: a driver that states ``followed`` for another event.
        """
        settings, runner = self._state.settings, self._scheduler.runner
        if not self._followed or self._state.clocks.elapsed - self._gathers_since >= settings.gathered_for:
            return False
        if runner.keys_differ():
            return False
        return runner.batch.records >= settings.gathered_from and not runner.full()

    def _run(self) -> None:
        self._scheduler.run(not self._commits.open_commit_full, not self._checkpoints.releasing)

    # Reports.

    def held(self) -> tuple[int, HoldKind.ValueType]:
        """The output watermark that the unfinished work allows, and the kind of work that is lowest."""
        timers, panes = self._state.timers, self._state.panes
        end = panes.first_end if panes.windows else None
        times = timers.event_time.first_time, timers.spilled.first[TimeDomain.EVENT_TIME], end
        return self._state.output.lowest(self._state.clocks.watermark, *times)

    def _report(self) -> list[IntervalEffect]:
        """Report the output watermark, which is monotone, if its value or its hold explanation has changed."""
        state = self._state
        output, hold = self.held()
        output = state.output.rise(output)
        watermark = self.reported_input(output)
        detail, failures = hold_detail(state, hold) if state.blocked.keys else (None, 0)
        reported = (output, watermark, hold, detail)
        at_once = self._reported_failures == 0 or failures == BLOCKED
        rested = at_once or state.clocks.elapsed - self._reported_at >= _REPEAT_REPORT_US
        again = failures != self._reported_failures and rested
        if reported == self._reported and not again:
            return []
        self._reported, self._reported_failures, self._reported_at = reported, failures, state.clocks.elapsed
        is_input = hold == HoldKind.HOLD_KIND_INPUT
        subject = ", ".join(state.clocks.inputs.holding()) if is_input else hold_subject(state, hold, output)
        config = state.config
        return [Report(config.incarnation, config.keys, config.sequencer, output, watermark, hold, subject)]

    def reported_input(self, output: int) -> int:
        """The input watermark to report beside the output watermark ``output``."""
        return self._state.clocks.watermark
