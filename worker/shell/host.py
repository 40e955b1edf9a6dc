"""Drives one core: performs its instructions, and posts the events that report their results.

The host makes no decisions. If the store reports an uncertain outcome, the host repeats the call with the identical
bytes until the outcome is certain. A refusal that names this owner's sequencer and commit means: the append was
applied.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from millwheel.coordination.contract import CoordinatorUnavailableError
from millwheel.model.backoff import Backoff
from millwheel.rpc.clock import wall_now
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.sdk.error_texts import error_message
from millwheel.store.contract import (
    Append,
    CorruptValueError,
    JournalMissingError,
    PartId,
    SequencerRefusedError,
    StateStore,
    StoreError,
    StoreUnavailableError,
)
from millwheel.worker.interval.failures import refuse_result
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    Acknowledge,
    Appended,
    AppendEntry,
    AsyncHook,
    CheckSequence,
    CopyParts,
    DeleteEntries,
    DeleteParts,
    Delivery,
    Deposed,
    FenceJournal,
    FlushStates,
    GiveUp,
    HookFailed,
    HookFinished,
    HooksSlow,
    Opened,
    OpenFailed,
    PartsMissing,
    PartsRead,
    PartsWritten,
    PrepareRelease,
    ReadSegments,
    ReadStates,
    ReleasePrepared,
    Report,
    SendDelivery,
    SequenceChecked,
    StatesFlushed,
    StatesRead,
    Tick,
    WriteParts,
)
from millwheel.worker.shell.opening import Opener, ReadAhead
from millwheel.worker.shell.rows import read_rows
from millwheel.worker.shell.runloop import RunQueue

__all__ = ["CoreHost", "HostPeers", "ServedCore"]

log = logging.getLogger("millwheel.worker")

_BACKOFF: Final = Backoff(0.02, 2.0)
"""Seconds between repetitions of a call with an unknown outcome. The delay doubles each time, with jitter."""

_MAX_SLEEP_SECONDS: Final = 30.0
"""Maximum seconds until the wall clock is read again, however far away an alarm is. The clock may have been set
forward. And the event loop's timers do not count the time during which the machine was suspended."""

_CLOSE_SECONDS: Final = 5.0
"""How long a closing host waits for hooks to react to their cancellation. The worker's next steps wait for the host."""

_NOT_OWNER: Final = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER


class ServedCore(Protocol):
    """What a host drives: an interval core, or a stream log's core."""

    def start(self) -> Sequence[Any]: ...
    def handle(self, event: Any, now: int) -> Sequence[Any]: ...
    def next_alarm(self) -> int | None: ...


class HostPeers(Protocol):
    """What a host needs besides the store."""

    def send(self, host: CoreHost, send: SendDelivery) -> None:
        """Send a batch to its owner, in this process or another. The answer is posted to ``host``."""

    def report(self, report: Report) -> None:
        """Report to the authority."""

    async def accept(self, request: AcceptSequencer) -> int:
        """Let the authority accept a sequencer.

        Returns:
            The watermark that the authority last broadcast, in microseconds.

        Raises:
            SequencerRefusedError: The authority refuses the sequencer.
        """

    async def sequence_lives(self, sequence: str) -> bool:
        """Whether a sender's sequence is alive, by a linearizable read."""

    def lost(self, host: CoreHost, reason: str) -> None:
        """The host's core has lost the interval: it is not the owner any more."""


class _Performers(dict[type, Callable[[Any], object]]):
    """The function for each type of instruction. A missing one is an error: the core would wait for ever."""

    def __missing__(self, instruction: type) -> Callable[[Any], object]:
        raise TypeError(f"nothing performs the instruction {instruction.__name__}: CoreHost, or extra=, has to")


