"""What a host does with each event: it brings the event to its core, and performs the effects.

:class:`~millwheel.worker.process.host.CoreHost` adds the host's start, its failures and its end.
:mod:`millwheel.worker.process.calls` has the calls that a core waits for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from operator import attrgetter
from time import perf_counter
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from millwheel.coordination.contract import CoordinatorUnavailableError
from millwheel.model.core_protocol import Core
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import SequencerRefusedError, StateStore, StoreUnavailableError
from millwheel.store.repetition import CertainCalls
from millwheel.worker.interval.hook_meter import BatchTime
from millwheel.worker.log.messages import EndSubscription, LogAnswer, LogEffect, LogEvent, Publish, SubscriberEffect
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
    JournalStands,
    Opened,
    OpenFailed,
    ReleasePrepared,
    Report,
    SendDelivery,
    Tick,
)
from millwheel.worker.process.calls import CallingHost, HostCalls
from millwheel.worker.process.opening import uncollected

__all__ = ["EventHost", "HostedCore", "HostedEvent", "RunQueue", "RunShare", "refuse_not_owner", "steady_now"]

log = logging.getLogger("millwheel.worker")

_RUN_SECONDS: Final = 0.005
"""How long the run queue runs before sockets and timers are served."""

_SLICE_SECONDS: Final = 0.001
"""How long one share of the run queue runs before the next one is chosen."""

_BATCH_SECONDS: Final = 0.1
"""How long a batch of hooks may take. The calls of clients and of other processes wait for it."""

_SHARED_BATCH_SECONDS: Final = 0.01
"""The same while other shares have work. It is still some ten times what a commit takes."""

_SHARED_SECONDS: Final = 1.0
"""How long batches stay so short after another share was served."""

MAX_SLEEP_SECONDS: Final = 30.0
"""Maximum seconds until the wall clock is read again, however far away an alarm is. The clock may have been set
forward. And the event loop's timers do not count the time during which the machine was suspended."""

_ACKED: Final = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
_NOT_OWNER: Final = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER


HostedEvent = IntervalEvent | LogEvent
HostedEffect = IntervalEffect | LogEffect
HostedCore = Core[Any, HostedEffect]
"""What a host drives: an interval core, or a stream log's core. It passes on only events of that core."""


def steady_now() -> int:
    """Microseconds since an arbitrary moment before this process began. This clock is never set."""
    return time.monotonic_ns() // 1_000


class RunShare:
    """The calls of one topology in a :class:`RunQueue`, first in, first out."""

    def __init__(self, queue: RunQueue, weight: float) -> None:
        self._queue = queue
        self.weight = weight
        """How much time it gets, beside the weights of the others that have work."""
        self.used = 0.0
        """The seconds that its calls took, divided by the weight. After idle time it begins at the others' value."""
        self.calls: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.ready = False

    def post(self, call: Callable[[Any], None], argument: Any) -> None:
        """Run ``call(argument)`` soon, after everything that this share posted before."""
        self.calls.append((call, argument))
        if not self.ready:
            self._queue.enter(self)


