"""What a host does with each event: it brings the event to its core, and performs the effects.

:class:`~millwheel.worker.process.host.CoreHost` adds the host's start, its failures and its end.
:mod:`millwheel.worker.process.appends` has the appends, and :mod:`millwheel.worker.process.calls` the other calls that
a core waits for.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final
from weakref import WeakKeyDictionary

from millwheel.coordination.contract import CoordinatorUnavailableError
from millwheel.model.core_protocol import Core
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import StateStore, StoreUnavailableError
from millwheel.store.repetition import RetriedCalls
from millwheel.worker.log.messages import EndSubscription, LogAnswer, LogEffect, LogEvent, Publish, SubscriberEffect
from millwheel.worker.messages import (
    AnswerDelivery,
    Appended,
    AppendEntry,
    AsyncHook,
    Delivery,
    Deposed,
    GiveUp,
    GroupWatermarks,
    HookFailed,
    HookReport,
    HooksSlow,
    IntervalEffect,
    IntervalEvent,
    Opened,
    OpenFailed,
    ReleasePrepared,
    Report,
    SendDelivery,
    SnapshotHoldAnswer,
    Tick,
)
from millwheel.worker.process.appends import JournalAppends, after_sync_of
from millwheel.worker.process.calls import HostCalls
from millwheel.worker.process.opening import without_garbage_collection
from millwheel.worker.process.run_queue import RunShare

__all__ = ["EventHost", "HostedCore", "HostedEvent", "refuse_not_owner"]

log = logging.getLogger("millwheel.worker")

MAX_SLEEP_SECONDS: Final = 30.0
"""Maximum seconds until the wall clock is read again, however far away an alarm is. The clock may have been set
forward. And the event loop's timers do not count the time during which the machine was suspended."""

ALARM_SLACK_SECONDS: Final = 0.001
"""An alarm that rings so late stays. Two readings of both clocks never agree, and a loop's timers are no more exact."""

_ACKED: Final = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
_NOT_OWNER: Final = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER


