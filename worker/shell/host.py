"""Drives the cores of one process: brings events to them, and performs their effects.

A host makes no decisions. Calls that a core waits for are in :mod:`millwheel.worker.shell.calls`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from millwheel.coordination.contract import CoordinatorUnavailableError
from millwheel.model.core_protocol import Core
from millwheel.rpc.clock import wall_now
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.sdk.error_texts import error_message
from millwheel.store.contract import (
    CorruptValueError,
    SequencerRefusedError,
    StateStore,
    StoreError,
    StoreUnavailableError,
)
from millwheel.store.repetition import CertainCalls
from millwheel.worker.log.messages import CursorsAnswer, EndSubscription, LogEffect, LogEvent, Publish, SubscriberEffect
from millwheel.worker.messages import (
    Acknowledge,
    Appended,
    AppendEntry,
    AsyncHook,
    Delivery,
    Deposed,
    GiveUp,
    HookFailed,
    HookReport,
    HooksSlow,
    IntervalEffect,
    IntervalEvent,
    Opened,
    OpenFailed,
    PrepareRelease,
    ReleasePrepared,
    Report,
    SendDelivery,
    Started,
    Tick,
)
from millwheel.worker.shell.calls import CallingHost, CallPeers, HostCalls
from millwheel.worker.shell.opening import ReadAhead, uncollected

__all__ = ["CoreHost", "HostPeers", "RunQueue", "RunningInterval", "ServedCore", "steady_now"]

log = logging.getLogger("millwheel.worker")

_TURN_SECONDS: Final = 0.005
"""How long the run queue runs before sockets and timers get their turn."""

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


def steady_now() -> int:
    """Microseconds since an arbitrary moment before this process began. This clock is never set."""
    return time.monotonic_ns() // 1_000


class RunQueue:
    """A first-in, first-out queue of calls on the event loop. A call that raises is logged, and the next one runs.

    Cores of one process send to each other without a network. Posting instead of calling keeps the stack flat, and
    gives every core its turn. Exceptions that end the process (SystemExit, KeyboardInterrupt) propagate to the loop.
    The rest runs if the loop continues.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._scheduled = False

    def post(self, call: Callable[[Any], None], argument: Any) -> None:
        """Run ``call(argument)`` soon, after everything posted before."""
        self._calls.append((call, argument))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        calls = self._calls
        deadline = time.monotonic() + _TURN_SECONDS
        try:
            while calls:
                call, argument = calls.popleft()
                try:
                    call(argument)
                except (Exception, asyncio.CancelledError):
                    # This callback is not a task, so ``CancelledError`` has no owner and would stop the queue.
                    log.exception("a call of the run queue failed")
                if time.monotonic() > deadline:
                    break
        finally:
            if calls:
                self._loop.call_soon(self._run)
            else:
                self._scheduled = False


class RunningInterval(Protocol):
    """An interval that runs in this process."""

    host: CoreHost


class HostPeers(CallPeers, Protocol):
    """What a host needs besides the store."""

    def send(self, host: CoreHost, send: SendDelivery, /) -> None:
        """Send a batch to its owner, in this process or another. The answer is posted to ``host``."""

    def report(self, report: Report, /) -> None:
        """Report to the authority."""

    def lost(self, host: CoreHost, reason: str) -> None:
        """The host's core has lost the interval: it is not the owner any more."""