class RunQueue:
    """Runs posted calls on the event loop. A call that raises is logged, and the next one runs.

    Cores of one process send to each other without a network. Posting instead of calling keeps the stack flat, and
    lets every core run. The next calls are those of the share that has used the least time (start-time fair
    queueing). So a topology with much work leaves the others their time, however many intervals it has.

    Exceptions that end the process (SystemExit, KeyboardInterrupt) propagate to the loop. The rest runs if the loop
    continues.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: list[RunShare] = []
        self._least = 0.0
        """What the share that was served last had used. No share begins below it, so idle time is not saved up."""
        self._shares: WeakValueDictionary[str, RunShare] = WeakValueDictionary()
        self._scheduled = False
        self.batch_time = BatchTime(_BATCH_SECONDS)
        """How long a batch of hooks may take now."""
        self._last: RunShare | None = None
        self._shared_until = 0.0

    def share(self, name: str, weight: float = 1.0) -> RunShare:
        """The share of ``name``, now with ``weight``. It lasts as long as a host holds it."""
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = RunShare(self, weight)
        if weight != share.weight:  # what it used beyond the others counts by the new weight, too
            share.used = self._least + (share.used - self._least) * share.weight / weight
            share.weight = weight
        return share

    def enter(self, share: RunShare) -> None:
        """``share`` has calls again."""
        share.ready = True
        share.used = max(share.used, self._least)
        self._ready.append(share)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        now = time.monotonic()
        deadline = now + _RUN_SECONDS
        try:
            while self._ready and now < deadline:
                share = min(self._ready, key=attrgetter("used"))
                if share is not self._last:
                    self._last, self._shared_until = share, now + _SHARED_SECONDS
                    self.batch_time.seconds = _SHARED_BATCH_SECONDS
                elif now > self._shared_until:
                    self.batch_time.seconds = _BATCH_SECONDS
                self._least, began = share.used, now
                now = self._serve(share, now + _SLICE_SECONDS)
                share.used += (now - began) / share.weight
        finally:
            if self._ready:
                self._loop.call_soon(self._run)
            else:
                self._scheduled = False

    def _serve(self, share: RunShare, until: float) -> float:
        """Run calls of ``share`` until a time. Returns the time."""
        calls, now = share.calls, until
        while calls:
            call, argument = calls.popleft()
            try:
                call(argument)
            except (Exception, asyncio.CancelledError):
                # This callback is not a task, so ``CancelledError`` has no owner and would stop the queue.
                log.exception("a call of the run queue failed")
            now = time.monotonic()
            if now > until:
                break
        if not calls:
            share.ready = False
            self._ready.remove(share)
        return now


class EventHost(ABC):
    """One core in this process, as events reach it. All events enter through ``post``.

    It has many attributes: the core's surroundings, its alarm, and what is posted and not handled yet.
    """

    _calls: HostCalls
    """Performs the calls that the core waits for."""

    def __init__(
        self,
        journal: str,
        core: HostedCore,
        store: StateStore,
        queue: RunShare,
        clock: Callable[[], int],
        send: Callable[[SendDelivery], None],
        report: Callable[[Report], None],
        hooks: Callable[[HookReport], None],
        subscribers: Callable[[SubscriberEffect], None],
        refused: Callable[[Delivery, DeliveryOutcome.ValueType], None],
    ) -> None:
        """``send`` sends a batch to its owner. The answer is posted to this host. ``refused`` counts a refusal."""
        self.journal = journal
        self.core = core
        self._now = clock
        self._store = store
        self.certain = CertainCalls(f"journal {journal}", (StoreUnavailableError, CoordinatorUnavailableError))
        """The calls that the core waits for. Any thread may ask whether one is repeated."""
        self._queue = queue
        self._send, self._report, self._hooks, self._subscribers = send, report, hooks, subscribers
        self._refused = refused
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at: int | None = None
        self.closed = False
        self._deliveries: WeakKeyDictionary[Delivery, None] = WeakKeyDictionary()
        """Deliveries that are still referenced in this process: all unanswered ones, and perhaps others."""
        self.busy = 0.0
        """Seconds spent in the core, including the performance of its effects."""

    # Events.

    def post(self, event: HostedEvent) -> None:
        """Let the core process ``event`` after all events posted before."""
        if type(event) is Delivery:
            if self.closed:
                refuse_not_owner(event)
                return
            self._deliveries[event] = None
        if not self.closed:
            self._queue.post(self._handle, event)

    def _handle(self, event: HostedEvent) -> None:
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
            self._lost(event)

    def _step(self, event: HostedEvent) -> None:
        """Perform a step. A core with an internal error must stop: its successor starts from the journal."""
        try:
            self.perform(self.core.step(event, self._now()))
        except Exception as error:
            self._failed(error)

    # Effects.

    def perform(self, effects: Sequence[HostedEffect]) -> None:
        """Perform the effects of an event, in their order."""
        for effect in effects:
            match effect:
                case Acknowledge():
                    answered = effect.delivery
                    answered.channel.reply(answered.token, effect.outcome, effect.remaining, effect.message)
                    if effect.outcome != _ACKED:
                        self._refused(answered, effect.outcome)
                case SendDelivery():
                    self._send(effect)
                case Report():
                    self._report(effect)
                case AppendEntry():
                    self._spawn(append(self, self.certain, self._store, effect))
                case Publish() | EndSubscription() | LogAnswer():
                    self._subscribers(effect)
                case AsyncHook():
                    # Close the coroutine: Python would warn the user if a task is cancelled before its first step.
                    running = self._spawn(self._calls.run_hook(effect))
                    running.add_done_callback(lambda _, hook=effect: hook.coroutine.close())  # type: ignore[misc]
                case HookFailed() | HooksSlow():
                    self._hooks(effect)
                case GiveUp():
                    self.post(Deposed(effect.reason))
                case ReleasePrepared() | JournalStands():
                    _answer_request(effect)
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
            self._alarm = asyncio.get_running_loop().call_later(min(delay, MAX_SLEEP_SECONDS), self._ring)

    def _ring(self) -> None:
        at, self._alarm, self._alarm_at = self._alarm_at, None, None
        if at is not None and self._now() < at:
            self._set_alarm()
        else:
            self.post(Tick())

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    # What ends the host.

    @abstractmethod
    def _lost(self, event: Deposed | OpenFailed) -> None:
        """The core has lost its journal."""

    @abstractmethod
    def _failed(self, error: BaseException) -> None:
        """A step or a task raised an error."""


def _answer_request(effect: ReleasePrepared | JournalStands) -> None:
    if not effect.request.done():
        effect.request.set_result(effect)


def refuse_not_owner(delivery: Delivery) -> None:
    """Answer a delivery that no core here will answer."""
    if delivery.channel is not None:
        delivery.channel.reply(delivery.token, _NOT_OWNER, (), f"{delivery.journal} was released here")


async def append(host: CallingHost, certain: CertainCalls, store: StateStore, effect: AppendEntry) -> None:
    """Append to the journal, and post the result. An append of unknown outcome is repeated until it is certain."""
    try:
        await certain.append(store, effect.journal, effect.append)
    except SequencerRefusedError as error:
        host.post(Deposed(str(error)))
        return
    host.post(Appended(effect.append.commit))
