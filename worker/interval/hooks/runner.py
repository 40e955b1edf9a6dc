"""Running hooks: records and timers run on cached state, into the batch that becomes the next commit.

Effects of a hook stay in its context until the batch is sealed. If a hook raises, the context of its key in this batch
is dropped. The key's state is decoded again from the last sealed commit. The key is blocked with all its work of this
batch, in order. Then it runs one hook per commit (``blocked_keys.py``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final, Protocol

from millwheel.sdk.batches.computation import BatchComputation
from millwheel.sdk.batches.records import RecordForm
from millwheel.sdk.context import Context
from millwheel.sdk.declarations import DROPPED
from millwheel.sdk.effects import ProducedColumns, Production
from millwheel.sdk.options import LateAction
from millwheel.sdk.records import UNDECODED, Record
from millwheel.worker.interval.blocked_key_table import Item, RecordItem, TimerItem, Wait
from millwheel.worker.interval.cache.cells import KeyCell
from millwheel.worker.interval.call_time import CallTime, CallTrial
from millwheel.worker.interval.holds import Hold
from millwheel.worker.interval.hook_meter import BatchTime, HookTime
from millwheel.worker.interval.hooks.failures import HOOK_ERRORS
from millwheel.worker.interval.hooks.holding_records import next_holding
from millwheel.worker.interval.intake import DeliveryReceipt, QueuedRecords
from millwheel.worker.interval.panes.table import WindowPanes
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import Delivery

__all__ = ["FIRST_CALLS", "MAX_FAILED_HOOKS", "MAX_SEARCHED_RECORDS", "HookBatch", "HookOutcomes", "Runner", "fitting"]

FIRST_CALLS: Final = 10
"""The most of a hook's calls in an owner's first batch with it. The very first call runs alone, and is measured."""
MAX_FAILED_HOOKS: Final = 1_000
"""Hooks that may fail in one step of the core: some tens of milliseconds. The rest runs in the next step (G8)."""
MAX_SEARCHED_RECORDS: Final = 1_000_000
"""Records that may be searched in one step for those of keys whose hooks have failed. It takes about as long. Each key
is searched in the whole batch."""
_PACED_CALLS: Final = 100
"""Calls from which on the mean of a batch is the pace of its hook. Before, the pace is the mean of all calls so far."""
_CONTEXT_BYTES: Final = 64
"""Bytes counted in a batch for each key besides the key and its state: framing in the journal entry."""


RunRecords = Callable[[DeliveryReceipt, Sequence[int], bool], tuple[int, int, int]]
"""Runs records of one delivery: see ``Runner.run_hooks``."""


class HookBatch:
    """What hooks did since the last batch: the contexts by key, and the records and timers that they consumed.

    ``Sealer.seal`` turns it into a commit. In a computation with weak productions it may join the open commit instead.

    ``hold`` covers the times of the event-time timers that fire in the batch. None: there are none.
    """

    __slots__ = (
        *(
            "added",
            "changed",
            "consumed",
            "consumed_bytes",
            "contexts",
            "given_up",
            "fired",
            "hold",
            "moved",
            "records",
            "results",
            "size",
        ),
    )

    def __init__(self) -> None:
        self.hold: Hold | None = None
        self.contexts: dict[bytes, Context[Any]] = {}
        self.consumed: list[tuple[DeliveryReceipt, list[int]]] = []
        self.added: list[tuple[DeliveryReceipt, list[int]]] = []
        """The records that were added to panes. No failing hook undoes that."""
        self.results: list[ProducedColumns | tuple[bytes, list[Production]]] = []
        """The results of panes: of many keys, or of one that is with them."""
        self.changed: list[KeyCell] = []
        """The cells of the keys whose states have changed, in the order in which they were encoded."""
        self.moved: dict[bytes, list[WindowPanes]] = {}
        """The windows whose panes were moved to the states of their keys, by key."""
        self.fired: dict[bytes, list[TimerItem]] = {}
        self.records = 0
        self.consumed_bytes = 0
        """Bytes of the records that have run. They are in the entry only as far as states keep them."""
        self.size = 0
        """The size of the keys with contexts and of their states, as they were before the batch."""
        self.given_up: set[bytes] = set()
        """Keys with a record or timer that was given up. There is at most one for each key, because it runs alone."""

    def __bool__(self) -> bool:
        if self.contexts or self.fired or self.added or self.results:
            return True
        return bool(self.consumed and any(indexes for _, indexes in self.consumed))

    def added_of(self, receipt: DeliveryReceipt) -> list[int]:
        """The list of those indexes of ``receipt`` that were added to panes."""
        if not self.added or self.added[-1][0] is not receipt:
            self.added.append((receipt, []))
        return self.added[-1][1]

    def consumed_of(self, receipt: DeliveryReceipt) -> list[int]:
        """The list of those indexes of ``receipt`` that have run.

        An empty last list is dropped first. While all hooks fail or wait, no commit takes the lists, and empty ones
        would collect (G13).
        """
        if self.consumed:
            last, indexes = self.consumed[-1]
            if last is receipt:
                return indexes
            if not indexes:
                self.consumed.pop()
        self.consumed.append((receipt, []))
        return self.consumed[-1][1]


class HookOutcomes(Protocol):
    """Takes the outcomes of hooks that have not simply returned (``blocked_keys.py``)."""

    def failed(self, key: bytes, item: Item, error: BaseException) -> None:
        """The hook of ``key`` raised for ``item``."""

    def returned(self, key: bytes, context: Context[Any], item: Item, result: Any) -> None:
        """The hook of ``key`` returned a value for ``item``: a coroutine, or a mistake."""

    def result_failed(self, key: bytes, timer: TimerItem, error: BaseException) -> None:
        """The result of a pane by columns cannot be made now, and no hook can take it over."""

    def undo_together(self, records: Sequence[RecordItem]) -> None:
        """A call for several records failed. ``records``: what it got, in order."""


class Runner:
    """Runs queued records up to the limits of a batch.

    Records that cannot run yet are set aside with their blocked key.

    It has many attributes: the owners of what hooks use, and what one batch and one step have used up.
    """

    def __init__(self, state: IntervalState, outcomes: HookOutcomes) -> None:
        self._outcomes = outcomes
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._intake = state.intake
        self._blocked = state.blocked
        self._cells = state.cells
        self._holds = state.holds
        self.batch = HookBatch()
        self._limit = state.settings.batch_records
        """How many records and timers may run in the batch. Slow hooks lower it."""
        self.batch_number = 1
        """The number of the batch. The cache records it as the last use of a cell."""
        self.async_running = 0
        """Asynchronous hooks that run now."""
        self.failures = 0
        """Hooks that have failed in this step of the core."""
        self.searched = 0
        """Records of the batch that were searched in this step, for what was to be undone."""
        batches = state.program.batches
        self.forms: Mapping[str, RecordForm] = {} if batches is None else batches.forms
        """The input streams of which a call gets many records."""
        timed = state.meter.batch_time.seconds < inf
        seconds = (BatchComputation if batches is None else batches.computation).call_seconds if timed else inf
        self.call_time = CallTime(seconds)
        """How many records the next call gets, and how long they may be read for it."""
        self.trial = CallTrial()
        self._out_of_time_at = inf
        """When this step runs no more records by many. At least one call comes before."""
        self.undone = False
        """Whether a call for several records has failed. Undone timers fire before anything of the queue runs."""
        self.rows_to_read: list[bytes] = []
        """Keys whose rows must be read before they can run."""
        self.run_records: RunRecords = self.run_hooks
        """Runs records of one delivery. It is ``PaneAdder.run_records`` where windows are kept by columns, and
        ``BatchRunner.run_records`` where a hook gets many records."""

    def full(self) -> bool:
        """Whether nothing more may run: the batch is at a limit, or the maximum of asynchronous hooks is running."""
        return self.async_running >= self._setup.settings.async_hooks or self.batch_full()

    def batch_full(self) -> bool:
        """Whether the batch is at a limit, or this step has undone enough.

        A batch without work is at no limit, also after work in it was undone or blocked.
        """
        if self.exhausted():
            return True
        batch, settings = self.batch, self._setup.settings
        if not batch.contexts and not batch:
            batch.records = batch.consumed_bytes = batch.size = self._setup.scope.produced_bytes = 0
            return False
        if batch.records >= self._limit or batch.consumed_bytes >= settings.consumed_bytes:
            return True
        return batch.size + self._setup.scope.produced_bytes >= settings.batch_bytes

    def exhausted(self) -> bool:
        """Whether so many hooks have failed in this step that the rest runs in the next one."""
        return self.failures >= MAX_FAILED_HOOKS or self.searched >= MAX_SEARCHED_RECORDS

    def keys_differ(self) -> bool:
        """Whether the batch has many keys, and hardly a key has several records.

        Then more records would share nothing with it.
        """
        keys = len(self.batch.contexts)
        return keys >= self._setup.settings.gathered_keys and keys * 5 >= self.batch.records * 4

    def out_of_time(self) -> bool:
        """Whether calls for many records have taken the time of a batch in this step (G8)."""
        return self._setup.meter.clock() > self._out_of_time_at

    def step_ended(self) -> bool:
        """The step of the core ends. Returns whether it had to, so the queue goes on without another event."""
        interrupted = self.exhausted() or (bool(self._intake.queue) and self.out_of_time())
        self.failures, self.searched, self._out_of_time_at = 0, 0, inf
        return interrupted

    def budget(self) -> int:
        """With so many bytes of productions in the batch it is full. 0: it is full now."""
        return 0 if self.batch_full() else self._setup.settings.batch_bytes - self.batch.size

    def room(self, time: HookTime) -> int:
        """How many records or timers run before the limits are checked again, at least one. ``time``: of their hook.

        A quick timer hook never raises the number of records: due timers have fired for the former number only, and no
        record overtakes a timer of its key (G5).
        """
        fit = fitting(self._setup.meter.batch_time, time, self._limit)
        return max(1, min(self._limit - self.batch.records, fit))

    def work_in_batch(self) -> tuple[int, int, int]:
        """The batch's number, and how many records and timers have run in it. It changes with each hook."""
        return self.batch_number, self.batch.records, sum(map(len, self.batch.fired.values()))

    def take_batch(self) -> HookBatch:
        """Take the current batch and start a new one."""
        batch, self.batch = self.batch, HookBatch()
        scope = self._setup.scope
        scope.produced_bytes, scope.any_produced, self._limit = 0, False, self._setup.settings.batch_records
        self.batch_number += 1
        return batch

    def run_queue(self, ahead_allowed: bool, fire_due: Callable[[Iterable[bytes]], bool] | None = None) -> None:
        """Run queued records until the queue is empty or the batch is full.

        If ``ahead_allowed`` is False, something is over its limit. Then only records that hold the watermark run, after
        earlier records of the same sending computation for the same keys (G15). If all records of a delivery are set
        aside behind blocked keys, no commit and no other event follows. So the next delivery is tried at once (G8).

        Args:
            ahead_allowed: Whether any record may run.
            fire_due: Fires the due timers of some keys before their records run (G5). It returns False if the batch is
                full before. None: no timer is due.
        """
        queue, feedback = self._intake.queue, self._setup.config.feedback
        self.undone = False
        if self.forms and self._out_of_time_at == inf:
            self._out_of_time_at = self._setup.meter.clock() + self._setup.meter.batch_time.seconds
        while queue and not self.undone and not self.full() and not (self.forms and self.out_of_time()):
            queued = queue[0] if ahead_allowed else next_holding(self._intake, self._clocks.inputs.value, feedback)
            if queued is None:
                return
            if fire_due is not None and (not fire_due(self._next_keys(queued)) or self.full()):
                return
            event_follows = self._run_queued(queued)
            if queued.cursor >= len(queued.indexes):
                if queued is queue[0]:
                    queue.popleft()
                else:
                    queue.remove(queued)
            if event_follows and not ahead_allowed:
                return

    def _room(self, receipt: DeliveryReceipt) -> int:
        """How many records of a delivery may run before the limits are checked again; at least one."""
        settings, batch = self._setup.settings, self.batch
        if receipt.delivery.stream in self.forms:
            room = min(self._limit - batch.records, self.trial.rows or settings.batch_records)
        else:
            room = self.room(self._setup.meter.records)
        room = min(room, (settings.consumed_bytes - batch.consumed_bytes) // (receipt.average + 1))
        if self._setup.program.record_is_async:
            room = min(room, settings.async_hooks - self.async_running)
        return max(1, room)

    def _next_keys(self, queued: QueuedRecords) -> list[bytes]:
        """The keys of the next records that fit into the batch."""
        keys = queued.receipt.delivery.keys
        return [keys[index] for index in queued.indexes[queued.cursor : queued.cursor + self._room(queued.receipt)]]

    def run_alone(self, receipt: DeliveryReceipt, index: int) -> None:
        """Run a record of a blocked key whose open context is the key's only one in this batch."""
        self._run_queued(QueuedRecords(receipt, [index]), alone=True)

    def _run_queued(self, queued: QueuedRecords, alone: bool = False) -> bool:
        """Run queued records of one delivery, up to the limits of the batch.

        Args:
            queued: The records.
            alone: Whether it is the next record of a blocked key, which has an open context.

        Returns:
            Whether another event follows: a hook was called, a record was consumed, or a row must be read. False: each
            record was set aside behind its blocked key.
        """
        batch, receipt, meter = self.batch, queued.receipt, self._setup.meter
        began = meter.clock()
        indexes = queued.indexes[queued.cursor : queued.cursor + self._room(receipt)]
        many, failures = not alone and receipt.delivery.stream in self.forms, self.failures
        ran, waits, calls = self.run_records(receipt, indexes, alone)
        key = receipt.delivery.keys[indexes[0]] if ran == 1 else None
        self.measure(self._setup.program.record_hook, meter.records, calls, began, key, many)
        queued.cursor += ran
        batch.records += ran
        batch.consumed_bytes += ran * receipt.average
        if many and self.trial.rows:
            # A call that fails undoes all that its keys did in the batch. So the next one gets a batch of its own.
            self._limit = min(self._limit, batch.records)
            if not self.undone:
                self.trial.ran(ran, calls > 0 and failures == self.failures)
        return ran > waits

    def run_hooks(self, receipt: DeliveryReceipt, indexes: Sequence[int], alone: bool) -> tuple[int, int, int]:
        """Run records of one delivery, until their productions fill the batch, or this step has undone enough.

        Returns:
            The number of records that are done with, of those that wait behind their blocked key, and of hooks called.
        """
        budget = self._setup.settings.batch_bytes - self.batch.size
        ran = self._run_usual(receipt, indexes, budget) if not alone and self._are_usual(receipt) else 0
        if ran == len(indexes) or (ran and (self._setup.scope.produced_bytes > budget or self.exhausted())):
            return ran, 0, ran
        done, waits, calls = self._run_each(receipt, indexes[ran:] if ran else indexes, alone, budget)
        return ran + done, waits, ran + calls

    def _are_usual(self, receipt: DeliveryReceipt) -> bool:
        """Whether no record of a delivery waits, is late, is read before its hook, or has a key with a hold."""
        program, clocks = self._setup.program, self._clocks
        if self._blocked.keys or self._holds.of_keys or clocks.bounded or receipt.held < clocks.watermark:
            return False
        return program.one_reading[receipt.delivery.stream] is None and not program.record_is_async

    def _run_usual(self, receipt: DeliveryReceipt, indexes: Sequence[int], budget: int) -> int:
        """Run usual records (``_are_usual``) as ``_run_each`` does, in fewer steps. Each call counts, for each record.

        Returns:
            How many were run. It ends early behind a hook that has not simply returned, or when the productions are
            more than ``budget`` bytes. It ends before a record whose key's row must be read.
        """
        batch, delivery, program, scope = self.batch, receipt.delivery, self._setup.program, self._setup.scope
        stream, ids = delivery.stream, delivery.ids
        contexts, cells, number = batch.contexts, self._cells, self.batch_number
        decode, process, called = program.inputs[stream], program.process_record[stream], program.hook_names[stream]
        weak, failure, outcome, ran, size = not program.options.strong, None, None, 0, 0
        keys, values, stamps = _columns(delivery, indexes)
        for key, value, when in zip(keys, values, stamps):  # noqa: B905 - compiled, a strict zip() is slow
            context = contexts.get(key)
            if context is None:
                cell = cells.get(key)
                if cell is None:
                    break
                cell.used = number
                size += len(key) + len(cell.encoded) + _CONTEXT_BYTES
                context = contexts[key] = Context(key, cell, scope)
            stamp: int = when
            context._stamp = context._earliest = context._cause = stamp
            if weak:
                context._cause_id, context._cause_index = ids, indexes[ran]
            ran += 1
            try:
                outcome = process(context, Record(key, value, when, called, decode, False))
            except HOOK_ERRORS as error:
                failure = error
                break
            if outcome is not None or scope.produced_bytes > budget:
                break
        batch.size += size
        odd = failure is not None or outcome is not None
        batch.consumed_of(receipt).extend(indexes[: ran - odd])
        if odd:
            key = keys[ran - 1]
            item = RecordItem(receipt, indexes[ran - 1])
            self._take_odd(contexts[key], item, outcome, failure)
        return ran

    def _take_odd(self, context: Context[Any], item: RecordItem, outcome: Any, failure: BaseException | None) -> None:
        """A record's hook has raised, or returned a value."""
        if failure is not None:
            self._outcomes.failed(context._key, item, failure)
        else:
            self._outcomes.returned(context._key, context, item, outcome)

    # Each record leaves the loop of ``_run_each`` in one of these ways, in the order of the code. The last column says
    # how the result counts it. Consumed: the commit of this batch ends the record. ``_run_usual`` has the last three.
    #
    # way            why                         then                                               counted as
    # set aside      its key is blocked          It waits behind the key's other work.              waits
    # cannot be read its value cannot be made    ``reading_failed``: the failure policy decides.    a call
    #                                            Without the key's row it is set aside.             no_calls
    # dropped        it is late, or a filter     It is consumed.                                    no_calls
    # set aside      its key gets no context     It waits with its key, which is blocked from now.  no_calls
    # diverted       it is late                  It is consumed, with a production.                 no_calls
    # failed         the hook raised             ``HookOutcomes.failed`` decides.                   a call
    # returned       a coroutine, or a mistake   ``HookOutcomes.returned`` decides.                 a call
    # ran            the hook returned None      It is consumed.                                    a call

    def _run_each(
        self, receipt: DeliveryReceipt, indexes: Sequence[int], alone: bool, budget: int
    ) -> tuple[int, int, int]:
        """Run records of one delivery: see ``run_hooks``. Each name that the loop needs is local."""
        batch, delivery, program, scope = self.batch, receipt.delivery, self._setup.program, self._setup.scope
        keys, values, stamps, stream = delivery.keys, delivery.values, delivery.timestamps, delivery.stream
        contexts, blocked, set_aside = batch.contexts, self._blocked.keys, self._blocked.set_aside
        holds = self._holds.of_keys
        decode, process = program.inputs[stream], program.process_record[stream]
        called, read = program.hook_names[stream], program.one_reading[stream]
        weak, apart = not program.options.strong, program.record_is_async and not alone
        late_action = LateAction.PROCESS if stream in program.never_late else program.options.late.action
        late_read = {LateAction.DROP: _drop, LateAction.DIVERT: None, LateAction.PROCESS: read}[late_action]
        watermark, watermark_of = self._clocks.watermark, self._clocks.watermark_of if self._clocks.bounded else None
        consume = batch.consumed_of(receipt).append
        waits, no_calls, value = 0, 0, UNDECODED
        outcome: Any
        failure: BaseException | None
        running = iter(indexes)
        for index in running:
            key = keys[index]
            if blocked and key in blocked and not alone:
                set_aside(key, receipt, index)
                waits += 1
                continue
            stamp = stamps[index]
            late = stamp < (watermark if watermark_of is None else watermark_of(key))
            reading = late_read if late else read
            if reading is not None:
                try:
                    value = reading(values[index])
                except HOOK_ERRORS as error:
                    no_calls += self.reading_failed(key, RecordItem(receipt, index), error)
                    if self.exhausted():
                        break
                    continue
                if value is DROPPED:
                    value = UNDECODED  # the next record may be on time, and have no reading
                    consume(index)
                    no_calls += 1
                    continue
            context = (contexts.get(key) or self.open(key)) if not apart else self._open_for_one_hook(key)
            if context is None:
                set_aside(key, receipt, index)
                no_calls += 1
                continue
            context._stamp = context._cause = stamp
            context._earliest = min(stamp, holds.get(key, stamp)) if holds else stamp
            context._caused_by((delivery.ids, index) if weak else None)
            failure = outcome = None
            try:
                if late and late_action is LateAction.DIVERT:
                    self._divert(context, stream, values[index])
                    consume(index)
                    no_calls += 1
                    continue
                record = Record(key, values[index], stamp, called, decode, late, value)  # type: ignore[arg-type]
                outcome = process(context, record)
            except HOOK_ERRORS as error:
                failure = error
            odd = failure is not None or outcome is not None
            if odd:
                self._take_odd(context, RecordItem(receipt, index), outcome, failure)
            else:
                consume(index)
            if scope.produced_bytes > budget or (odd and self.exhausted()):
                break
        ran = len(indexes) - operator.length_hint(running)
        return ran, waits, ran - waits - no_calls

    def measure(
        self, hook: str, time: HookTime, calls: int, began: float, key: bytes | None, many: bool = False
    ) -> None:
        """Add ``calls`` calls of a hook since ``began`` to its ``time``.

        ``key`` is set for a single call. ``many``: a call may get many records, so they have no pace of single ones.
        """
        meter = self._setup.meter
        seconds = meter.clock() - began
        time.calls += calls
        time.seconds += seconds
        program = self._setup.program
        if calls and many:
            meter.measures.hook_seconds[hook].add(seconds / calls, calls)
        elif calls and not (program.timer_is_async if hook == "process_timer" else program.record_is_async):
            most = fitting(meter.batch_time, time, self._limit)
            meter.measures.hook_seconds[hook].add(seconds / calls, calls)
            # A call that was slow by chance changes little.
            weight = min(1.0, calls / min(time.calls, _PACED_CALLS))
            time.pace += (seconds / calls - time.pace) * weight
            self._limit = fitting(meter.batch_time, time, most)
        if seconds >= meter.limit > 0:
            meter.ran_long(hook, time, calls, seconds, key)

    def open(self, key: bytes) -> Context[Any] | None:
        """Open a context for a key that has none in this batch.

        None: the key is blocked until its row has been read.
        """
        cell = self._cells.get(key)
        if cell is None:
            self._blocked.block(key, Wait.STATE)
            self.rows_to_read.append(key)
            return None
        cell.used = self.batch_number
        self.batch.size += len(key) + len(cell.encoded) + _CONTEXT_BYTES
        context: Context[Any] = Context(key, cell, self._setup.scope)
        self.batch.contexts[key] = context
        return context

    def _open_for_one_hook(self, key: bytes) -> Context[Any] | None:
        """Open a context for an asynchronous hook. None: the key is blocked.

        A second hook could change the cell while the batch is sealed. So a key runs one asynchronous hook per commit.
        """
        if key in self.batch.contexts:
            self._blocked.block(key, Wait.READY)
            return None
        return self.open(key)

    def reading_failed(self, key: bytes, item: RecordItem, error: BaseException) -> int:
        """Handle a record whose value could not be made, as if its hook had raised.

        Returns:
            1 if that must wait for the key's row. Otherwise 0.
        """
        if key not in self.batch.contexts and self.open(key) is None:
            self._blocked.set_aside(key, item.receipt, item.record)
            return 1
        self._outcomes.failed(key, item, error)
        return 0

    def open_apart(self, key: bytes) -> Context[Any]:
        """Open a context for a key whose state cannot be read. No hook may run in it, and the state stays unchanged."""
        context: Context[Any] = Context(key, KeyCell(key), self._setup.scope)
        self.batch.contexts[key] = context
        self.batch.size += len(key) + _CONTEXT_BYTES
        return context

    def _divert(self, context: Context[Any], stream: str, encoded: bytes) -> None:
        """Produce a late record on the stream that the computation's options name (G14)."""
        program = self._setup.program
        late = program.options.late.stream
        if late is not None:
            for value in program.diverted[stream](program.inputs[stream](encoded)):
                context.produce(late, value)


def fitting(batch_time: BatchTime, time: HookTime, most: int) -> int:
    """How many calls of a hook fit into the time of a batch: at least one, and at most ``most``.

    Nothing is known of an owner's first calls. A few slow ones would keep the event loop until the lease ends, and the
    next owner would do the same, for ever (G8). Quick records may come before thousands of slow timers.
    """
    if not time.pace and batch_time.seconds < inf:
        return min(most, FIRST_CALLS if time.calls else 1)
    return most if batch_time.seconds >= most * time.pace else max(1, int(batch_time.seconds / time.pace))


def _columns(delivery: Delivery, indexes: Sequence[int]) -> tuple[list[bytes], list[bytes], list[Any]]:
    """Keys, values and timestamps of some records, whose indexes increase. A loop over lists is the quickest."""
    keys, values, stamps = delivery.keys, delivery.values, delivery.timestamps
    first, end = indexes[0], indexes[-1] + 1
    if end - first == len(indexes):
        return list(keys[first:end]), list(values[first:end]), list(stamps[first:end])
    return [keys[at] for at in indexes], [values[at] for at in indexes], [stamps[at] for at in indexes]


def _drop(encoded: bytes) -> Any:
    """Reads a late record that the computation's options drop."""
    return DROPPED
