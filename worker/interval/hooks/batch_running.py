"""Hooks that get many records at once: which records make a batch, and what follows if the hook raises (4.1, 4.2; G1).

All effects go into the contexts of the keys, as from hooks of single records. So nothing else of an interval knows
batches: a context is sealed, undone and tried again as ever.

Invariant: after the hook has raised, none of its effects is left. All that the keys of the call have done since the
last commit is undone with it, and runs again (``BlockedKeys.undo_together``). Then each call is a commit of its own. It
gets half as many records as one that failed, or twice as many as one that did not (``CallTrial``). So a record that
fails is found by some tens of calls. It is judged when it fails alone. Why this ends: each commit has work, or the next
call has fewer records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final

from millwheel.rpc.column_keys import key_list
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.batches.column_records import PassedColumns, passed_columns, whole_fields
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
from millwheel.worker.interval.hooks.runner import HookOutcomes, Runner
from millwheel.worker.interval.hooks.traced_hooks import parts_apart
from millwheel.worker.interval.intake import DeliveryReceipt
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import Delivery

__all__ = ["BatchRunner"]

_FORGOTTEN: Final = 0.9
"""What is left of the bytes that records produced, after each call with fewer bytes."""
_FEWEST: Final = 2
"""So many records a call may get in any case: one alone would be no call for several."""
_OVERFULL: Final = 8
"""A call for several records that fills a commit so many times is undone. Its records run again by fewer (G13)."""


class _Gathered:
    """Records of one delivery for one call of the hook.

    ``done`` has their indexes, with those of records between them that a filter or ``late=`` drops.
    """

    def __init__(self, receipt: DeliveryReceipt) -> None:
        self.rows = BatchRows(receipt.delivery.values)
        self.done: list[int] = []
        self.contexts: dict[bytes, Context[Any]] = {}


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
        """Calls of the hook in this run."""
        self._row_bytes = 0.0
        """How many bytes a record produced: of the last call, or nearly those of calls before it if they were more."""

    def run_records(self, receipt: DeliveryReceipt, indexes: Sequence[int], alone: bool) -> tuple[int, int, int]:
        """Run records of one delivery: see ``Runner.run_hooks``. A sampled record is a batch of its own."""
        form, delivery, traces = (
            self._program.forms.get(receipt.delivery.stream),
            receipt.delivery,
            self._setup.meter.traces,
        )
        if form is None or alone:
            return self._runner.run_hooks(receipt, indexes, alone)
        sampled = traces.received.get(delivery) if traces is not None and delivery.traces is not None else None
        scope, failures, budget = self._setup.scope, self._runner.failures, self._runner.budget()
        ran = waits = calls = 0
        for run in [indexes] if not sampled else parts_apart(indexes, sampled):
            start = 0
            while start < len(run):
                part = run[start : start + self._most(budget - scope.produced_bytes)]
                done = self._run_one(receipt, part) if len(part) == 1 else self._run(form, receipt, part)
                start += done[0]
                ran, waits, calls = ran + done[0], waits + done[1], calls + done[2]
                if scope.produced_bytes > budget or self._runner.failures > failures or self._runner.out_of_time():
                    return ran, waits, calls
                if self._runner.trial.rows:
                    return ran, waits, calls  # the next call gets a commit of its own
        return ran, waits, calls

    def _most(self, left: int) -> int:
        """How many records are read for the next call: what they produce should fit into so many bytes."""
        most = min(self._program.computation.max_records, self._runner.read_time.rows)
        return min(most, max(_FEWEST, int(left / self._row_bytes))) if self._row_bytes else most

    def _note_bytes(self, before: int, rows: int) -> None:
        """Some rows have run. ``before``: the bytes that had been produced before them."""
        self._row_bytes = max((self._setup.scope.produced_bytes - before) / rows, self._row_bytes * _FORGOTTEN)

    def _run_one(self, receipt: DeliveryReceipt, part: Sequence[int]) -> tuple[int, int, int]:
        """Run one record as single ones run. It is judged if it fails."""
        before = self._setup.scope.produced_bytes
        done = self._runner.run_hooks(receipt, part, False)
        self._note_bytes(before, 1)
        return done

    def _run(self, form: RecordForm, receipt: DeliveryReceipt, indexes: Sequence[int]) -> tuple[int, int, int]:
        """Run several records as ``_run_many`` does, and measure all that is done for them (G8)."""
        clock, runner = self._setup.meter.clock, self._runner
        began, failures = clock(), runner.failures
        done = self._run_many(form, receipt, indexes)
        runner.read_time.ran(done[0], clock() - began, runner.failures == failures)
        return done

    def _run_many(self, form: RecordForm, receipt: DeliveryReceipt, indexes: Sequence[int]) -> tuple[int, int, int]:
        """Run these records, or some first ones. Returns what ``Runner.run_hooks`` returns.

        It ends before a call that fails, where a call is full, and if records that cannot be read take too long.
        """
        self._waits = self._calls = 0
        delivery, gathered = receipt.delivery, _Gathered(receipt)
        if taken := self._take_all(receipt, indexes, gathered):
            self._call(form, receipt, gathered)
            return taken, 0, self._calls
        keys, stamps, clocks, runner = delivery.keys, delivery.timestamps, self._clocks, self._runner
        gathered, failures, place = _Gathered(receipt), runner.failures, 0
        reads = clocks.bounded or self._setup.program.one_reading[delivery.stream] is not None
        for place, index in enumerate(indexes):
            full = len(gathered.rows.keys) >= runner.call_time.rows
            usual = not (reads or full) and (key := keys[index]) in gathered.contexts
            if usual and (at := stamps[index]) >= clocks.watermark:
                gathered.rows.add(index, key, at, False)  # what ``_take`` does for most records, in fewer steps
                gathered.done.append(index)
            elif full or not self._take(receipt, index, gathered):
                if not self._call(form, receipt, gathered) or runner.out_of_time():
                    return place, self._waits, self._calls
                gathered = _Gathered(receipt)
                self._take(receipt, index, gathered)
            if runner.failures > failures and runner.out_of_time():
                break
        self._call(form, receipt, gathered)
        return place + 1, self._waits, self._calls

    def _take_all(self, receipt: DeliveryReceipt, indexes: Sequence[int], gathered: _Gathered) -> int:
        """Gather these records, as ``_take`` does one by one, in fewer steps.

        Returns:
            How many are done with: all, or those before the first one that is too much for one call (``CallTime``).

            0: none is gathered, because one of them is unusual. Its key is blocked, it is late, or it cannot be
            read. Or the row of a key must be read first: then that key is blocked. Filters have run, and run again one
            by one. Contexts that were opened stay in the batch, without effects.
        """
        if self._blocked.keys or self._clocks.bounded or receipt.held < self._clocks.watermark:
            return 0
        delivery, program, runner, rows = receipt.delivery, self._setup.program, self._runner, gathered.rows
        keys, stamps, passed, read = key_list(delivery.keys), delivery.timestamps, indexes, None
        if (found := self._passed_columns(delivery, indexes)) is not None:
            passed, rows.table = found
        elif (read_all := program.read_all.get(delivery.stream)) is not None:
            try:
                read = read_all([delivery.values[index] for index in indexes])
            except HOOK_ERRORS:
                return 0
            passed = [index for index, value in zip(indexes, read, strict=True) if value is not DROPPED]
            rows.values = read if len(passed) == len(read) else [value for value in read if value is not DROPPED]
        if len(passed) > (most := runner.call_time.rows):
            indexes = indexes[: bisect_left(indexes, passed[most])]
            passed = passed[:most]
            rows.keep(most)
            runner.read_time.lower(len(indexes))
        rows.keys = [keys[index] for index in passed]
        for key in dict.fromkeys(rows.keys):
            context = runner.batch.contexts.get(key) or runner.open(key)
            if context is None:
                return 0
            gathered.contexts[key] = context
        rows.indexes, rows.timestamps = list(passed), [stamps[index] for index in passed]
        rows.late = [False] * len(passed)
        self._take_done(receipt, indexes, gathered, len(passed) < len(indexes))
        return len(indexes)

    def _passed_columns(self, delivery: Delivery, indexes: Sequence[int]) -> PassedColumns | None:
        """What the steps before the hook leave of records that are columns. None: their values must be read."""
        reading, records = self._setup.program.column_readings.get(delivery.stream), delivery.values
        fields = None if reading is None else whole_fields(self._program.forms[delivery.stream].type)
        if reading is None or not reading.steps or fields is None or not isinstance(records, RecordColumns):
            return None
        return passed_columns(reading, fields, records, indexes)

    def _take_done(self, receipt: DeliveryReceipt, indexes: Sequence[int], gathered: _Gathered, dropped: bool) -> None:
        """These records are done with when the call is. A dropped one whose key has no other record is so at once."""
        if not dropped:
            gathered.done.extend(indexes)
            return
        keys, contexts = key_list(receipt.delivery.keys), gathered.contexts
        consume = self._runner.batch.consumed_of(receipt)
        for index in indexes:
            (gathered.done if keys[index] in contexts else consume).append(index)

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
        context = self._runner.batch.contexts.get(key) or self._runner.open(key)
        if context is None:
            self._set_aside(receipt, index)
            return True
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

    def _call(self, form: RecordForm, receipt: DeliveryReceipt, gathered: _Gathered) -> bool:
        """Call the hook for what is gathered. Returns whether it did not fail."""
        rows, contexts = gathered.rows, gathered.contexts
        if not rows.keys:
            return True
        self._calls += 1
        meter, scope, count = self._setup.meter, self._setup.scope, len(rows.keys)
        began, before = meter.clock(), scope.produced_bytes
        context: BatchContext[Any] = BatchContext(contexts, rows, self._aim_at(gathered), self._program.outputs, scope)
        try:
            result = self._program.call(context, RecordBatch(form, rows))
            if result is not None:
                refuse_result(f"{type(self._program.computation).__name__}.process_batch", result)
        except HOOK_ERRORS as error:
            return self._failed(receipt, gathered, error)
        self._note_bytes(before, count)
        if count > 1:
            self._runner.call_time.ran(count, meter.clock() - began)
            if scope.produced_bytes > _OVERFULL * self._setup.settings.batch_bytes:
                meter.records.oversized += 1
                return self._failed(receipt, gathered, None)
        context._order()
        self._runner.batch.consumed_of(receipt).extend(gathered.done)
        return True

    def _aim_at(self, gathered: _Gathered) -> Callable[[int], Context[Any]]:
        rows, contexts, holds = gathered.rows, gathered.contexts, self._holds.of_keys

        def aim(row: int) -> Context[Any]:
            key, stamp = rows.keys[row], rows.timestamps[row]
            context = contexts[key]
            context._stamp = context._earliest = context._cause = stamp
            if holds and (held := holds.get(key, stamp)) < stamp:
                context._earliest = held
            context._cause_id = row
            return context

        return aim

    def _failed(self, receipt: DeliveryReceipt, gathered: _Gathered, error: BaseException | None) -> bool:
        """The hook raised, or it produced too much for one commit (``error`` is None). Returns False.

        A record that was alone is judged. Several run again, by half as many in a call.
        """
        done = gathered.done
        if len(gathered.rows.keys) > 1:
            self._outcomes.undo_together([RecordItem(receipt, index) for index in done])
        elif error is not None:
            self._runner.batch.consumed_of(receipt).extend(done[:-1])
            self._outcomes.failed(gathered.rows.keys[0], RecordItem(receipt, done[-1]), error)
        return False