HostedEvent = IntervalEvent | LogEvent
HostedEffect = IntervalEffect | LogEffect
_LeavingEffect = Report | SubscriberEffect | ReleasePrepared | SnapshotHoldAnswer
"""An effect that others than this process's intervals see."""
HostedCore = Core[Any, HostedEffect]
"""What a host drives: an interval core, or a stream log's core. It passes on only events of that core."""


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
        self.retried = RetriedCalls(f"journal {journal}", (StoreUnavailableError, CoordinatorUnavailableError))
        """The calls that the core waits for. Any thread may ask whether one is repeated."""
        self._appends = JournalAppends(self, store, self.retried, queue.at_end)
        self._after_sync: Callable[[Callable[[], None]], None] = after_sync_of(store)
        self._queue = queue
        self._send, self._report, self._hooks, self._subscribers = send, report, hooks, subscribers
        self._refused = refused
        self._tasks: set[asyncio.Task[None]] = set()
        self._unstarted: dict[int, Coroutine[Any, Any, object]] = {}
        """The asynchronous hooks that wait for a sync, by number."""
        self._newest_report: Report | None = None
        """The newest report, while one waits for a sync."""
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at: int | None = None
        """The core's deadline, by its clock. None: it has none."""
        self._rings_at = 0.0
        """When ``_alarm`` rings, by the loop's clock, if there is one."""
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
        if isinstance(event, Delivery | Appended | GroupWatermarks):
            event.followed = self._queue.follows(self._handle, Delivery)
        if type(event) is Opened:
            with without_garbage_collection():
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
            self.failed(error)

    # Effects.

    def perform(self, effects: Sequence[HostedEffect]) -> None:
        """Perform the effects of an event, in their order.

        Invariant (G1, G7): what leaves the process because of a commit leaves it when the commit is on the disk. The
        core may have its :class:`Appended` before that. Who could break it: an effect that leaves the process, and does
        not wait for ``_after_sync``. An asynchronous hook is one: it writes to other systems, and acknowledges what
        it has read there. Batches and ACKs between intervals of this process need not wait: what follows from them is
        written after the commit, so the disk has it only if it has the commit.
        """
        for effect in effects:
            match effect:
                case AnswerDelivery():
                    self._answer(effect)
                case SendDelivery():
                    self._send(effect)
                case Report():
                    self._report_soon(effect)
                case Publish() | EndSubscription() | LogAnswer() | ReleasePrepared() | SnapshotHoldAnswer():
                    self._after_sync(partial(self._leaves, effect))
                case AsyncHook():
                    self._unstarted[effect.hook] = effect.coroutine
                    self._after_sync(partial(self._start_hook, effect))
                case AppendEntry():
                    self._appends.begin(effect)
                case HookFailed() | HooksSlow():
                    self._hooks(effect)
                case GiveUp():
                    self.post(Deposed(effect.reason))
                case _:
                    self.spawn(self._calls.perform(effect))
        self._set_alarm()

    def _answer(self, effect: AnswerDelivery) -> None:
        if getattr(effect.delivery.channel, "is_local", False):
            self._reply(effect)
        else:
            self._after_sync(partial(self._leaves, effect))
        if effect.outcome != _ACKED:
            self._refused(effect.delivery, effect.outcome)

    def _leaves(self, effect: AnswerDelivery | _LeavingEffect) -> None:
        """Everything that the effect depends on is on the disk."""
        if self.closed:
            return
        match effect:
            case AnswerDelivery():
                self._reply(effect)
            case Report():
                self._report(effect)
            case ReleasePrepared() | SnapshotHoldAnswer():
                _answer_request(effect)
            case _:
                self._subscribers(effect)

    def _report_soon(self, report: Report) -> None:
        """Report after the sync. While syncs fail, one report waits for its sync, and the newest one waits for it."""
        waiting, self._newest_report = self._newest_report, report
        if waiting is None:
            self._after_sync(partial(self._report_held, report))

    def _report_held(self, report: Report) -> None:
        newest, self._newest_report = self._newest_report, None
        self._leaves(report)
        if newest is not None and newest is not report:
            self._report_soon(newest)

    def _start_hook(self, effect: AsyncHook) -> None:
        if self._unstarted.pop(effect.hook, None) is None:
            return  # the host was closed meanwhile
        # Close the coroutine: Python would warn the user if a task is cancelled before its first step.
        running = self.spawn(self._calls.run_hook(effect))
        running.add_done_callback(lambda _: effect.coroutine.close())

    @staticmethod
    def _reply(effect: AnswerDelivery) -> None:
        answered = effect.delivery
        answered.channel.reply(answered.token, effect.outcome, effect.indexes, effect.message)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine, which ends with the host."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    # The alarm.

    def _set_alarm(self) -> None:
        """Let ``_ring`` run by the core's deadline. An alarm that rings before it stays, and is set again then.

        Deadlines mostly move away with each event. A timer for each of them would cost more than the early alarm.

        Invariant (G8): the alarm rings by the deadline, or after ``MAX_SLEEP_SECONDS``. Who could break it: code that
        compares the deadline with a time of the alarm by the core's clock, which may have been set since.
        """
        at = self._alarm_at = self.core.next_deadline()
        if at is None or self.closed:
            return
        loop = asyncio.get_running_loop()
        delay = min(max(0.0, (at - self._now()) / 1e6), MAX_SLEEP_SECONDS)
        rings_at = loop.time() + delay
        if self._alarm is not None:
            if self._rings_at <= rings_at + ALARM_SLACK_SECONDS:
                return
            self._alarm.cancel()
        self._rings_at = rings_at
        self._alarm = loop.call_later(delay, self._ring)

    def _ring(self) -> None:
        at, self._alarm = self._alarm_at, None
        if at is None:
            return
        if self._now() < at:
            self._set_alarm()
        else:
            self.post(Tick())

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)

    # What ends the host.

    @abstractmethod
    def _lost(self, event: Deposed | OpenFailed) -> None:
        """The core has lost its journal."""

    @abstractmethod
    def failed(self, error: BaseException) -> None:
        """A step or a task raised an error."""


def _answer_request(effect: ReleasePrepared | SnapshotHoldAnswer) -> None:
    if not effect.request.done():
        effect.request.set_result(effect)


def refuse_not_owner(delivery: Delivery) -> None:
    """Answer a delivery that no core here will answer."""
    if delivery.channel is not None:
        delivery.channel.reply(delivery.token, _NOT_OWNER, (), f"{delivery.journal} was released here")
