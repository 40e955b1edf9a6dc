"""Drives one core: performs its effects, and posts the events that report their results.

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
from typing import Any, Final, Protocol, assert_never
from weakref import WeakKeyDictionary

from millwheel.coordination.contract import CoordinatorUnavailableError
from millwheel.model.backoff import Backoff
from millwheel.model.core_protocol import Core
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
from millwheel.worker.log.messages import CursorsAnswer, EndSubscription, LogEffect, LogEvent, Publish, SubscriberEffect
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
    HookReport,
    HooksSlow,
    IntervalEffect,
    IntervalEvent,
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
    Started,
    StatesFlushed,
    StatesRead,
    StoreEffect,
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


ServedEvent = IntervalEvent | LogEvent
ServedEffect = IntervalEffect | LogEffect
ServedCore = Core[Any, ServedEffect]
"""What a host drives: an interval core, or a stream log's core. It passes on only events of that core."""


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
        hooks: Callable[[HookReport], None] | None = None,
        subscribers: Callable[[SubscriberEffect], None] | None = None,
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
            hooks: Takes the reports about hooks. None: the log.
            subscribers: Performs the effects of a stream log on its subscribers. An interval core has none.
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
        """Seconds spent in the core, including the performance of its effects."""
        self._hooks = self._log_hook if hooks is None else hooks
        self._subscribers = subscribers

    def start(self) -> None:
        """Start the core."""
        self._step(Started())

    def post(self, event: ServedEvent) -> None:
        """Let the core process ``event`` after all events posted before."""
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

    def _handle(self, event: ServedEvent) -> None:
        if self._closed:
            return
        began = perf_counter()
        if type(event) is Opened:
            with _uncollected():
                self._step(event)
        else:
            self._step(event)
        self.busy += perf_counter() - began
        if isinstance(event, Deposed | OpenFailed) and not self._closed:
            self._shut()
            if isinstance(event, OpenFailed) and event.damaged:
                self.damage = event.reason
            self._peers.lost(self, event.reason)

    def _step(self, event: ServedEvent) -> None:
        """Perform a step. A core with an internal error must stop: its successor starts from the journal.

        If stored data is damaged, a successor would fail in the same way. So the interval is quarantined.
        """
        try:
            self._perform(self.core.step(event, self._now()))
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

    def _perform(self, effects: Sequence[ServedEffect]) -> None:
        for effect in effects:
            match effect:
                case Acknowledge():
                    self._acknowledge(effect)
                case SendDelivery():
                    self._peers.send(self, effect)
                case Report():
                    self._peers.report(effect)
                case AcceptSequencer():
                    self._spawn(self._accept(effect))
                case CheckSequence():
                    self._spawn(self._check_sequence(effect))
                case AsyncHook():
                    self._begin_hook(effect)
                case GiveUp():
                    self.post(Deposed(effect.reason))
                case HookFailed() | HooksSlow():
                    self._hooks(effect)
                case ReleasePrepared():
                    self._release_prepared(effect)
                case Publish() | EndSubscription() | CursorsAnswer():
                    self._perform_for_subscribers(effect)
                case _:
                    self._spawn(self._perform_at_store(effect))
        self._set_alarm()

    def _perform_at_store(self, effect: StoreEffect) -> Coroutine[Any, Any, None]:
        match effect:
            case AppendEntry():
                return self._append(effect)
            case FlushStates():
                return self._flush(effect)
            case ReadStates():
                return self._read_states(effect)
            case WriteParts():
                return self._write_parts(effect)
            case ReadSegments():
                return self._read_segments(effect)
            case CopyParts():
                return self._copy_parts(effect)
            case DeleteEntries():
                return self._tidy(partial(self._store.delete_entries, effect.journal, effect.below))
            case DeleteParts():
                return self._tidy(partial(self._store.delete_parts, effect.journal, effect.parts))
            case FenceJournal():
                return self._open(effect)
            case _:
                assert_never(effect)

    def _perform_for_subscribers(self, effect: SubscriberEffect) -> None:
        if self._subscribers is None:
            raise TypeError(f"{type(effect).__name__} is an effect of a stream log, and this host has no subscribers")
        self._subscribers(effect)

    def _log_hook(self, report: HookReport) -> None:
        match report:
            case HookFailed():
                log.warning("%s", report.message, exc_info=report.error)
            case HooksSlow():
                log.warning("journal %s: %s", self.journal, report.batch)
            case _:
                assert_never(report)

    def _set_alarm(self) -> None:
        at = self.core.next_deadline()
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

    def _acknowledge(self, answer: Acknowledge) -> None:
        delivery = answer.delivery
        delivery.channel.reply(delivery.token, answer.outcome, answer.remaining, answer.message)

    def _release_prepared(self, effect: ReleasePrepared) -> None:
        if not effect.request.done():
            effect.request.set_result(effect)

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

    async def _append(self, effect: AppendEntry) -> None:
        append: Append = effect.append
        uncertain = False

        async def attempt() -> None:
            nonlocal uncertain
            try:
                await self._store.append(effect.journal, append)
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

    async def _copy_parts(self, effect: CopyParts) -> None:
        """Copy one part after the other, because each may have a megabyte."""
        for journal, part, copy in effect.copies:
            (blob,) = await self._until_certain(partial(self._store.read_parts, journal, [part]))
            await self._until_certain(partial(self._store.write_part, effect.journal, copy, blob))
        self.post(PartsWritten(effect.number))

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