class CoreHost:
    """One core in this process. All events enter through ``post``.

    Invariant: every posted delivery is answered, by the core or, once the host is closed, by NOT_OWNER. ``fault`` names
    the internal error that ended the core, if any. In that case the interval has no successor yet.
    """

    def __init__(
        self,
        journal: str,
        core: ServedCore,
        store: StateStore,
        peers: HostPeers,
        queue: RunQueue,
        extra: dict[type, Callable[[Any], None]] | None = None,
        ahead: ReadAhead | None = None,
        clock: Callable[[], int] = wall_now,
    ) -> None:
        """
        Args:
            journal: The interval's journal.
            core: The core to drive.
            store: The store with the journal and the state rows.
            peers: Other owners and the authority.
            queue: The worker's run queue.
            extra: Functions for the core's own types of instructions.
            ahead: Base parts that were read ahead.
            clock: The clock of the core, in microseconds.
        """
        self.journal = journal
        self._ahead: ReadAhead = {} if ahead is None else ahead
        self._releases: set[asyncio.Future[ReleasePrepared]] = set()
        """Requests that wait until the journal is short."""
        self.core = core
        self._now = clock
        self._store = store
        self._peers = peers
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at: int | None = None
        self._closed = False
        self._deliveries: WeakKeyDictionary[Delivery, None] = WeakKeyDictionary()
        """Deliveries that are still referenced in this process: all unanswered ones, and perhaps others."""
        self.fault = ""
        self.damage = ""
        """The missing or damaged stored value, if it is the reason why the interval was given up."""
        self.busy = 0.0
        """Seconds spent in the core, including the performance of its instructions."""
        self._performers: dict[type, Callable[[Any], object]] = _Performers()
        self._performers |= {
            AppendEntry: lambda i: self._spawn(self._append(i)),
            Acknowledge: self._acknowledge,
            SendDelivery: lambda i: self._peers.send(self, i),
            Report: lambda i: self._peers.report(i),
            FenceJournal: lambda i: self._spawn(self._open(i)),
            AcceptSequencer: lambda i: self._spawn(self._accept(i)),
            ReadStates: lambda i: self._spawn(self._read_states(i)),
            FlushStates: lambda i: self._spawn(self._flush(i)),
            WriteParts: lambda i: self._spawn(self._write_parts(i)),
            ReadSegments: lambda i: self._spawn(self._read_segments(i)),
            CopyParts: lambda i: self._spawn(self._copy_parts(i)),
            ReleasePrepared: self._release_prepared,
            CheckSequence: lambda i: self._spawn(self._check_sequence(i)),
            DeleteEntries: lambda i: self._spawn(self._tidy(partial(store.delete_entries, i.journal, i.below))),
            DeleteParts: lambda i: self._spawn(self._tidy(partial(store.delete_parts, i.journal, i.parts))),
            AsyncHook: self._begin_hook,
            GiveUp: lambda i: self.post(Deposed(i.reason)),
            HookFailed: lambda i: log.warning("%s", i.message, exc_info=i.error),
            HooksSlow: lambda i: log.warning("journal %s: %s", journal, i.batch),
            **(extra or {}),
        }

    def start(self) -> None:
        """Start the core."""
        self._guarded(self.core.start)

    def post(self, event: Any) -> None:
        """Let the core handle ``event`` after all events posted before."""
        if type(event) is Delivery:
            if self._closed:
                _refuse(event)
                return
            self._deliveries[event] = None
        if not self._closed:
            self._queue.post(self._handle, event)

    async def prepare_release(self) -> ReleasePrepared | None:
        """Reduce what a successor must read, while work continues. Returns None if the interval is lost meanwhile."""
        if self._closed:
            return None
        request: asyncio.Future[ReleasePrepared] = self._loop.create_future()
        self._releases.add(request)
        self.post(PrepareRelease(request))
        try:
            await asyncio.wait([request])
        finally:
            self._releases.discard(request)
        return None if request.cancelled() else request.result()

    async def close(self) -> None:
        """Stop driving the core. For the interval this is the same as the end of the process."""
        self._shut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, left = await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        if left:
            # User code ignores its cancellation. Nothing that it still does is committed.
            log.error(
                "journal %s: %d hooks go on although they were cancelled; they are left alone", self.journal, len(left)
            )

    def _shut(self) -> None:
        """Process no more events. Senders receive NOT_OWNER, so they send again to the next owner."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for delivery in list(self._deliveries):
            _refuse(delivery)
        self._deliveries.clear()
        for request in self._releases:
            request.cancel()

    def _handle(self, event: Any) -> None:
        if self._closed:
            return
        began = perf_counter()
        if type(event) is Opened:
            with _uncollected():
                self._guarded(lambda: self.core.handle(event, self._now()))
        else:
            self._guarded(lambda: self.core.handle(event, self._now()))
        self.busy += perf_counter() - began
        if type(event) in (Deposed, OpenFailed) and not self._closed:
            self._shut()
            if type(event) is OpenFailed and event.damaged:
                self.damage = event.reason
            self._peers.lost(self, event.reason)

    def _guarded(self, step: Callable[[], Sequence[Any]]) -> None:
        """Perform a step. A core with an internal error must stop: its successor starts from the journal.

        If stored data is damaged, a successor would fail in the same way. So the interval is quarantined.
        """
        try:
            self._perform(step())
        except CorruptValueError as error:
            self._quarantined(error)
        except Exception as error:
            self._failed(error)

    def _quarantined(self, error: StoreError) -> None:
        if self._closed:
            return
        log.error("journal %s: the interval stands still, for what is stored of it is damaged: %s", self.journal, error)
        self.damage = str(error)
        self._shut()
        self._peers.lost(self, self.damage)

    def _failed(self, error: BaseException) -> None:
        if self._closed:
            return
        log.error("journal %s: the interval is given up after an internal error", self.journal, exc_info=error)
        self.fault = f"internal error: {error_message(error)}"
        self._shut()
        self._peers.lost(self, self.fault)

    def _perform(self, instructions: Sequence[Any]) -> None:
        performers = self._performers
        for instruction in instructions:
            performers[type(instruction)](instruction)
        self._set_alarm()

    def _set_alarm(self) -> None:
        at = self.core.next_alarm()
        if at == self._alarm_at and self._alarm is not None:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_at = at
        if at is not None and not self._closed:
            delay = max(0.0, (at - self._now()) / 1e6)
            self._alarm = self._loop.call_later(min(delay, _MAX_SLEEP_SECONDS), self._ring)

    def _ring(self) -> None:
        at, self._alarm, self._alarm_at = self._alarm_at, None, None
        if at is not None and self._now() < at:
            self._set_alarm()
        else:
            self.post(Tick())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, CorruptValueError):
            self._quarantined(error)
        elif isinstance(error, StoreError):
            # Another owner would get the same error.
            log.error("journal %s: the interval is given up: %s", self.journal, error)
            self.post(Deposed(str(error)))
        else:
            self._failed(error)

    def _acknowledge(self, instruction: Acknowledge) -> None:
        delivery = instruction.delivery
        delivery.channel.reply(delivery.token, instruction.outcome, instruction.remaining, instruction.message)

    def _release_prepared(self, instruction: ReleasePrepared) -> None:
        if not instruction.request.done():
            instruction.request.set_result(instruction)

    # The store.

    async def _until_certain(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat a call until its outcome is known."""
        failures = 0
        while True:
            try:
                return await call()
            except (StoreUnavailableError, CoordinatorUnavailableError) as error:
                log.warning("journal %s: trying again: %s", self.journal, error)
                failures += 1
                await asyncio.sleep(_BACKOFF.delay(failures, random.random()))

    async def _open(self, fence: FenceJournal) -> None:
        try:
            opened = await Opener(self._store, fence, self._until_certain, self._ahead).open()
        except (SequencerRefusedError, JournalMissingError, CorruptValueError) as error:
            log.error("journal %s cannot be opened: %s", fence.journal, error)
            self.post(OpenFailed(str(error), damaged=isinstance(error, (JournalMissingError, CorruptValueError))))
            return
        self.post(opened)

    async def _accept(self, request: AcceptSequencer) -> None:
        try:
            watermark = await self._peers.accept(request)
            log.info("interval %s: serves, sequencer %d", self.journal, request.sequencer)
            self.post(Accepted(watermark))
        except SequencerRefusedError as error:
            self.post(Deposed(str(error)))
            return
        await self._tidy(partial(self._delete_leftovers, request.sequencer))

    async def _append(self, instruction: AppendEntry) -> None:
        append: Append = instruction.append
        uncertain = False

        async def attempt() -> None:
            nonlocal uncertain
            try:
                await self._store.append(instruction.journal, append)
            except StoreUnavailableError:
                uncertain = True
                raise

        try:
            await self._until_certain(attempt)
        except SequencerRefusedError as error:
            applied = uncertain and (error.sequencer, error.commit) == (append.sequencer, append.commit)
            if not applied:
                self.post(Deposed(str(error)))
                return
        except CorruptValueError as error:
            self._quarantined(error)
            return
        except StoreError as error:
            self.post(Deposed(str(error)))
            return
        self.post(Appended(append.commit))

    async def _read_states(self, read: ReadStates) -> None:
        damaged: dict[bytes, str] = {}
        rows = await self._until_certain(lambda: read_rows(self._store, read.computation, read.keys, damaged))
        self.post(StatesRead(read.keys, rows, damaged))

    async def _flush(self, flush: FlushStates) -> None:
        await self._until_certain(
            lambda: self._store.write_states(flush.computation, flush.journal, flush.sequencer, flush.rows)
        )
        self.post(StatesFlushed(flush.number))

    async def _write_parts(self, write: WriteParts) -> None:
        for part, blob in write.parts.items():
            await self._until_certain(lambda part=part, blob=blob: self._store.write_part(write.journal, part, blob))  # type: ignore[misc]
        self.post(PartsWritten(write.number))

    async def _read_segments(self, read: ReadSegments) -> None:
        by_journal: dict[str, list[PartId]] = {}
        for part in read.parts:
            by_journal.setdefault(read.elsewhere.get(part, read.journal), []).append(part)
        found: dict[PartId, bytes] = {}
        try:
            for journal, parts in by_journal.items():
                blobs = await self._until_certain(partial(self._store.read_parts, journal, parts))
                found.update(zip(parts, blobs, strict=True))
        except CorruptValueError as error:
            self.post(PartsMissing(read.parts, error.where, error.why))
            return
        self.post(PartsRead(found))

    async def _copy_parts(self, instruction: CopyParts) -> None:
        """Copy one part after the other, because each may have a megabyte."""
        for journal, part, copy in instruction.copies:
            (blob,) = await self._until_certain(partial(self._store.read_parts, journal, [part]))
            await self._until_certain(partial(self._store.write_part, instruction.journal, copy, blob))
        self.post(PartsWritten(instruction.number))

    async def _delete_leftovers(self, sequencer: int) -> None:
        """Delete parts that earlier owners wrote and no head names: late bases, and failed deletions.

        A head names parts of earlier owners only if the previous head named them. So no later head can name the others.
        """
        store, journal = self._store, self.journal
        older = {part for part in await store.list_parts(journal) if part.sequencer < sequencer}
        if leftovers := older.difference((await store.read_head(journal)).parts):
            await store.delete_parts(journal, sorted(leftovers))

    async def _tidy(self, work: Callable[[], Awaitable[None]]) -> None:
        """Deletions may fail. A later deletion, the next takeover, or the deletion of the journal removes the rest."""
        try:
            await work()
        except StoreError as error:
            log.info("journal %s: a deletion failed and is left for later: %s", self.journal, error)

    # Other owners and hooks.

    async def _check_sequence(self, check: CheckSequence) -> None:
        lives = await self._until_certain(lambda: self._peers.sequence_lives(check.sequence))
        self.post(SequenceChecked(check.sequence, lives))

    def _begin_hook(self, hook: AsyncHook) -> None:
        # Close the coroutine: Python would warn the user if a task is cancelled before its first step.
        self._spawn(self._run_hook(hook)).add_done_callback(lambda _: hook.coroutine.close())

    async def _run_hook(self, hook: AsyncHook) -> None:
        error: BaseException | None = None
        try:
            result = await hook.coroutine
            if result is not None:
                refuse_result(getattr(hook.coroutine, "__qualname__", "a hook"), result)
        except asyncio.CancelledError:
            if self._closed:
                raise
            error = RuntimeError("the hook was cancelled")
        except (Exception, SystemExit) as raised:
            error = raised
        self.post(HookFinished(hook.hook, error))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection. A takeover creates hundreds of thousands of objects, and almost no garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _refuse(delivery: Delivery) -> None:
    if delivery.channel is not None:
        delivery.channel.reply(delivery.token, _NOT_OWNER, (), f"{delivery.journal} was released here")
