"""Blocked keys: they wait for a row, for an asynchronous hook, or for another attempt after a failure.

A hook that raises leaves no effect, because its whole context is dropped. The key's work of that batch then runs alone,
one hook per commit. So the next failure undoes only itself. The failure policy decides about work that fails alone.

Records of a blocked key keep their order and still hold the input watermark. Its due timers fire before its records, in
increasing time, and hold the output watermark until then (G5, G6).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, Final

from millwheel.model.page_keys import row_owner
from millwheel.sdk.context import Context
from millwheel.sdk.effects import Production
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import StateDamagedError
from millwheel.sdk.growing.pages import PagesNeededError
from millwheel.sdk.scope import PAGES_TAG, UNSET, StateCell
from millwheel.worker.interval.blocked_key_table import BlockedKey, Item, RecordItem, TimerItem, Wait
from millwheel.worker.interval.holds import Hold, joined
from millwheel.worker.interval.hooks.failures import (
    HOOK_ERRORS,
    Decision,
    Failures,
    UnkeyedLetterError,
    others_key_problem,
    refuse_result,
)
from millwheel.worker.interval.hooks.firing import Firing
from millwheel.worker.interval.hooks.pane_moving import undo_moves
from millwheel.worker.interval.hooks.runner import Runner
from millwheel.worker.interval.hooks.running_hooks import RunningHooks, StartedHook
from millwheel.worker.interval.hooks.traced_hooks import TracedFiring, TracedOutcomes, TracedRunner
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import HookFailed

__all__ = ["BlockedKeys"]

_DAMAGED_ROWS: Final = 1_000
"""Maximum damaged rows that are listed. Further ones appear in the log only."""


class BlockedKeys:
    """Blocks keys and resumes them. It takes the outcomes of hooks (HookOutcomes).

    It has many attributes: the owners of all data that is undone with a hook.
    """

    def __init__(self, state: IntervalState) -> None:
        self.runner, self.firing = self._hooks(state)
        self.failures = Failures(state)
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._intake = state.intake
        self._timers = state.timers
        self._blocked = state.blocked
        self._cells = state.cells
        self._pages = state.pages
        self._panes = state.panes
        self.stopped = ""
        """Why the failure policy has stopped this interval. Empty while it runs."""
        self.again = False
        """Whether undone work can run at once, one hook per commit. No other event may come to trigger it."""
        self.damaged: dict[bytes, str] = {}
        """Keys whose rows are damaged, each with the reason, up to a maximum."""
        self.running = RunningHooks(state)
        self._unblocked: list[RecordItem] = []
        """The records of keys that were unblocked in this pass. They are in no queue until it ends."""
        self.reports: list[HookFailed] = []

    def _hooks(self, state: IntervalState) -> tuple[Runner, Firing]:
        """What runs records and timers. With traces, it also starts spans."""
        traces = state.meter.traces
        if traces is None:
            runner = Runner(state, self)
            return runner, Firing(state, runner, self)
        outcomes = TracedOutcomes(self, traces)
        traced = TracedRunner(state, outcomes, traces)
        return traced, TracedFiring(state, traced, outcomes, traces)

    # Failures.

    def failed(self, key: bytes, item: Item | None, error: BaseException) -> None:
        """A hook of ``key`` raised for ``item``. None: the changes of the key's hooks cannot be sealed.

        A hook that needs pages of its state runs again when they have been read.
        """
        moved = self.runner.batch.moved.get(key)
        timers, records = self._undo(key)
        only_moved = item is None and moved and not (timers or records)
        if only_moved and (window := self.firing.panes.first_due(key, None)) is not None:
            self.result_failed(key, window.timer, error)  # its result could not be made, and its move not be sealed
            return
        if item is not None:
            if isinstance(item, RecordItem):
                records.append(item)
            else:
                timers.append(item)
        blocked = self._put_back(key, timers, records)
        undone = len(timers) + len(records)
        # The rest of the work that ran together now follows what was undone.
        rest, blocked.together = blocked.together, 0
        if isinstance(error, PagesNeededError):
            blocked.together = undone - 1
            blocked.alone += 1 + rest
            self._blocked.block(key, Wait.STATE)
            self._pages.request(key, error)
            return
        self.runner.failures += 1
        blocked.alone += undone + rest
        self._pages.release(key)
        if undone == 1:
            self._decide(key, blocked, timers[0] if timers else records[0], error)
        else:
            self.again = True

    def result_failed(self, key: bytes, timer: TimerItem, error: BaseException) -> None:
        """The result of a pane by columns cannot be made now, and its pane cannot move to the state of its key.

        The failure policy decides, as for a timer whose hook fails. ``timer``: what the pane stands for.
        """
        self.runner.failures += 1
        self._decide(key, self._blocked.block(key, Wait.READY), timer, error)

    def undo_together(self, records: Sequence[RecordItem]) -> None:
        """A call for several records failed. Undo all that their keys did in this batch. ``records``: what it got.

        Their timers are due again, and their records are at the front of the queue, in order. So they run again, by
        fewer records in a call. No record is judged by a failure that another one may have caused.
        """
        self.runner.failures += 1
        keys = dict.fromkeys(receipt.delivery.keys[index] for receipt, index in records)
        again = [*self._take_consumed(keys), *records]
        self.runner.trial.failed(len(records), len(again))
        for key in keys:
            self._drop(key)
            if timers := self.runner.batch.fired.pop(key, []):
                self._intake.requeue(self._unblock(key, self._put_back(key, timers, [])))
        for receipt, index in again:
            self._intake.set_aside(receipt, index)
        self._intake.requeue(again)
        self.runner.undone = self.again = True

    def _undo(self, key: bytes) -> tuple[list[TimerItem], list[RecordItem]]:
        """Drop what this batch did for ``key``. Returns the timers and records that it had consumed."""
        self._drop(key)
        return self.runner.batch.fired.pop(key, []), self._take_consumed((key,))

    def _drop(self, key: bytes) -> None:
        """Drop the effects of the key's hooks in this batch."""
        batch = self.runner.batch
        context = batch.contexts.pop(key, None)
        batch.given_up.discard(key)
        if context is not None:
            context._cell.value = UNSET
            self._setup.scope.produced_bytes -= context._produced
            undo_moves(self._panes, key, batch.moved.pop(key, ()))

    def _take_consumed(self, keys: Container[bytes]) -> list[RecordItem]:
        """Take the records of some keys out of those that this batch has consumed, in order."""
        records: list[RecordItem] = []
        for receipt, consumed in self.runner.batch.consumed:
            self.runner.searched += len(consumed)
            names = receipt.delivery.keys
            mine = [index for index in consumed if names[index] in keys]
            if mine:
                consumed[:] = [index for index in consumed if names[index] not in keys]
                records.extend(RecordItem(receipt, index) for index in mine)
        return records

    def _put_back(self, key: bytes, timers: list[TimerItem], records: list[RecordItem]) -> BlockedKey:
        """Block the key with its undone work."""
        blocked = self._blocked.block(key, Wait.READY)
        for timer in timers:
            self.firing.postpone(key, timer)
        self._blocked.put_back(blocked, records)
        return blocked

    def _decide(self, key: bytes, blocked: BlockedKey, item: Item, error: BaseException) -> None:
        """Apply the failure policy to ``item``, which failed with nothing else in its context."""
        if blocked.failing != item:
            self.failures.clear(blocked)
            blocked.failing = item
        blocked.attempts += 1
        decision = self.failures.decide(blocked.attempts)
        letter: Production | None = None
        unkeyed = "" if decision is Decision.RETRY else others_key_problem(error)
        if decision is Decision.DEAD_LETTER and not unkeyed:
            try:
                letter = self.failures.dead_letter(key, item, error, blocked.attempts)
            except UnkeyedLetterError as refused:
                unkeyed = str(refused)
        if unkeyed:  # retry, so that the work is neither lost nor given up
            decision = Decision.RETRY
        next_attempt = self.failures.next_attempt(blocked.attempts) if decision is Decision.RETRY else None
        self.reports.append(self.failures.note(key, blocked, item, error, decision, next_attempt, unkeyed))
        if letter is not None:
            self._bury(key, blocked, item, letter)
        elif next_attempt is not None:
            self._blocked.retry(key, next_attempt)
        else:
            self.stopped = self.reports[-1].message

    def _bury(self, key: bytes, blocked: BlockedKey, item: Item, letter: Production) -> None:
        """Commit the dead letter together with the record's id, the end of the timer or that of the pane."""
        is_cached = key in self._cells
        context = self.runner.open(key) if is_cached else self.runner.open_apart(key)
        assert context is not None, "a key whose hook has run is in the cache"
        context._caused_by(letter.cause_id)
        context._add(letter)
        self.runner.batch.given_up.add(key)
        if (window := self.firing.panes.of_timer(key, item)) is not None:
            self.firing.take_over(key, window.timer)
            self.firing.panes.give_up(window, key)
            return
        blocked.alone = max(0, blocked.alone - 1)
        if isinstance(item, RecordItem):
            receipt, index = blocked.items.popleft()
            receipt.blocked.discard(index)
        else:
            self.firing.take_over(key, item)
            if is_cached:
                self.firing.forget(key, context, item)
        self._consume(key, item)

    # Resuming.

    def resume_ready(self) -> None:
        """Resume every blocked key that can run, as long as the batch has room.

        The records of unblocked keys return to the queue together, so that one pass runs what was read at once.
        """
        while self.running.ended and not self.runner.batch_full():
            self._adopt(*self.running.take_ended())
        for key in self._blocked.ready_keys(self._clocks.elapsed):
            if self.stopped or self.runner.full():
                break
            if key not in self.runner.batch.contexts:
                self._resume(key, self._blocked.keys[key])
                self._run_together(key)
        if self._unblocked:
            records, self._unblocked = self._unblocked, []
            self._intake.requeue(records)

    def _resume(self, key: bytes, blocked: BlockedKey) -> None:
        item: Item | None = None
        program = self._setup.program
        if blocked.alone or blocked.together or ((program.record_is_async or program.timer_is_async) and blocked.items):
            item = self.firing.next_due(key) or (blocked.items[0] if blocked.items else None)
        if isinstance(item, RecordItem) and self._timers.behind:
            return
        window = self.firing.panes.first_due(key, item)
        if window is not None and (item is not None or window.timer == blocked.failing):
            self.firing.panes.produce_blocked(window, key)
            return
        if item is None:
            self._unblocked += self._unblock(key, blocked)
            return
        if item != blocked.failing:
            if blocked.failing is not None and not isinstance(item, RecordItem) and item[2] == PAGES_TAG:
                # It runs between two attempts, and changes nothing that these see. So they are counted on.
                self.firing.fire_blocked(key, item)
                return
            self.failures.clear(blocked)
        if not isinstance(item, RecordItem):
            blocked.one_runs()
            self.firing.fire_blocked(key, item)
            return
        if (self.runner.batch.contexts.get(key) or self.runner.open(key)) is not None:
            blocked.one_runs()
            blocked.items.popleft()
            item.receipt.blocked.discard(item.record)
            self.runner.run_alone(item.receipt, item.record)

    def _run_together(self, key: bytes) -> None:
        """Run the next hooks of the key in the batch of the first, as far as they run together and none fails."""
        batch = self.runner.batch
        while (blocked := self._blocked.keys.get(key)) is not None and not self.runner.full():
            left, due = blocked.together, self.firing.next_due(key)
            if not (left and key in batch.contexts and key not in batch.given_up and (due or blocked.items)):
                return
            if due is not None and not self.firing.may_fire(key, due):
                return
            self._resume(key, blocked)
            if blocked.together == left:
                return

    def _unblock(self, key: bytes, blocked: BlockedKey) -> Iterable[RecordItem]:
        """Unblock the key. The caller returns its records to the queue."""
        self.failures.clear(blocked)
        self._pages.release(key)
        self.firing.return_postponed(key)
        return self._blocked.unblock(key)

    def _consume(self, key: bytes, item: Item) -> None:
        batch = self.runner.batch
        if isinstance(item, RecordItem):
            batch.consumed_of(item.receipt).append(item.record)
        else:
            batch.fired.setdefault(key, []).append(item)

    # Rows and asynchronous hooks.

    def row_read(self, key: bytes, encoded: bytes) -> None:
        """The key's row, or a row of one of its pages, has been read, so the key may run."""
        self.damaged.pop(key, None)
        self._cells.insert(key, encoded)
        self._blocked.block(row_owner(key), Wait.READY)

    def row_damaged(self, key: bytes, why: str) -> None:
        """A row of the key cannot be read. Its next work fails by the failure policy, as if its hook had raised.

        No hook runs for the key without its state, and nothing overwrites the row. Each attempt reads the row again.
        If the row is a page, only a hook that needs it fails.
        """
        if len(self.damaged) < _DAMAGED_ROWS:
            self.damaged[key] = why
        owner = row_owner(key)
        blocked = self._blocked.block(owner, Wait.READY)
        if owner != key:
            self._pages.page_damaged(owner, key, why)
            return
        item = self.firing.next_due(key) or (blocked.items[0] if blocked.items else None)
        panes = self.firing.panes
        if (window := panes.first_due(key, item)) is not None:
            if panes.mover.asked.get(key) == window.timer:
                self.result_failed(key, window.timer, StateDamagedError(why))
            else:  # its result needs no state. If it cannot be made, the row is read for it
                panes.produce_blocked(window, key)
            return
        if item is None:
            self._intake.requeue(self._unblock(key, blocked))
            return
        # The work runs alone, so that its attempts are counted until it is done.
        blocked.alone, blocked.together = max(blocked.alone + blocked.together, 1), 0
        self._decide(key, blocked, item, StateDamagedError(why))

    def returned(self, key: bytes, context: Context[Any], item: Item, result: Any) -> None:
        """A hook returned a value. If the hook is ``async def``, await the value. Otherwise the hook fails."""
        program, is_record = self._setup.program, isinstance(item, RecordItem)
        if program.record_is_async if is_record else program.timer_is_async:
            self._start_hook(key, context, item, result)
            return
        hook = program.record_hook if is_record else "process_timer"
        try:
            refuse_result(f"{type(program.computation).__name__}.{hook}", result)
        except HOOK_ERRORS as error:
            self.failed(key, item, error)

    def _start_hook(self, key: bytes, context: Context[Any], item: Item, coroutine: Any) -> None:
        """Start an asynchronous hook. Its key is blocked and its context is outside the batch until it ends."""
        self.runner.batch.contexts.pop(key, None)
        self._blocked.block(key, Wait.HOOK)
        if isinstance(item, RecordItem):
            self._intake.set_aside(item.receipt, item.record)
        self.running.start(key, context, item, coroutine)
        self.runner.async_running += 1

    def holds(self) -> Iterator[Hold]:
        """The holds of due timers that wait with their blocked key, and of those in an asynchronous hook."""
        for blocked in self._blocked.keys.values():
            if blocked.hold is not None:
                yield blocked.hold
        yield from self.running.holds()

    def hook_finished(self, number: int, error: BaseException | None) -> None:
        """An asynchronous hook has ended. Its context joins a later batch or is dropped."""
        self.runner.async_running -= 1
        self.running.end(number, error)

    def _adopt(self, hook: StartedHook, error: BaseException | None) -> None:
        key, context, item, hold = hook.key, hook.context, hook.item, hook.hold
        self._blocked.block(key, Wait.READY)
        batch = self.runner.batch
        if isinstance(item, RecordItem):
            item.receipt.blocked.discard(item.record)
        if hold is not None:
            batch.hold = joined(batch.hold, hold)
        if error is None:
            batch.contexts[key] = context
            batch.records += 1
            batch.size += len(context._cell.encoded) + context._produced
            self._consume(key, item)
            return
        context._cell.value = UNSET
        # A task of the hook may continue. So may the hook, if it ignored its cancellation. Its context gets a cell that
        # the interval does not use, so later changes by the hook have no effect.
        context._cell = StateCell(context._cell.encoded)
        self.failed(key, item, error if isinstance(error, Exception) else RuntimeError(error_message(error)))
