"""Running hooks: records and timers against cached state, into the batch that will be the next commit.

Nothing that a hook does leaves its context before the batch is sealed. When a hook raises, the context of
its key in this batch is dropped, the key's state is decoded anew from what the last sealed commit left,
and all of the key's work in this batch is parked, in order, to run one hook a commit (``parking.py``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Final

from millwheel.sdk.context import Context
from millwheel.sdk.model import Record
from millwheel.sdk.options import LateAction
from millwheel.worker.interval.cells import KeyCell
from millwheel.worker.interval.failures import HOOK_ERRORS
from millwheel.worker.interval.intake import Chunk, Receipt, TimerItem, Wait
from millwheel.worker.interval.state import IntervalState

__all__ = ["Batch", "Runner"]

_CONTEXT_BYTES: Final = 64
"""Counted in a batch for each key beside its bytes and its state: framing in the journal entry."""


class Batch:
    """What the next commit will hold: the contexts by key, and what they consumed.

    ``firing`` are the timestamps at which the batch's timers hold the output watermark until it commits.
    """

    __slots__ = ("consumed", "contexts", "dead", "fired", "firing", "records", "size")

    def __init__(self) -> None:
        self.contexts: dict[bytes, Context[Any]] = {}
        self.consumed: list[tuple[Receipt, list[int]]] = []
        self.fired: dict[bytes, list[TimerItem]] = {}
        self.firing: list[int] = []
        self.records = 0
        self.size = 0
        self.dead: set[bytes] = set()
        """Keys of which a record or timer is given up: one each at most, as it runs alone."""

    def __bool__(self) -> bool:
        return bool(self.contexts or self.fired or any(indexes for _, indexes in self.consumed))

    def consumed_of(self, receipt: Receipt) -> list[int]:
        """The list that takes the indexes of records of ``receipt`` that have run."""
        if self.consumed and self.consumed[-1][0] is receipt:
            return self.consumed[-1][1]
        self.consumed.append((receipt, []))
        return self.consumed[-1][1]


class Runner:
    """Runs the records in line, up to a batch's bounds. What it cannot run at once it parks by key."""

    def __init__(self, state: IntervalState) -> None:
        self.state = state
        self.batch = Batch()
        self.number = 1
        """Of the batch; what the cache knows a cell's last use by."""
        self.hooks = 0
        """Asynchronous hooks that run now."""
        self.to_read: list[bytes] = []
        """Keys whose rows must be read before they can run."""
        self.failed: Callable[[bytes, Receipt, int, BaseException], None]
        self.returned: Callable[[bytes, Context[Any], Receipt, int, Any], None]

    def full(self) -> bool:
        """Whether nothing more may be run: the batch is at a bound, or as many asynchronous hooks run as may."""
        return self.hooks >= self.state.settings.async_hooks or self.batch_full()

    def batch_full(self) -> bool:
        """Whether the batch has reached a bound. One that holds no work never has, whatever was undone or parked."""
        batch, settings = self.batch, self.state.settings
        if not batch.contexts:
            batch.records = batch.size = self.state.scope.produced_bytes = 0
            return False
        return batch.records >= settings.batch_records or (
            batch.size + self.state.scope.produced_bytes >= settings.batch_bytes
        )

    def take_batch(self) -> Batch:
        """The batch so far; a new one begins."""
        batch, self.batch = self.batch, Batch()
        self.state.scope.produced_bytes = 0
        self.number += 1
        return batch

    def run_line(self, ahead_allowed: bool, fire_due: Callable[[Iterable[bytes]], bool] | None = None) -> None:
        """Run chunks until the line is empty or the batch full.

        With ``ahead_allowed`` False (something is over its bound) only what holds the watermark back is run, and what
        the same senders' keys have produced before it for the same keys (G15). A chunk of which every record is set
        aside leads to no commit and no other event, so the next chunk follows at once (G8).

        Args:
            ahead_allowed: Whether any record may be run.
            fire_due: Fires what is due of some keys before records of theirs are run (G5); returns False if the batch
                is full before. None: nothing is due.
        """
        intake = self.state.intake
        line = intake.line
        while line and not self.full():
            chunk = line[0] if ahead_allowed else self._holding()
            if chunk is None:
                return
            if fire_due is not None and (not fire_due(self._next_keys(chunk)) or self.full()):
                return
            led_on = self._run_chunk(chunk)
            if chunk.cursor >= len(chunk.indexes):
                if chunk is line[0]:
                    line.popleft()
                else:
                    line.remove(chunk)
            if led_on and not ahead_allowed:
                return

    def _holding(self) -> Chunk | None:
        """A chunk in line that holds the watermark back, or closes a cycle, which would else wait for itself.

        What has to run before it comes first.
        """
        state = self.state
        line = state.intake.line
        chunk: Chunk | None = min(line, key=lambda one: one.receipt.held)
        if chunk is not None and chunk.receipt.held > state.inputs.value:
            feedback = state.config.feedback
            chunk = next((one for one in line if one.receipt.delivery.stream in feedback), None)
        if chunk is None or chunk.receipt.delivery.order is None:
            return chunk
        state.intake.bring_forward(chunk)
        return line[0]

    def _room(self, receipt: Receipt) -> int:
        """How many records of a delivery may be run before the bounds are looked at again; at least one."""
        settings, batch = self.state.settings, self.batch
        room = min(settings.batch_records - batch.records, (settings.batch_bytes - batch.size) // (receipt.average + 1))
        if self.state.program.record_is_async:
            room = min(room, settings.async_hooks - self.hooks)
        return max(1, room)

    def _next_keys(self, chunk: Chunk) -> list[bytes]:
        """The keys of those records of a chunk that there is room for."""
        keys = chunk.receipt.delivery.keys
        return [keys[index] for index in chunk.indexes[chunk.cursor : chunk.cursor + self._room(chunk.receipt)]]

    def _run_chunk(self, chunk: Chunk) -> bool:
        """Run records of a chunk, up to the batch's bounds.

        Returns:
            Whether another event follows: a hook was called, a record consumed, or a row is to be read. False: each
            record was set aside behind its blocked key.
        """
        state, batch, receipt = self.state, self.batch, chunk.receipt
        delivery = receipt.delivery
        keys, values, stamps, stream = delivery.keys, delivery.values, delivery.timestamps, delivery.stream
        contexts, parked, program, holds = batch.contexts, state.intake.parked, state.program, state.holds
        cached, scope, number, size = state.cells.cached(), state.scope, self.number, 0
        decode, process = program.inputs[stream], program.computation.process_record
        weak, is_async = not program.options.strong, program.record_is_async
        process_late = program.options.late.action is LateAction.PROCESS
        watermark, budget = state.watermark, state.settings.batch_bytes - batch.size
        shown = state.watermark_of if state.floors else None
        consume = batch.consumed_of(receipt).append
        meter, aside, waits = state.meter, 0, 0
        began = meter.clock()
        taken = chunk.indexes[chunk.cursor : chunk.cursor + self._room(receipt)]
        running = iter(taken)
        for index in running:
            key = keys[index]
            context = contexts.get(key)
            if parked and key in parked:
                state.intake.set_aside(key, receipt, index)
                waits += 1
                continue
            if context is None:
                cell = cached.get(key)
                if cell is None and (cell := self._load(key)) is None:
                    state.intake.set_aside(key, receipt, index)
                    aside += 1
                    continue
                cell.used = number
                size += len(key) + len(cell.encoded) + _CONTEXT_BYTES
                context = contexts[key] = Context(key, cell, scope)
            elif is_async:
                # A hook may change the cell while the batch is sealed: one hook of the key a commit.
                state.intake.park(key, Wait.READY)
                state.intake.set_aside(key, receipt, index)
                aside += 1
                continue
            stamp = stamps[index]
            context._stamp = context._earliest = context._cause = stamp
            if holds and (held := holds.get(key, stamp)) < stamp:
                context._earliest = held
            if weak:
                context._origin = (delivery.ids, index)
            late = stamp < (watermark if shown is None else shown(key))
            try:
                if late and not process_late:
                    self.apply_late_policy(context, stream, values[index])
                    consume(index)
                    aside += 1
                    continue
                outcome = process(context, Record(key, values[index], stamp, stream, decode, late))  # type: ignore[arg-type]
            except HOOK_ERRORS as error:
                self.failed(key, receipt, index, error)
                continue
            if outcome is not None:
                self.returned(key, context, receipt, index, outcome)
                continue
            consume(index)
            if scope.produced_bytes > budget:
                break
        ran = len(taken) - operator.length_hint(running)
        meter.ran_records(ran - aside - waits, began, key if ran == 1 else None)
        chunk.cursor += ran
        batch.records += ran
        batch.size += size + ran * receipt.average
        return ran > waits

    def _load(self, key: bytes) -> KeyCell | None:
        """A cell for a key that has none; None: the key is parked until its row has been read."""
        cell = self.state.cells.get(key)
        if cell is None:
            self.state.intake.park(key, Wait.STATE)
            self.to_read.append(key)
        return cell

    def open(self, key: bytes) -> Context[Any] | None:
        """A context for a key that has none in this batch; None: it is parked until its row has been read."""
        cell = self.state.cells.cached().get(key) or self._load(key)
        if cell is None:
            return None
        cell.used = self.number
        self.batch.size += len(key) + len(cell.encoded) + _CONTEXT_BYTES
        context: Context[Any] = Context(key, cell, self.state.scope)
        self.batch.contexts[key] = context
        return context

    def open_apart(self, key: bytes) -> Context[Any]:
        """A context for a key whose state cannot be read, in which no hook is to run: the state stays as it is."""
        context: Context[Any] = Context(key, KeyCell(), self.state.scope)
        self.batch.contexts[key] = context
        self.batch.size += len(key) + _CONTEXT_BYTES
        return context

    def apply_late_policy(self, context: Context[Any], stream: str, encoded: bytes) -> None:
        """What becomes of a late record that the computation does not want to see (G14)."""
        late = self.state.program.options.late
        if late.action is LateAction.DIVERT and late.stream is not None:
            context.produce(late.stream, self.state.program.inputs[stream](encoded))
