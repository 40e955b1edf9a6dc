"""Hooks that get many records at once: which records make a batch, and what follows if the hook raises (4.1, 4.2; G1).

All effects go into the contexts of the keys, as from hooks of single records. So nothing else of an interval knows
batches: a context is sealed, undone and tried again as ever.

Invariant: after the hook has raised, none of its effects is left. A key whose context began with the batch has a new
one. What another key has done since the last commit is undone with it (``BlockedKeys.undo_together``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millwheel.sdk.batches.computation import BatchProgram
from millwheel.sdk.batches.context import BatchContext
from millwheel.sdk.batches.records import RecordBatch, RecordForm
from millwheel.sdk.batches.rows import BatchRows
from millwheel.sdk.context import Context
from millwheel.sdk.declarations import DROPPED
from millwheel.sdk.options import LateAction
from millwheel.sdk.records import UNDECODED
from millwheel.worker.interval.blocked_key_table import RecordItem
from millwheel.worker.interval.hooks.failures import HOOK_ERRORS, refuse_result
from millwheel.worker.interval.hooks.runner import MAX_FAILED_HOOKS, HookOutcomes, Runner
from millwheel.worker.interval.hooks.traced_hooks import parts_apart
from millwheel.worker.interval.intake import DeliveryReceipt
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState

__all__ = ["BatchRunner"]


class _Gathered:
    """Records of one delivery for one call of the hook.

    ``done`` has their indexes, with those of records between them that a filter or ``late=`` drops. ``fresh`` are the
    keys whose contexts began with these records.
    """

    def __init__(self, receipt: DeliveryReceipt) -> None:
        self.rows = BatchRows(receipt.delivery.values)
        self.done: list[int] = []
        self.contexts: dict[bytes, Context[Any]] = {}
        self.fresh: set[bytes] = set()


class BatchRunner:
    """Runs records of one delivery in as few calls of the hook as it can."""

    def __init__(self, state: IntervalState, runner: Runner, outcomes: HookOutcomes, program: BatchProgram) -> None:
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._holds = state.holds
        self._blocked = state.blocked
        self._runner = runner
        self._outcomes = outcomes
        self._program = program
        self._waits = 0
        """Records of this run that wait behind their blocked keys."""
        self._calls = 0
        """Records of this run that the hook got. Some come again in parts."""

    def run_records(self, receipt: DeliveryReceipt, indexes: Sequence[int], alone: bool) -> tuple[int, int, int]:
        """Run records of one delivery: see ``Runner.run_hooks``. A sampled record is a batch of its own."""
        form, delivery, traces = (
            self._program.forms.get(receipt.delivery.stream),
            receipt.delivery,
            self._setup.meter.traces,
        )
        if form is None or alone or len(indexes) == 1:
            return self._runner.run_hooks(receipt, indexes, alone)
        sampled = traces.received.get(delivery) if traces is not None and delivery.traces is not None else None
        budget = self._setup.settings.batch_bytes - self._runner.batch.size
        ran = waits = calls = 0
        for part in _parts(indexes, self._program.computation.max_records, sampled or ()):
            if len(part) == 1:
                one = self._runner.run_hooks(receipt, part, False)
            else:
                self._waits = self._calls = 0
                self._run(form, receipt, part)
                one = len(part), self._waits, self._calls
            ran, waits, calls = ran + one[0], waits + one[1], calls + one[2]
            if self._setup.scope.produced_bytes > budget or self._runner.failures >= MAX_FAILED_HOOKS:
                break
        return ran, waits, calls

    def _run(self, form: RecordForm, receipt: DeliveryReceipt, indexes: Sequence[int]) -> None:
        """Run all of these records."""
        delivery, gathered = receipt.delivery, _Gathered(receipt)
        keys, stamps, clocks = delivery.keys, delivery.timestamps, self._clocks
        reads = clocks.bounded or self._setup.program.one_reading[delivery.stream] is not None
        for index in indexes:
            if not reads and (key := keys[index]) in gathered.contexts and (at := stamps[index]) >= clocks.watermark:
                gathered.rows.add(index, key, at, False)  # what ``_take`` does for most records, in fewer steps
                gathered.done.append(index)
            elif not self._take(receipt, index, gathered):
                self._call(form, receipt, gathered)
                gathered = _Gathered(receipt)
                self._take(receipt, index, gathered)
        self._call(form, receipt, gathered)

    def _take(self, receipt: DeliveryReceipt, index: int, gathered: _Gathered) -> bool:
        """Gather a record, or do what there is to do without the hook.

        Returns:
            False: earlier records of its key are gathered, and must run before. Nothing is done.
        """
        delivery, program = receipt.delivery, self._setup.program
        key, stamp, stream = delivery.keys[index], delivery.timestamps[index], delivery.stream
        if key in self._blocked.keys:
            self._set_aside(receipt, index)
            return True
        late = stamp < self._clocks.watermark_of(key)
        action = program.options.late.action
        action = action if late and stream not in program.never_late else LateAction.PROCESS
        value = DROPPED if action is LateAction.DROP else UNDECODED
        reading = program.one_reading[stream] if action is LateAction.PROCESS else None
        if reading is not None:
            try:
                value = reading(delivery.values[index])
            except HOOK_ERRORS as error:
                if key in gathered.contexts:
                    return False
                self._runner.reading_failed(key, RecordItem(receipt, index), error)
                return True
        if value is DROPPED:
            # Behind gathered records of its key it is done with when they are: so undone records keep their order.
            (gathered.done if key in gathered.contexts else self._runner.batch.consumed_of(receipt)).append(index)
            return True
        if action is LateAction.DIVERT:
            return self._divert(receipt, index, gathered)
        return self._gather(receipt, index, late, value, gathered)

    def _gather(self, receipt: DeliveryReceipt, index: int, late: bool, value: Any, gathered: _Gathered) -> bool:
        key = receipt.delivery.keys[index]
        known = self._runner.batch.contexts.get(key)
        context = known or self._runner.open(key)
        if context is None:
            self._set_aside(receipt, index)
            return True
        if known is None:
            gathered.fresh.add(key)
        gathered.contexts[key] = context
        gathered.rows.add(index, key, receipt.delivery.timestamps[index], late)
        if value is not UNDECODED:
            gathered.rows.values.append(value)
        gathered.done.append(index)
        return True

    def _divert(self, receipt: DeliveryReceipt, index: int, gathered: _Gathered) -> bool:
        """Divert a late record, behind the earlier records of its key (G15)."""
        if receipt.delivery.keys[index] in gathered.contexts:
            return False
        _, waits, _ = self._runner.run_hooks(receipt, (index,), False)
        self._waits += waits
        return True

    def _set_aside(self, receipt: DeliveryReceipt, index: int) -> None:
        key = receipt.delivery.keys[index]
        self._blocked.set_aside(key, receipt, index)
        self._waits += 1

    def _call(self, form: RecordForm, receipt: DeliveryReceipt, gathered: _Gathered) -> None:
        """Call the hook for what is gathered."""
        rows, contexts = gathered.rows, gathered.contexts
        if not rows.keys:
            return
        self._calls += len(rows.keys)
        holds = self._holds.of_keys

        def aim(row: int) -> Context[Any]:
            key, stamp = rows.keys[row], rows.timestamps[row]
            context = contexts[key]
            context._stamp = context._earliest = context._cause = stamp
            if holds and (held := holds.get(key, stamp)) < stamp:
                context._earliest = held
            return context

        context: BatchContext[Any] = BatchContext(contexts, rows, aim, self._program.outputs, self._setup.scope)
        try:
            result = self._program.call(context, RecordBatch(form, rows))
            if result is not None:
                refuse_result(f"{type(self._program.computation).__name__}.process_batch", result)
        except HOOK_ERRORS as error:
            self._failed(form, receipt, gathered, error)
            return
        self._runner.batch.consumed_of(receipt).extend(gathered.done)

    def _failed(self, form: RecordForm, receipt: DeliveryReceipt, gathered: _Gathered, error: BaseException) -> None:
        """The hook raised. It is called again for parts of the keys, until one key alone fails.

        A part has all records of its keys, so it needs nothing of the others. A key that has done more since the last
        commit cannot undo this call alone. It runs one record in each commit, like a key that fails.
        """
        keys, done = list(gathered.contexts), gathered.done
        if len(keys) == 1:
            self._runner.batch.consumed_of(receipt).extend(done[:-1])
            self._outcomes.failed(keys[0], RecordItem(receipt, done[-1]), error)
            return
        of_key: dict[bytes, list[RecordItem]] = {key: [] for key in keys if key not in gathered.fresh}
        for index in done:
            if (items := of_key.get(receipt.delivery.keys[index])) is not None:
                items.append(RecordItem(receipt, index))
        if of_key:
            self._outcomes.undo_together(of_key)
        fresh = [key for key in keys if key in gathered.fresh]
        for key in fresh:
            self._runner.close(key)
        half = len(fresh) if of_key else len(fresh) // 2
        for part in (set(fresh[:half]), set(fresh[half:])):
            self._run(form, receipt, [index for index in done if receipt.delivery.keys[index] in part])


def _parts(indexes: Sequence[int], most: int, apart: Any) -> list[Sequence[int]]:
    """The indexes in their order, at most so many together, and some of them apart."""
    runs = [indexes] if not apart else list(parts_apart(indexes, apart))
    return [run[start : start + most] for run in runs for start in range(0, len(run), most)]