class CoreHost:
    """One core in this process. All events enter through ``post``.

    Invariant: every posted delivery is answered, by the core or, once the host is closed, by NOT_OWNER. ``fault`` names
    the internal error that ended the core, if any. In that case the interval has no successor yet.

    It has many attributes: the core's surroundings, its alarm, and what is posted and not handled yet.
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
        self.core = core
        self._now = clock
        self._store = store
        self._certain = CertainCalls(f"journal {journal}", (StoreUnavailableError, CoordinatorUnavailableError))
        self._peers = peers
        self._queue = queue
        self._calls = HostCalls(self, store, peers, self._certain, {} if ahead is None else ahead)
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at: int | None = None
        self.closed = False
        self._deliveries: WeakKeyDictionary[Delivery, None] = WeakKeyDictionary()
        """Deliveries that are still referenced in this process: all unanswered ones, and perhaps others."""
        self._releases: set[asyncio.Future[ReleasePrepared]] = set()
        """Requests that wait until the journal is short."""
        self.fault = ""
        self.damage = ""
        """The missing or damaged stored value, if it is the reason why the interval was given up."""
        self.busy = 0.0
        """Seconds spent in the core, including the performance of its effects."""
        self._hooks = _log_hook if hooks is None else hooks
        self._subscribers = _no_subscribers if subscribers is None else subscribers

    def start(self) -> None:
        """Start the core."""
        self._step(Started())

    # Events.

    def post(self, event: ServedEvent) -> None:
        """Let the core process ``event`` after all events posted before."""
        if type(event) is Delivery:
            if self.closed:
                _refuse(event)
                return
            self._deliveries[event] = None
        if not self.closed:
            self._queue.post(self._handle, event)

    def _handle(self, event: ServedEvent) -> None:
        if self.closed:
            return
        began = perf_counter()
        if type(event) is Opened:
            with uncollected():
                self._step(event)
        else:
            self._step(event)
        self.busy += perf_counter() - began
        if isinstance(event, Deposed | OpenFailed) and not self.closed:
            if isinstance(event, OpenFailed) and event.damaged:
                self.damage = event.reason
            self._give_up(event.reason)

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

    # Effects.

    def _perform(self, effects: Sequence[ServedEffect]) -> None:
        for effect in effects:
            match effect:
                case Acknowledge():
                    answered = effect.delivery
                    answered.channel.reply(answered.token, effect.outcome, effect.remaining, effect.message)
                case SendDelivery():
                    self._peers.send(self, effect)
                case Report():
                    self._peers.report(effect)
                case AppendEntry():
                    self._spawn(append(self, self._certain, self._store, effect))
                case Publish() | EndSubscription() | CursorsAnswer():
                    self._subscribers(effect)
                case AsyncHook():
                    # Close the coroutine: Python would warn the user if a task is cancelled before its first step.
                    running = self._spawn(self._calls.run_hook(effect))
                    running.add_done_callback(lambda _, hook=effect: hook.coroutine.close())  # type: ignore[misc]
                case HookFailed() | HooksSlow():
                    self._hooks(effect)
                case GiveUp():
                    self.post(Deposed(effect.reason))
                case ReleasePrepared():
                    if not effect.request.done():
                        effect.request.set_result(effect)
                case _:
                    self._spawn(self._calls.perform(effect))
        self._set_alarm()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    # The alarm.

    def _set_alarm(self) -> None:
        at = self.core.next_deadline()
        if at == self._alarm_at and self._alarm is not None:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_at = at
        if at is not None and not self.closed:
            delay = max(0.0, (at - self._now()) / 1e6)
            self._alarm = asyncio.get_running_loop().call_later(min(delay, _MAX_SLEEP_SECONDS), self._ring)

    def _ring(self) -> None:
        at, self._alarm, self._alarm_at = self._alarm_at, None, None
        if at is not None and self._now() < at:
            self._set_alarm()
        else:
            self.post(Tick())

    # Errors.

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

    def _quarantined(self, error: StoreError) -> None:
        if not self.closed:
            log.error("journal %s: the interval stops: its stored data is damaged: %s", self.journal, error)
            self.damage = str(error)
            self._give_up(self.damage)

    def _failed(self, error: BaseException) -> None:
        if not self.closed:
            log.error("journal %s: the interval is given up after an internal error", self.journal, exc_info=error)
            self.fault = f"internal error: {error_message(error)}"
            self._give_up(self.fault)

    def _give_up(self, reason: str) -> None:
        self._shut()
        self._peers.lost(self, reason)

    # The end.

    async def prepare_release(self) -> ReleasePrepared | None:
        """Reduce what a successor must read, while work continues. Returns None if the interval is lost meanwhile."""
        if self.closed:
            return None
        request: asyncio.Future[ReleasePrepared] = asyncio.get_running_loop().create_future()
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
        self.closed = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for delivery in list(self._deliveries):
            _refuse(delivery)
        self._deliveries.clear()
        for request in self._releases:
            request.cancel()


def _refuse(delivery: Delivery) -> None:
    if delivery.channel is not None:
        delivery.channel.reply(delivery.token, _NOT_OWNER, (), f"{delivery.journal} was released here")


def _log_hook(report: HookReport) -> None:
    log.warning("%s", report.message if isinstance(report, HookFailed) else report.batch)


def _no_subscribers(effect: SubscriberEffect) -> None:
    raise TypeError(f"{type(effect).__name__} is an effect of a stream log, and this host has no subscribers")


async def append(host: CallingHost, certain: CertainCalls, store: StateStore, effect: AppendEntry) -> None:
    """Append to the journal, and post the result. An append of unknown outcome is repeated until it is certain."""
    try:
        await certain.append(store, effect.journal, effect.append)
    except SequencerRefusedError as error:
        host.post(Deposed(str(error)))
        return
    host.post(Appended(effect.append.commit))
