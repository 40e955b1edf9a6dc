"""Keys that wait: for a row, for an asynchronous hook, or for another attempt after a failure.

A hook that raises leaves no trace (its context is dropped whole). The key's work of that batch then
runs alone, one hook a commit, so that the next failure undoes nothing but itself; what still fails
alone is what the failure policy decides about. Records of a parked key keep their order and go on holding the
input watermark; its due timers fire before them, in the order of their times, and hold the output
watermark until then (G5, G6).
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from millwheel.core.time import LAST_TIMESTAMP
from millwheel.sdk.context import UNSET, Context
from millwheel.sdk.errors import StateDamagedError
from millwheel.sdk.model import Record
from millwheel.sdk.options import LateAction
from millwheel.worker.interval.failures import HOOK_ERRORS, Decision, Failures, refuse_result, work_text
from millwheel.worker.interval.firing import Firing
from millwheel.worker.interval.hook_times import AwaitedHook
from millwheel.worker.interval.intake import Item, ParkedKey, Receipt, RecordItem, TimerItem, Wait
from millwheel.worker.interval.runner import Runner
from millwheel.worker.messages import AsyncHook, HookFailed

__all__ = ["Parking"]

_DAMAGED_ROWS: Final = 1_000
"""Of as many damaged rows it is remembered which they are; beyond, the log alone names them."""


class Parking:
    """Parks keys and lets them go on."""

    def __init__(self, runner: Runner, firing: Firing, failures: Failures) -> None:
        self.runner = runner
        self.firing = firing
        self.failures = failures
        self.state = runner.state
        self.stopped = ""
        """Why the computation stands still by its failure policy; empty while it does not."""
        self.again = False
        """Whether work was undone that can be done at once, one by one: perhaps no other event comes."""
        self.damaged: dict[bytes, str] = {}
        """Keys whose rows were found damaged, and why; as many as are worth telling."""
        self.to_await: list[AsyncHook] = []
        self.reports: list[HookFailed] = []
        self._next_hook = 1
        self._hooks: dict[int, tuple[bytes, Context[Any], Item, float, int]] = {}
        """Asynchronous hooks that run or have ended, in the order in which they began: each with when that was by the
        meter's clock, and by the wall clock."""
        self._finished: deque[tuple[int, BaseException | None]] = deque()
        """Asynchronous hooks that have ended, and that no batch has had room for."""
        program = self.state.program
        self._one_by_one = program.record_is_async or program.timer_is_async
        runner.failed = lambda key, receipt, index, error: self.failed(key, (receipt, index), error)
        runner.returned = lambda key, context, receipt, index, result: self._returned(
            key, context, (receipt, index), result
        )
        firing.failed = self.failed
        firing.returned = self._returned

    # Failures.

    def failed(self, key: bytes, item: Item | None, error: BaseException) -> None:
        """A hook of ``key`` raised for ``item`` (None: what the key's hooks left cannot be sealed)."""
        timers, records = self._undo(key)
        if item is not None:
            (timers if len(item) == 3 else records).append(item)  # type: ignore[arg-type]
        parked = self._put_back(key, timers, records)
        if len(timers) + len(records) == 1:
            self._decide(key, parked, timers[0] if timers else records[0], error)
        else:
            self.again = True

    def _undo(self, key: bytes) -> tuple[list[TimerItem], list[RecordItem]]:
        """Drop what this batch did for ``key``; returns the work that it had consumed."""
        batch = self.runner.batch
        context = batch.contexts.pop(key, None)
        batch.dead.discard(key)
        if context is not None:
            context._cell.value = UNSET
            self.state.scope.produced_bytes -= context._produced
        records: list[RecordItem] = []
        for receipt, consumed in batch.consumed:
            keys = receipt.delivery.keys
            mine = [index for index in consumed if keys[index] == key]
            if mine:
                consumed[:] = [index for index in consumed if keys[index] != key]
                records.extend((receipt, index) for index in mine)
        return batch.fired.pop(key, []), records

    def _put_back(self, key: bytes, timers: list[TimerItem], records: list[RecordItem]) -> ParkedKey:
        """Have work that was undone wait with its key, to run alone."""
        intake = self.state.intake
        parked = intake.park(key, Wait.READY)
        for timer in timers:
            self.firing.postpone(key, timer)
        intake.put_back(parked, records)
        parked.alone += len(timers) + len(records)
        return parked

    def _decide(self, key: bytes, parked: ParkedKey, item: Item, error: BaseException) -> None:
        """``item`` failed with nothing else in its context: apply the policy."""
        if parked.failing != item:
            self.failures.clear(parked)
            parked.failing = item
        parked.attempts += 1
        decision, retry_at = self.failures.decide(parked.attempts, self.state.elapsed)
        self.reports.append(self.failures.note(key, parked, item, error, decision, retry_at))
        if decision is Decision.RETRY:
            self.state.intake.retry(key, retry_at)
        elif decision is Decision.STOP:
            self.stopped = self.reports[-1].message
        else:
            self._bury(key, parked, item, error)

    def _bury(self, key: bytes, parked: ParkedKey, item: Item, error: BaseException) -> None:
        """Commit the item's id (or the end of its timer) together with its dead letter."""
        parked.alone = max(0, parked.alone - 1)
        context = self.runner.open(key) if key in self.state.cells else self.runner.open_apart(key)
        assert context is not None, "a key whose hook has run is in the cache"
        self.failures.dead_letter(context, key, item, error, parked.attempts)
        self.runner.batch.dead.add(key)
        if len(item) == 2:
            receipt, index = parked.items.popleft()
            receipt.parked.discard(index)
        else:
            self.firing.take_over(key, item)
        self._consume(key, item)

    # Going on.

    def resume_ready(self) -> None:
        """Let every parked key go on that need not wait any more, as long as the batch has room."""
        while self._finished and not self.runner.batch_full():
            self._adopt(*self._finished.popleft())
        for key in self.state.intake.ready_keys(self.state.elapsed):
            if self.stopped or self.runner.full():
                return
            if key not in self.runner.batch.contexts:
                self._resume(key, self.state.intake.parked[key])

    def _resume(self, key: bytes, parked: ParkedKey) -> None:
        item: Item | None = None
        if parked.alone or (self._one_by_one and parked.items):
            item = self.firing.next_due(key) or (parked.items[0] if parked.items else None)
        if item is not None and len(item) == 2 and self.state.behind:
            return
        if item is None:
            self._let_go(key, parked)
            return
        if item != parked.failing:
            self.failures.clear(parked)
        if len(item) == 3:
            parked.alone = max(0, parked.alone - 1)
            self.firing.fire_parked(key, item)
            return
        context = self.runner.open(key)
        if context is not None:
            parked.alone = max(0, parked.alone - 1)
            parked.items.popleft()
            item[0].parked.discard(item[1])
            self._run_record(key, context, *item)

    def _let_go(self, key: bytes, parked: ParkedKey) -> None:
        """The key waits no more."""
        self.failures.clear(parked)
        self.firing.return_postponed(key)
        self.state.intake.unpark(key)

    def _run_record(self, key: bytes, context: Context[Any], receipt: Receipt, index: int) -> None:
        """Run a record whose context is the key's only one in this batch."""
        state, program, delivery = self.state, self.state.program, receipt.delivery
        stamp, value = delivery.timestamps[index], delivery.values[index]
        context._stamp = context._cause = stamp
        context._earliest = min(stamp, state.holds.get(key, stamp))
        context._origin = (delivery.ids, index)
        late = stamp < state.watermark_of(key)
        self.runner.batch.records += 1
        began = state.meter.clock()
        try:
            if late and program.options.late.action is not LateAction.PROCESS:
                self.runner.apply_late_policy(context, delivery.stream, value)
                self._consume(key, (receipt, index))
                return
            record = Record(key, value, stamp, delivery.stream, program.inputs[delivery.stream], late)  # type: ignore[arg-type]
            outcome = program.computation.process_record(context, record)
        except HOOK_ERRORS as error:
            state.meter.ran_records(1, began, key)
            self.failed(key, (receipt, index), error)
            return
        state.meter.ran_records(1, began, key)
        if outcome is not None:
            self._returned(key, context, (receipt, index), outcome)
        else:
            self._consume(key, (receipt, index))

    def _consume(self, key: bytes, item: Item) -> None:
        batch = self.runner.batch
        if len(item) == 2:
            batch.consumed_of(item[0]).append(item[1])
        else:
            batch.fired.setdefault(key, []).append(item)

    # Rows and asynchronous hooks.

    def row_read(self, key: bytes, encoded: bytes) -> None:
        """The key's row has been read: it may run."""
        self.damaged.pop(key, None)
        self.state.cells.insert(key, encoded)
        self.state.intake.park(key, Wait.READY)

    def row_damaged(self, key: bytes, why: str) -> None:
        """The key's row cannot be read: its next work fails, by the failure policy, as if its hook had raised.

        No hook sees the key without its state, and nothing is written over the row; it is read again at each attempt.
        """
        if len(self.damaged) < _DAMAGED_ROWS:
            self.damaged[key] = why
        parked = self.state.intake.park(key, Wait.READY)
        item = self.firing.next_due(key) or (parked.items[0] if parked.items else None)
        if item is None:
            self._let_go(key, parked)
            return
        # Alone, so that the attempts of one piece of work are counted until it is done.
        parked.alone = max(parked.alone, 1)
        self._decide(key, parked, item, StateDamagedError(why))

    def _returned(self, key: bytes, context: Context[Any], item: Item, result: Any) -> None:
        """A hook returned something: what is to be awaited, if it is ``async def``; else a mistake."""
        program, is_record = self.state.program, len(item) == 2
        if program.record_is_async if is_record else program.timer_is_async:
            self._start_hook(key, context, item, result)
            return
        hook = "process_record" if is_record else "process_timer"
        try:
            refuse_result(f"{type(program.computation).__name__}.{hook}", result)
        except HOOK_ERRORS as error:
            self.failed(key, item, error)

    def _start_hook(self, key: bytes, context: Context[Any], item: Item, coroutine: Any) -> None:
        """User code waits for something: the key is parked, and its context out of the batch, until it ends."""
        self.runner.batch.contexts.pop(key, None)
        self.state.intake.park(key, Wait.HOOK)
        if len(item) == 2:
            item[0].parked.add(item[1])
        elif not item[1]:
            self.state.hold_times.passing.add(min(item[0], LAST_TIMESTAMP))
        number = self._next_hook
        self._next_hook += 1
        self._hooks[number] = (key, context, item, self.state.meter.clock(), self.state.wall)
        self.runner.hooks += 1
        self.to_await.append(AsyncHook(number, coroutine))

    def awaited(self, before: int, count: int) -> list[AwaitedHook]:
        """Up to ``count`` of the asynchronous hooks that began by wall time ``before`` and run still; oldest first."""
        ended = {number for number, _ in self._finished}
        found: list[AwaitedHook] = []
        for number, (key, _, item, _, since) in self._hooks.items():
            if since > before or len(found) == count:
                break
            if number not in ended:
                hook = "process_record" if len(item) == 2 else "process_timer"
                found.append(AwaitedHook(key, hook, work_text(item), since))
        return found

    def hook_finished(self, number: int, error: BaseException | None) -> None:
        """An asynchronous hook has ended: its context will join the batch, or is dropped."""
        self.runner.hooks -= 1
        _, _, item, began, _ = self._hooks[number]
        self.state.meter.awaited(len(item) == 2, began)
        self._finished.append((number, error))

    def _adopt(self, number: int, error: BaseException | None) -> None:
        key, context, item, _, _ = self._hooks.pop(number)
        self.state.intake.park(key, Wait.READY)
        batch = self.runner.batch
        if len(item) == 2:
            item[0].parked.discard(item[1])
        elif not item[1]:
            batch.firing.append(item[0])
        if error is None:
            batch.contexts[key] = context
            batch.records += 1
            batch.size += len(context._cell.encoded) + context._produced
            self._consume(key, item)
            return
        context._cell.value = UNSET
        self.failed(key, item, error if isinstance(error, Exception) else RuntimeError(repr(error)))
