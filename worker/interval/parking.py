"""Keys that wait: for a row, for an asynchronous hook, or for another attempt after a failure.

A hook that raises leaves no trace (its context is dropped whole). The key's work of that batch then
runs alone, one hook a commit, so that the next failure undoes nothing but itself; what still fails
alone is what the failure policy decides about. Work of a parked key keeps its order (G5), its records
keep holding the input watermark and its timers the output watermark.
"""

from __future__ import annotations

from typing import Any

from millwheel.sdk.context import UNSET, Context
from millwheel.sdk.model import Record
from millwheel.worker.interval.failures import Decision, Failures
from millwheel.worker.interval.firing import Firing
from millwheel.worker.interval.intake import Item, ParkedKey, Receipt, Wait
from millwheel.worker.interval.runner import Runner
from millwheel.worker.messages import AsyncHook, HookFailed

__all__ = ["Parking"]


class Parking:
    """Parks keys and lets them go on."""

    def __init__(self, runner: Runner, firing: Firing, failures: Failures) -> None:
        self.runner = runner
        self.firing = firing
        self.failures = failures
        self.state = runner.state
        self.now = 0
        self.stopped = ""
        """Why the computation stands still by its failure policy; empty while it does not."""
        self.to_await: list[AsyncHook] = []
        self.reports: list[HookFailed] = []
        self._next_hook = 1
        self._hooks: dict[int, tuple[bytes, Context[Any], Item]] = {}
        runner.failed = lambda key, receipt, index, error: self.failed(key, (receipt, index), error)
        runner.start_hook = lambda key, context, receipt, index, coroutine: self._start_hook(
            key, context, (receipt, index), coroutine
        )
        firing.failed = self.failed
        firing.start_hook = self._start_hook

    # Failures.

    def failed(self, key: bytes, item: Item | None, error: Exception) -> None:
        """A hook of ``key`` raised for ``item`` (None: what the key's hooks left cannot be sealed)."""
        undone = self._undo(key)
        parked = self.state.intake.park(key, Wait.READY)
        if item is not None:
            undone.append(item)
        self._hold_timers(undone)
        self.state.intake.put_back(parked, undone)
        parked.alone += len(undone)
        if len(undone) == 1:
            self._decide(key, parked, error)

    def _undo(self, key: bytes) -> list[Item]:
        """Drop what this batch did for ``key``; returns the work that it had consumed: timers, then records."""
        batch = self.runner.batch
        context = batch.contexts.pop(key, None)
        if context is not None:
            context._cell.value = UNSET
        undone: list[Item] = list(batch.fired.pop(key, ()))
        for receipt, consumed in batch.consumed:
            keys = receipt.delivery.keys
            mine = [index for index in consumed if keys[index] == key]
            if mine:
                consumed[:] = [index for index in consumed if keys[index] != key]
                undone.extend((receipt, index) for index in mine)
        return undone

    def _hold_timers(self, items: list[Item]) -> None:
        for item in items:
            if len(item) == 3 and not item[1]:
                self.state.hold_times.add(item[0])

    def _decide(self, key: bytes, parked: ParkedKey, error: Exception) -> None:
        """The first item of ``parked`` failed with nothing else in its context: apply the policy."""
        item = parked.items[0]
        parked.attempts += 1
        decision, retry_at = self.failures.decide(parked.attempts, self.now)
        self.reports.append(self.failures.describe(key, item, error, parked.attempts, decision))
        if decision is Decision.RETRY:
            parked.retry_at = retry_at
        elif decision is Decision.STOP:
            self.stopped = self.reports[-1].message
        else:
            self._bury(key, parked, error)

    def _bury(self, key: bytes, parked: ParkedKey, error: Exception) -> None:
        """Commit the first item's id (or the end of its timer) together with its dead letter."""
        item = self._pop(parked)
        context = self.runner.open(key)
        assert context is not None, "a key whose hook has run is in the cache"
        self.failures.dead_letter(context, key, item, error, parked.attempts)
        self.runner.batch.dead += 1
        self._consume(key, item)
        parked.attempts = 0

    # Going on.

    def resume_ready(self) -> None:
        """Let every parked key go on that need not wait any more; call it when a batch begins."""
        for key, parked in list(self.state.intake.parked.items()):
            if parked.wait is Wait.READY and parked.retry_at <= self.now and key not in self.runner.batch.contexts:
                self._resume(key, parked)

    def next_retry(self) -> int | None:
        """When a parked key's next attempt is due."""
        times = [
            p.retry_at for p in self.state.intake.parked.values() if p.wait is Wait.READY and p.retry_at > self.now
        ]
        return min(times, default=None)

    def _resume(self, key: bytes, parked: ParkedKey) -> None:
        intake = self.state.intake
        one_by_one = self.state.program.record_is_async or self.state.program.timer_is_async
        if parked.items and (parked.alone or one_by_one):
            self._run_alone(key, parked)
            return
        self.firing.return_postponed(key)
        del intake.parked[key]
        intake.to_line(parked.items)

    def _run_alone(self, key: bytes, parked: ParkedKey) -> None:
        """Run the key's first item; its context is then the key's only one in this batch."""
        context = self.runner.open(key)
        if context is None:
            return
        item = self._pop(parked)
        attempts = parked.attempts
        if len(item) == 3:
            del self.runner.batch.contexts[key]
            self.firing.fire(key, item)
        else:
            self._run_record(key, context, item[0], item[1])
        if parked.attempts == attempts and parked.wait is Wait.READY:
            parked.attempts = 0

    def _pop(self, parked: ParkedKey) -> Item:
        item = parked.items.popleft()
        parked.alone = max(0, parked.alone - 1)
        if len(item) == 2:
            item[0].parked.discard(item[1])
        elif not item[1]:
            # From here on the batch holds its time.
            self.runner.batch.firing.append(item[0])
        return item

    def _run_record(self, key: bytes, context: Context[Any], receipt: Receipt, index: int) -> None:
        program, delivery = self.state.program, receipt.delivery
        stamp = delivery.timestamps[index]
        context._stamp = context._earliest = context._cause = stamp
        context._origin = (delivery.ids, index)
        late = stamp < self.state.watermark
        decode = program.inputs[delivery.stream]
        record = Record(key, delivery.values[index], stamp, delivery.stream, decode, late)  # type: ignore[arg-type]
        self.runner.batch.records += 1
        self.runner.batch.late += late
        try:
            outcome = program.computation.process_record(context, record)  # type: ignore[func-returns-value]
        except Exception as error:
            self.failed(key, (receipt, index), error)
            return
        if program.record_is_async:
            self._start_hook(key, context, (receipt, index), outcome)
        else:
            self._consume(key, (receipt, index))

    def _consume(self, key: bytes, item: Item) -> None:
        batch = self.runner.batch
        if len(item) == 2:
            batch.consumed.append((item[0], [item[1]]))
        else:
            batch.fired.setdefault(key, []).append(item)

    # Rows and asynchronous hooks.

    def row_read(self, key: bytes, encoded: bytes) -> None:
        """The key's row has been read: it may run."""
        self.state.cells.insert(key, encoded)
        self.state.intake.parked[key].wait = Wait.READY

    def _start_hook(self, key: bytes, context: Context[Any], item: Item, coroutine: Any) -> None:
        """User code waits for something: the key is parked, and its context out of the batch, until it ends."""
        self.runner.batch.contexts.pop(key, None)
        self.state.intake.park(key, Wait.HOOK)
        if len(item) == 2:
            item[0].parked.add(item[1])
        else:
            self._hold_timers([item])
        number = self._next_hook
        self._next_hook += 1
        self._hooks[number] = (key, context, item)
        self.to_await.append(AsyncHook(number, coroutine))

    def hook_finished(self, number: int, error: BaseException | None) -> None:
        """An asynchronous hook has ended: its context joins the batch, or is dropped."""
        key, context, item = self._hooks.pop(number)
        parked = self.state.intake.parked[key]
        parked.wait = Wait.READY
        if len(item) == 2:
            item[0].parked.discard(item[1])
        elif not item[1]:
            self.runner.batch.firing.append(item[0])
        if error is None:
            self.runner.batch.contexts[key] = context
            self.runner.batch.records += 1
            parked.attempts = 0
            self._consume(key, item)
            return
        context._cell.value = UNSET
        self.failed(key, item, error if isinstance(error, Exception) else RuntimeError(repr(error)))
