"""Firing timers: in increasing time per key and domain, never early, each exactly once (G5, G6; section 4.6)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from millwheel.model.time import LAST_TIMESTAMP, MAX_TIMESTAMP, TimeDomain, Timestamp
from millwheel.sdk.context import Context
from millwheel.sdk.effects import TimerSetting
from millwheel.sdk.records import Timer
from millwheel.worker.interval.blocked_key_table import TimerItem, Wait
from millwheel.worker.interval.hooks.failures import HOOK_ERRORS
from millwheel.worker.interval.hooks.pane_firing import PaneFiring
from millwheel.worker.interval.hooks.runner import HookOutcomes, Runner
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.interval.timers import PROCESSING_TIME, effective_hold, held_at

__all__ = ["Firing"]

_FEED_APART: Final = 100_000
"""Microseconds between two reads of a source while the outbox is full and no ACK comes."""


class Firing:
    """Fires due timers into the runner's batch."""

    def __init__(self, state: IntervalState, runner: Runner, outcomes: HookOutcomes) -> None:
        self.runner = runner
        self._outcomes = outcomes
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._timers = state.timers
        self._blocked = state.blocked
        self._holds = state.holds
        self._intake = state.intake
        self._outbox = state.outbox
        self._pane_table = state.panes
        self.panes = PaneFiring(state, runner, outcomes)
        self._acks_before = 0
        """How many ACKs had come when a source last read while the outbox was full."""
        self.next_feed = 0
        """When a source may read again while the outbox is full, a time of ``elapsed``. An ACK lets it do so before."""

    def run_all_due(self, outbox_full: bool) -> None:
        """Fire the timers that are due. While the outbox is full, fire only those that may hold the watermark (G13).

        A timer may hold it if its time is below every production without an ACK. It may also hold it if it may end a
        stated hold that is lower than these productions. The other timers wait. Then the lowest production holds the
        watermark. Its consumer admits it even when it is full. So it is ACKed, and the timers fire later (G8).

        A record that holds the watermark runs after the due timers of its key (``run_due_of``). While due timers are
        still in the store, it is unknown which keys have one. Then no timer waits.
        """
        timers = self._timers
        upto, waits = timers.due_until(TimeDomain.EVENT_TIME), False
        if outbox_full and not (timers.behind and self._has_holder):
            pending = self._outbox.unacked.held.min()
            waits = pending <= self._holds.min_stated()
            if waits:
                upto = min(upto, pending - 1)
        self.run_due(TimeDomain.EVENT_TIME, upto)
        if waits:
            return
        if timers.ahead:
            if self._clocks.bounded:
                self.run_ahead()
            else:
                # The watermark has reached every timer that was due by a bound.
                timers.ahead.clear()
        if self._setup.program.feeds and outbox_full:
            self._feed(self._outbox.unacked.held.min())
        else:
            self.run_due(TimeDomain.PROCESSING_TIME, timers.due_until(TimeDomain.PROCESSING_TIME))

    def _feed(self, pending: int) -> None:
        """While the outbox is full, run the timer of a source with the lowest hold below every un-ACKed production.

        It reads records and raises its hold. Consumers admit what holds the watermark, so the others go on later (G8).
        Many splits may hold the watermark at one time, as new ones do. Each ACK lets one of them read. Without an ACK
        one of them reads in each ``_FEED_APART``: perhaps their consumers wait for the watermark (G13).
        """
        clocks, acks, domain = self._clocks, self._outbox.acks, TimeDomain.PROCESSING_TIME
        if self._holds.min_stated() >= pending or self.runner.full():
            return
        if clocks.elapsed < self.next_feed and acks == self._acks_before:
            return
        table, upto = self._timers.tables[domain], self._timers.due_until(domain)
        if table.first_time is None or table.first_time > upto:
            return
        due = (
            (at, key)
            for key, _, one in table.items()
            if one.at <= upto and (at := held_at(one, domain)) < pending and key not in self._blocked.keys
        )
        self._acks_before, self.next_feed = acks, clocks.elapsed + _FEED_APART
        if (lowest := min(due, default=None)) is not None:
            self._fire_of_key(lowest[1], domain, upto)

    @property
    def _has_holder(self) -> bool:
        """Whether a record here holds a sender's watermark, or may close a cycle."""
        intake = self._intake
        return intake.pending.min() <= self._clocks.inputs.value or bool(self._setup.config.feedback and intake.records)

    def run_due(self, domain: TimeDomain, upto: int) -> None:
        """Fire the timers of one domain that are due by ``upto``, up to the limits of the batch.

        Invariant: after the call, unless the batch is full or panes wait for many states to be read, each key that
        still has a timer due by ``upto`` is blocked. So none of its records runs before the timer. If ``upto`` is less
        than what is due, ``run_due_of`` must run before each record.

        A timer waits with its blocked key for the next batch in two cases. A hook of this batch set or cancelled it, or
        such a hook set an earlier timer. Settings take effect when their batch is sealed.

        The end of a window by columns is a timer of each key that has a pane in it. It comes after earlier timers.
        """
        if domain is TimeDomain.EVENT_TIME:
            for window in self.panes.due(upto):
                self._run_timers(domain, window.end)
                if self.runner.full():
                    return
                self.panes.produce(window)
                if self.panes.mover.asks_much:
                    return
        self._run_timers(domain, upto)

    def _run_timers(self, domain: TimeDomain, upto: int) -> None:
        runner = self.runner
        table = self._timers.tables[domain]
        while (first := table.first_time) is not None and first <= upto and not runner.full():
            due = table.pop_due(upto, runner.room(self._setup.meter.timers))
            if due and domain is TimeDomain.EVENT_TIME:
                # Popped timers are in no bucket, so their bucket does not hold the watermark. The batch does.
                runner.batch.hold = self._holds.covering(runner.batch.hold, due[0][0])
            fired, began = 0, self._setup.meter.clock()
            blocked, contexts = self._blocked.keys, runner.batch.contexts
            for at, key, tag in due:
                timer = at, domain, tag
                if key in blocked:
                    self.postpone(key, timer)
                elif runner.full():
                    table.requeue(key, tag, at)
                elif key not in contexts or self.may_fire(key, timer):
                    fired += self.fire(key, timer)
                else:
                    self._blocked.block(key, Wait.READY)
                    self.postpone(key, timer)
            if due:
                self._measure(fired, began, due[0][1] if len(due) == 1 else None)

    def run_due_of(self, keys: Iterable[bytes]) -> bool:
        """Fire the due timers of these keys, because their records are about to run.

        Returns:
            Whether all of them have fired, or wait with their blocked key. False: the batch was full before.
        """
        return all(self._fire_due_of(key, domain) for key in dict.fromkeys(keys) for domain in TimeDomain)

    def _fire_due_of(self, key: bytes, domain: TimeDomain) -> bool:
        return self._fire_upto(key, domain, self._timers.due_until(domain, key)) or key in self._blocked.keys

    def _fire_upto(self, key: bytes, domain: TimeDomain, upto: int, above: int | None = None) -> bool:
        """Fire the key's timers up to a time, and produce the results of its panes between them, in their order (G5).

        Returns whether none of them is left for later. A pane that has moved to the state of the key is: the move may
        be undone. ``above``: nothing fires while a timer or a pane up to that time is left.
        """
        for window in self._pane_table.of_key(key, upto) if domain is TimeDomain.EVENT_TIME else ():
            waits = above is not None and window.end <= above
            if waits or not self._fire_of_key(key, domain, window.end, above) or self.runner.full():
                return False
            self.panes.produce_of(window, [key])
            if key in window.rows or key in self._blocked.keys:
                return False
        return self._fire_of_key(key, domain, upto, above)

    def _fire_of_key(self, key: bytes, domain: TimeDomain, upto: int, above: int | None = None) -> bool:
        """Fire the key's timers up to a time. Returns whether none of them is left for later.

        ``above``: nothing fires while a timer up to that time is left.
        """
        runner = self.runner
        table = self._timers.tables[domain]
        fired = {tag for _, one, tag in runner.batch.fired.get(key, ()) if one is domain}
        for at, tag in table.due_of_key(key, upto):
            if tag in fired:
                continue
            if (above is not None and at <= above) or key in self._blocked.keys or runner.full():
                return False
            if not self.may_fire(key, (at, domain, tag)):
                self._blocked.block(key, Wait.READY)
                return False
            table.hand_out(key, tag, at)
            if domain is TimeDomain.EVENT_TIME:
                runner.batch.hold = self._holds.covering(runner.batch.hold, at)
            self._fire_alone(key, (at, domain, tag))
        return True

    def run_ahead(self) -> None:
        """Fire timers that are due by their key's watermark bound, and not yet by the interval's watermark (7.1)."""
        for key in list(self._timers.ahead):
            if self.runner.full() or self.panes.mover.asks_much:
                return
            if key in self._blocked.keys:
                continue
            # Timers that the watermark has reached fire before, by ``run_due``.
            upto, above = self._clocks.key_bounds.bound_of(key), self._clocks.watermark
            if self._fire_upto(key, TimeDomain.EVENT_TIME, upto, above):
                del self._timers.ahead[key]

    def may_fire(self, key: bytes, timer: TimerItem) -> bool:
        """Whether a due timer may fire in this batch. Otherwise settings of the batch's hooks take effect before."""
        context = self.runner.batch.contexts.get(key)
        if context is None:
            return True
        if self._setup.program.timer_is_async:
            return False
        at, domain, tag = timer
        return context._timers is None or not any(
            other is domain and (name == tag or (setting is not None and setting.at < at))
            for (other, name), setting in context._timers.items()
        )

    def postpone(self, key: bytes, timer: TimerItem) -> None:
        """Keep the timer with its blocked key. It holds the watermark at its own time."""
        blocked = self._blocked.keys[key]
        blocked.due.append(timer)
        if timer[1] is TimeDomain.EVENT_TIME:
            blocked.hold = self._holds.covering(blocked.hold, timer[0])

    def return_postponed(self, key: bytes) -> None:
        """Return the postponed timers of a key that is being unblocked. They are due again."""
        due, hold = self._blocked.keys[key].take_due()
        for at, domain, tag in due:
            self._timers.tables[domain].requeue(key, tag, at)
            if domain is TimeDomain.EVENT_TIME:
                self._timers.note_due(key, at)
        if hold is not None:
            hold.release()

    def next_due(self, key: bytes) -> TimerItem | None:
        """The timer that a blocked key fires next: its earliest in event time, else its earliest in processing time.

        Timers that have fired in the batch are in the tables until it is sealed.
        """
        fired = self.runner.batch.fired.get(key, ())
        for domain in TimeDomain:
            for at, tag in self._timers.tables[domain].due_of_key(key, self._timers.due_until(domain, key)):
                if (at, domain, tag) not in fired:
                    return at, domain, tag
        return None

    def fire_blocked(self, key: bytes, timer: TimerItem) -> None:
        """Fire the next due timer of a blocked key."""
        self.take_over(key, timer)
        self._fire_alone(key, timer)

    def take_over(self, key: bytes, timer: TimerItem) -> None:
        """Move a blocked key's timer into the batch, which holds the watermark at its time from here on."""
        if timer[1] is TimeDomain.EVENT_TIME:
            batch = self.runner.batch
            batch.hold = self._holds.covering(batch.hold, timer[0])
        postponed, hold = self._blocked.keys[key].take_due()
        for at, domain, tag in postponed:
            setting = self._timers.tables[domain].get(key, tag)
            if (at, domain, tag) != timer and setting is not None and setting.at == at:
                self.postpone(key, (at, domain, tag))
        if hold is not None:
            hold.release()

    def _fire_alone(self, key: bytes, timer: TimerItem) -> None:
        """Fire one timer and measure its run time."""
        began = self._setup.meter.clock()
        self._measure(int(self.fire(key, timer)), began, key)

    def _measure(self, calls: int, began: float, key: bytes | None) -> None:
        self.runner.measure("process_timer", self._setup.meter.timers, calls, began, key)

    def fire(self, key: bytes, timer: TimerItem) -> bool:
        """Fire one timer that is in the table. Returns whether its hook was called."""
        at, domain, tag = timer
        setting = self._timers.tables[domain].get(key, tag)
        assert setting is not None, "a timer that is handed out stays until its batch is sealed"
        batch = self.runner.batch
        context = batch.contexts.get(key) or self.runner.open(key)
        if context is None:
            self.postpone(key, timer)
            return False
        self._aim(key, context, setting, domain)
        batch.records += 1
        batch.size += len(key) + len(tag)
        try:
            outcome = self._setup.program.process_timer(context, Timer(tag, at, domain))  # type: ignore[arg-type]
        except HOOK_ERRORS as error:
            self._outcomes.failed(key, timer, error)
            return True
        if outcome is not None:
            self._outcomes.returned(key, context, timer, outcome)
        else:
            batch.fired.setdefault(key, []).append(timer)
        return True

    def forget(self, key: bytes, context: Context[Any], timer: TimerItem) -> None:
        """Let the computation forget what waited for a timer that is given up."""
        at, domain, tag = timer
        setting = self._timers.tables[domain].get(key, tag)
        assert setting is not None, "a timer that is given up stays until its batch is sealed"
        self._aim(key, context, setting, domain)
        # A state that cannot be read fails before anything has changed (`Computation._given_up`). So it stays.
        with suppress(*HOOK_ERRORS):
            self._setup.program.computation._given_up(context, Timer(tag, Timestamp(at), domain))

    def _aim(self, key: bytes, context: Context[Any], setting: TimerSetting, domain: TimeDomain) -> None:
        """Set the timestamp of the firing: the least and the default timestamp of its productions.

        An event-time timer uses its own time, or its hold if that is later. A processing-time timer has no event time.
        It uses the larger of its hold and the input watermark. If the input has ended, it uses its hold. The hook may
        state others.
        """
        processing = domain is PROCESSING_TIME
        if not processing and setting.hold is None and setting.at <= LAST_TIMESTAMP and not self._holds.of_keys:
            context._stamp = context._cause = context._earliest = setting.at
            context._caused_by(setting.set_at_position)
            return
        hold = effective_hold(setting, domain)
        at = self._clocks.watermark_of(key) if processing else setting.at
        if processing and at == MAX_TIMESTAMP and hold is not None:
            at = hold
        at = min(at, LAST_TIMESTAMP)
        earliest = at if hold is None else min(hold, LAST_TIMESTAMP)
        context._stamp = context._cause = max(earliest, at)
        context._earliest = min(earliest, self._holds.of_keys.get(key, earliest))
        context._caused_by(setting.set_at_position)
