"""Hooks that get many records at once: which records make a batch, and what follows if the hook raises (4.1, 4.2; G1).

All effects go into the contexts of the keys, as from hooks of single records. So nothing else of an interval knows
batches: a context is sealed, undone and tried again as ever.

Invariant: after the hook has raised, none of its effects is left. All that the keys of the call have done since the
last commit is undone with it, and runs again (``BlockedKeys.undo_together``). Then each call is a commit of its own. It
gets half as many records as one that failed, or twice as many as one that did not (``CallTrial``). So a record that
fails is found by some tens of calls. It is judged when it fails alone. Why this ends: each commit has work, or the next
call has fewer records.

Invariant (G8): a step reads no record for a call whose time is over, or that is full. Filters and functions before the
hook are the user's code, and may take long. So the clock is looked at behind each record that is read, and nothing is
foreseen. What is not read stays in the queue. *Who may break it:* one record whose function takes long by itself. Steps
that are expressions run on columns, for all records at once: about a microsecond for each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import inf
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
        self._ends = inf
        """When the time of this run is over: what it has read by then makes its call."""
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
                part = run[start : start + self._program.computation.max_records]
                if len(part) == 1:
                    done = self._run_one(receipt, part)
                else:
                    done = self._run_many(form, receipt, part, self._most(budget - scope.produced_bytes))
                start += done[0]
                ran, waits, calls = ran + done[0], waits + done[1], calls + done[2]
                if scope.produced_bytes > budget or self._runner.failures > failures or self._runner.out_of_time():
                    return ran, waits, calls
                if self._runner.trial.rows:
                    return ran, waits, calls  # the next call gets a commit of its own
        return ran, waits, calls

    def _most(self, left: int) -> int:
        """How many records the next call may get, by its time. What they produce should fit into so many bytes."""
        most = self._runner.call_time.rows
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

    def _run_many(
        self, form: RecordForm, receipt: DeliveryReceipt, indexes: Sequence[int], most: int
    ) -> tuple[int, int, int]:
        """Run these records, or some first ones, with at most one call. Returns what ``Runner.run_hooks`` returns."""
        self._waits, self._ends = 0, self._setup.meter.clock() + self._runner.call_time.limit
        gathered = _Gathered(receipt)
        taken = self._take_all(receipt, indexes, gathered, most)
        if not taken:
            gathered = _Gathered(receipt)
            taken = self._take_each(receipt, indexes, gathered, most)
        return taken, self._waits, self._call(form, receipt, gathered)

    def _take_each(self, receipt: DeliveryReceipt, indexes: Sequence[int], gathered: _Gathered, most: int) -> int:
        """Gather records one by one, until the call is full or must come first. Returns how many are done with."""
        delivery, clocks, clock = receipt.delivery, self._clocks, self._setup.meter.clock
        keys, stamps = delivery.keys, delivery.timestamps
        reads = clocks.bounded or self._setup.program.one_reading[delivery.stream] is not None
        for place, index in enumerate(indexes):
            if len(gathered.rows.keys) >= most:
                return place
            if not reads and (key := keys[index]) in gathered.contexts and (at := stamps[index]) >= clocks.watermark:
                gathered.rows.add(index, key, at, False)  # what ``_take`` does for most records, in fewer steps
                gathered.done.append(index)
            elif not self._take(receipt, index, gathered):
                return place
            elif reads and clock() > self._ends:
                return place + 1
        return len(indexes)

    def _take_all(self, receipt: DeliveryReceipt, indexes: Sequence[int], gathered: _Gathered, most: int) -> int:
        """Gather these records, as ``_take_each`` does, in fewer steps.

        Returns:
            How many are done with: those before the first one that is too much for the call, or is unusual. That one
            cannot be read, or the row of its key must be read first: then the key is blocked.

            0: none is gathered. The first one is unusual, or one of them may be late, or keys are blocked.
        """
        if self._blocked.keys or self._clocks.bounded or receipt.held < self._clocks.watermark:
            return 0
        delivery, runner, rows = receipt.delivery, self._runner, gathered.rows
        keys, stamps, passed = key_list(delivery.keys), delivery.timestamps, indexes
        if (found := self._passed_columns(delivery, indexes)) is not None:
            passed, rows.table = found
        elif (reading := self._setup.program.one_reading[delivery.stream]) is not None:
            indexes, passed = self._read(reading, delivery, indexes, rows, most)
        rows.keys = [keys[index] for index in passed[:most]]
        for key in dict.fromkeys(rows.keys):
            context = runner.batch.contexts.get(key) or runner.open(key)
            if context is None:
                most = rows.keys.index(key)
                break
            gathered.contexts[key] = context
        if len(passed) > most:
            indexes, passed = indexes[: bisect_left(indexes, passed[most])], passed[:most]
            rows.keep(most)
        rows.indexes, rows.timestamps = list(passed), [stamps[index] for index in passed]
        rows.late = [False] * len(passed)
        self._take_done(receipt, indexes, gathered, len(passed) < len(indexes))
        return len(indexes)

    def _read(
        self, reading: Callable[[bytes], Any], delivery: Delivery, indexes: Sequence[int], rows: BatchRows, most: int
    ) -> tuple[Sequence[int], list[int]]:
        """Read records through filters and functions, into ``rows``, until as many have passed as the call may get.

        Returns:
            The indexes that are read: those before one that cannot be read, or those until the time of the call was
            over. And the indexes of those that have passed.
        """
        clock, ends, encoded, values = self._setup.meter.clock, self._ends, delivery.values, rows.values
        passed: list[int] = []
        for place, index in enumerate(indexes):
            try:
                value = reading(encoded[index])
            except HOOK_ERRORS:
                return indexes[:place], passed
            if value is not DROPPED:
                passed.append(index)
                values.append(value)
            if len(passed) >= most or clock() > ends:
                return indexes[: place + 1], passed
        return indexes, passed

    def _passed_columns(self, delivery: Delivery, indexes: Sequence[int]) -> PassedColumns | None:
        """What the steps before the hook leave of records that are columns. None: their values must be read."""
        reading, records = self._setup.program.column_readings.get(delivery.stream), delivery.values
        if reading is None or not reading.steps or not isinstance(records, RecordColumns):
            return None
        fields = whole_fields(self._program.forms[delivery.stream].type)
        return None if isinstance(fields, str) else passed_columns(reading, fields, records, indexes)

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

    def _call(self, form: RecordForm, receipt: DeliveryReceipt, gathered: _Gathered) -> int:
        """Call the hook for what is gathered. Returns how many calls that are: none or one."""
        rows, contexts = gathered.rows, gathered.contexts
        if not rows.keys:
            return 0
        meter, scope, count = self._setup.meter, self._setup.scope, len(rows.keys)
        began, before = meter.clock(), scope.produced_bytes
        context: BatchContext[Any] = BatchContext(contexts, rows, self._aim_at(gathered), self._program.outputs, scope)
        try:
            result = self._program.call(context, RecordBatch(form, rows))
            if result is not None:
                refuse_result(f"{type(self._program.computation).__name__}.process_batch", result)
        except HOOK_ERRORS as error:
            self._failed(receipt, gathered, error)
            return 1
        self._note_bytes(before, count)
        if count > 1:
            self._runner.call_time.ran(count, meter.clock() - began)
            if scope.produced_bytes > _OVERFULL * self._setup.settings.batch_bytes:
                meter.records.oversized += 1
                self._failed(receipt, gathered, None)
                return 1
        context._order()
        self._runner.batch.consumed_of(receipt).extend(gathered.done)
        return 1

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

    def _failed(self, receipt: DeliveryReceipt, gathered: _Gathered, error: BaseException | None) -> None:
        """The hook raised, or it produced too much for one commit (``error`` is None).

        A record that was alone is judged. Several run again, by half as many in a call.
        """
        done = gathered.done
        if len(gathered.rows.keys) > 1:
            self._outcomes.undo_together([RecordItem(receipt, index) for index in done])
        elif error is not None:
            self._runner.batch.consumed_of(receipt).extend(done[:-1])
            self._outcomes.failed(gathered.rows.keys[0], RecordItem(receipt, done[-1]), error)
