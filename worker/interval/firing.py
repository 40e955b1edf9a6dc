"""Firing timers: in increasing time per key and domain, never early, each exactly once (G5, G6; section 4.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from millwheel.core.time import LAST_TIMESTAMP, MAX_TIMESTAMP
from millwheel.sdk.context import Context, TimerSetting
from millwheel.sdk.model import Timer
from millwheel.worker.interval.failures import HOOK_ERRORS
from millwheel.worker.interval.intake import TimerItem, Wait
from millwheel.worker.interval.runner import Runner
from millwheel.worker.interval.state import effective_hold

__all__ = ["Firing"]


class Firing:
    """Fires due timers into the runner's batch."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.state = runner.state
        self.failed: Callable[[bytes, TimerItem, BaseException], None]
        self.returned: Callable[[bytes, Context[Any], TimerItem, Any], None]

    def run_due(self, wall: bool, upto: int) -> None:
        """Fire what is due by ``upto`` in one domain, up to the batch's bounds.

        Invariant: unless the batch is full then, a key of which a timer is due by ``upto`` still is parked, so that no
        record of it is run before. Where ``upto`` is less than what is due, ``run_due_of`` goes before each record.

        A timer waits for the next batch, with its key, if a hook of this batch set or cancelled it, or set one that
        comes before it: settings take effect when their batch is sealed.
        """
        state, runner = self.state, self.runner
        table, held = state.timers[wall], wall
        while (first := table.next_time()) is not None and first <= upto and not runner.full():
            due = table.pop_due(upto, state.settings.batch_records - runner.batch.records)
            if due and not held:
                # Popped, they are in no bucket that would hold the watermark; until the commit this does.
                self._hold_by_batch(due[0][0])
                held = True
            fired, began = 0, state.meter.clock()
            for at, key, tag in due:
                timer = at, wall, tag
                if key in state.intake.parked:
                    self.postpone(key, timer)
                elif runner.full():
                    table.requeue(key, tag, at)
                elif self._may_fire(key, timer):
                    fired += self.fire(key, timer)
                else:
                    state.intake.park(key, Wait.READY)
                    self.postpone(key, timer)
            if due:
                state.meter.ran_timers(fired, began, due[0][1] if len(due) == 1 else None)

    def run_due_of(self, keys: Iterable[bytes]) -> bool:
        """Fire what is due of these keys alone, as records of theirs are to be run.

        Returns:
            Whether all of it has fired, or waits with its key, which is parked; False: the batch is full before.
        """
        return all(self._fire_due_of(key, wall) for key in dict.fromkeys(keys) for wall in (False, True))

    def _fire_due_of(self, key: bytes, wall: bool) -> bool:
        all_fired = self._fire_of_key(key, wall, self.state.due_until(wall, key))
        return all_fired or key in self.state.intake.parked

    def _fire_of_key(self, key: bytes, wall: bool, upto: int, above: int | None = None) -> bool:
        """Fire the key's timers up to a time; returns whether none of them is left for later.

        ``above``: nothing is fired while a timer up to that time is left.
        """
        state, runner = self.state, self.runner
        table = state.timers[wall]
        fired = {tag for _, domain, tag in runner.batch.fired.get(key, ()) if domain == wall}
        for at, tag in table.due_of_key(key, upto):
            if tag in fired:
                continue
            if (above is not None and at <= above) or key in state.intake.parked or runner.full():
                return False
            if not self._may_fire(key, (at, wall, tag)):
                state.intake.park(key, Wait.READY)
                return False
            table.hand_out(key, tag, at)
            if not wall:
                self._hold_by_batch(at)
            self._fire_alone(key, (at, wall, tag))
        return True

    def run_ahead(self) -> None:
        """Fire what is due by what its key was shown before a merge, though not by the interval's watermark (7.1)."""
        state = self.state
        for key in list(state.ahead):
            if self.runner.full():
                return
            if key in state.intake.parked:
                continue
            # What the watermark has reached comes first, and is ``run_due``'s.
            if self._fire_of_key(key, False, state.floors.of(key), above=state.watermark):
                del state.ahead[key]

    def _hold_by_batch(self, at: int) -> None:
        at = min(at, LAST_TIMESTAMP)
        self.runner.batch.firing.append(at)
        self.state.hold_times.passing.add(at)

    def _may_fire(self, key: bytes, timer: TimerItem) -> bool:
        context = self.runner.batch.contexts.get(key)
        if context is None:
            return True
        if self.state.program.timer_is_async:
            return False
        at, wall, tag = timer
        return context._timers is None or not any(
            domain == wall and (name == tag or (setting is not None and setting.at < at))
            for (domain, name), setting in context._timers.items()
        )

    def postpone(self, key: bytes, timer: TimerItem) -> None:
        """The key is parked: the timer waits with it, holding the watermark at its own time."""
        self.state.intake.parked[key].due.append(timer)
        if not timer[1]:
            self.state.hold_times.passing.add(min(timer[0], LAST_TIMESTAMP))

    def return_postponed(self, key: bytes) -> None:
        """The key goes on: its timers are due again."""
        parked = self.state.intake.parked[key]
        for at, wall, tag in parked.due:
            self.state.timers[wall].requeue(key, tag, at)
            if not wall:
                self.state.hold_times.passing.remove(min(at, LAST_TIMESTAMP))
                self.state.note_due(key, at)
        parked.due.clear()

    def next_due(self, key: bytes) -> TimerItem | None:
        """The timer that a parked key would fire next: its earliest, of one domain and then of the other."""
        state = self.state
        for wall in (False, True):
            if found := state.timers[wall].due_of_key(key, state.due_until(wall, key)):
                return found[0][0], wall, found[0][1]
        return None

    def fire_parked(self, key: bytes, timer: TimerItem) -> None:
        """Fire the next due timer of a parked key."""
        self.take_over(key, timer)
        self._fire_alone(key, timer)

    def take_over(self, key: bytes, timer: TimerItem) -> None:
        """A parked key's timer becomes work of the batch, which holds its time from here on."""
        state = self.state
        if not timer[1]:
            self._hold_by_batch(timer[0])
        parked = state.intake.parked[key]
        postponed, parked.due = parked.due, []
        for at, wall, tag in postponed:
            if not wall:
                state.hold_times.passing.remove(min(at, LAST_TIMESTAMP))
            setting = state.timers[wall].get(key, tag)
            if (at, wall, tag) != timer and setting is not None and setting.at == at:
                self.postpone(key, (at, wall, tag))

    def _fire_alone(self, key: bytes, timer: TimerItem) -> None:
        """Fire one timer, and measure it by itself."""
        began = self.state.meter.clock()
        self.state.meter.ran_timers(int(self.fire(key, timer)), began, key)

    def fire(self, key: bytes, timer: TimerItem) -> bool:
        """Fire one timer, which stands in the table; returns whether its hook was called."""
        at, wall, tag = timer
        setting = self.state.timers[wall].get(key, tag)
        assert setting is not None, "a timer that is handed out stays until its batch is sealed"
        batch = self.runner.batch
        context = batch.contexts.get(key) or self.runner.open(key)
        if context is None:
            self.postpone(key, timer)
            return False
        self._aim(key, context, setting, wall)
        batch.records += 1
        batch.size += len(key) + len(tag)
        try:
            outcome = self.state.program.computation.process_timer(context, Timer(tag, at, wall))  # type: ignore[arg-type]
        except HOOK_ERRORS as error:
            self.failed(key, timer, error)
            return True
        if outcome is not None:
            self.returned(key, context, timer, outcome)
        else:
            batch.fired.setdefault(key, []).append(timer)
        return True

    def _aim(self, key: bytes, context: Context[Any], setting: TimerSetting, wall: bool) -> None:
        """What the firing is taken to be caused by: the least and default timestamp of its productions.

        A watermark timer stands at its own time, unless it was held at a later one. A wall firing has no
        event time of its own: it produces at the larger of its hold and the input watermark, or at its hold where
        the input has ended, unless the hook says otherwise.
        """
        hold = effective_hold(setting, wall)
        at = self.state.watermark_of(key) if wall else setting.at
        if wall and at == MAX_TIMESTAMP and hold is not None:
            at = hold
        at = min(at, LAST_TIMESTAMP)
        earliest = at if hold is None else min(hold, LAST_TIMESTAMP)
        context._stamp = context._cause = max(earliest, at)
        context._earliest = min(earliest, self.state.holds.get(key, earliest))
        context._origin = setting.origin
