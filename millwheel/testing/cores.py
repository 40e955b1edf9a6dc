"""Drives interval cores in virtual time. Each effect is performed at once, on a memory store.

Nothing waits, and the clock changes only when a caller sets it. An effect that cannot be performed is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, assert_never

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.operators.enriching import SKIPS_WAITS
from millwheel.store.memory import MemoryStore
from millwheel.testing.store_effects import perform_at_store
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.hooks.failures import refuse_result
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    AnswerDelivery,
    AsyncHook,
    CheckSequence,
    Deposed,
    GiveUp,
    HookFailed,
    HookFinished,
    HookReport,
    HooksSlow,
    IntervalEffect,
    IntervalEvent,
    PeerEffect,
    ReleasePrepared,
    Report,
    SendDelivery,
    SequenceChecked,
    SnapshotHoldAnswer,
    Started,
    Tick,
)

__all__ = ["HOOK_TIMEOUT_SECONDS", "CoreDriver", "HarnessPeers", "HookTimeoutError"]

HOOK_TIMEOUT_SECONDS: Final = 60.0
"""The default limit for an asynchronous hook, in real seconds. It is far more than a hook needs."""

_CLEANUP_SECONDS: Final = 1.0
"""The real seconds that a cancelled hook has for its cleanup."""


class HookTimeoutError(TimeoutError):
    """An asynchronous hook did not end in time. Possibly nothing completes what it awaits."""


class HarnessPeers(Protocol):
    """The cores' environment except the store. ``journal`` identifies the core that makes the request."""

    def send_batch(self, journal: str, one: SendDelivery) -> None:
        """Deliver a batch to its consumer."""

    def answer(self, journal: str, one: AnswerDelivery) -> None:
        """Send an answer to a batch's sender."""

    def report(self, journal: str, one: Report) -> None:
        """Receive a report for the authority."""

    def hook_failed(self, journal: str, one: HookFailed) -> None:
        """Record a failed hook."""


class CoreDriver:
    """Drives interval cores. Each is identified by its journal."""

    def __init__(
        self, store: MemoryStore, now: int, peers: HarnessPeers, hook_timeout_seconds: float = HOOK_TIMEOUT_SECONDS
    ) -> None:
        """Start without cores.

        Args:
            store: The store of the cores. It outlives them.
            now: The first value of the virtual clock, in microseconds.
            peers: The cores' environment except the store.
            hook_timeout_seconds: The real seconds after which an asynchronous hook fails with a HookTimeoutError.
        """
        self.store = store
        self.now = now
        self.cores: dict[str, IntervalCore] = {}
        self._peers = peers
        self._events: deque[tuple[str, IntervalEvent]] = deque()
        self._later: list[tuple[int, int, str, IntervalEvent]] = []
        """A heap of events at future virtual times."""
        self._order = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hook_timeout_seconds = hook_timeout_seconds
        self._timed_out = False
        """Whether a hook has timed out in this call of the test.

        No other hook begins in this call then, because each might take as long.
        """
        self._put_off: list[tuple[str, AsyncHook]] = []
        """Hooks that begin in the next call."""

    def start(self, core: IntervalCore) -> None:
        """Start ``core``, and drive it from now on."""
        journal = core.state.config.journal
        self.cores[journal] = core
        self._step(journal, core, Started())

    def clear(self) -> None:
        """Drop all cores, and all events for them."""
        self.cores.clear()
        self._events.clear()
        self._later.clear()
        for _, hook in self._put_off:
            hook.coroutine.close()
        self._put_off.clear()

    def post(self, journal: str, event: IntervalEvent) -> None:
        """Let a core handle ``event`` after all earlier events. If the core does not exist, the event is dropped."""
        self._events.append((journal, event))

    def post_to_all(self, event: IntervalEvent) -> None:
        """Let every core handle ``event``."""
        for journal in self.cores:
            self.post(journal, event)

    def post_later(self, delay: int, journal: str, event: IntervalEvent) -> None:
        """Let a core handle ``event`` after ``delay`` microseconds of virtual time."""
        heapq.heappush(self._later, (self.now + delay, next(self._order), journal, event))

    def run(self) -> None:
        """Handle events until none is left."""
        if not self._timed_out:
            put_off, self._put_off = self._put_off, []
            for journal, hook in put_off:
                self.perform(journal, hook)
        while self._events:
            journal, event = self._events.popleft()
            core = self.cores.get(journal)
            if core is not None:
                self._step(journal, core, event)

    def pass_time(self, duration: int) -> None:
        """Advance virtual time by ``duration`` microseconds. Events in that time happen at their own moments."""
        end = self.now + duration
        while (event := self._next_event(end)) is not None:
            at, journal, what = event
            self.now = max(self.now, at)
            self.post(journal, what)
            self.run()
        self.now = end
        self.post_to_all(Tick())
        self.run()

    def end_call(self) -> None:
        """End a call of the test. Postponed hooks may begin in the next one."""
        self._timed_out = False

    def close(self, *last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close the event loop of asynchronous hooks. ``last``: what runs there before, if it ever ran a hook."""
        if self._loop is not None:
            for one in last:
                self._loop.run_until_complete(one())
            if tasks := asyncio.all_tasks(self._loop):
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=_CLEANUP_SECONDS))
            self._loop.close()
            self._loop = None

    def _next_event(self, end: int) -> tuple[int, str, IntervalEvent] | None:
        """The next event up to the time ``end`` that only needs time to pass; None if there is none."""
        alarms = [(at, journal) for journal, core in self.cores.items() if (at := core.next_deadline()) is not None]
        first = min(alarms, default=None)
        if self._later and self._later[0][0] <= end and (first is None or self._later[0][0] <= first[0]):
            time, _, journal, event = heapq.heappop(self._later)
            return time, journal, event
        return (*first, Tick()) if first is not None and first[0] <= end else None

    # Effects.

    def _step(self, journal: str, core: IntervalCore, event: IntervalEvent) -> None:
        for effect in core.step(event, self.now):
            self.perform(journal, effect)

    def perform(self, journal: str, effect: IntervalEffect) -> None:
        """Perform an effect of the core with this journal. AssertionError for an unknown effect."""
        answer = self._answer(journal, effect)
        if answer is not None:
            self.post(journal, answer)

    def _answer(self, journal: str, effect: IntervalEffect) -> IntervalEvent | None:
        """Perform an effect. Returns the event that answers it; None if there is none yet."""
        match effect:
            case SendDelivery() | AnswerDelivery() | Report() | AcceptSequencer() | CheckSequence():
                return self._perform_for_peers(journal, effect)
            case AsyncHook():
                return self._run_hook(journal, effect)
            case HookFailed() | HooksSlow():
                self._take_report(journal, effect)
            case GiveUp():
                return Deposed(effect.reason)
            case ReleasePrepared() | SnapshotHoldAnswer():
                raise AssertionError(f"journal {journal}: it answers a release or a snapshot that nothing asked for")
            case _:
                return perform_at_store(self.store, effect)
        return None

    def _perform_for_peers(self, journal: str, effect: PeerEffect) -> IntervalEvent | None:
        match effect:
            case SendDelivery():
                self._peers.send_batch(journal, effect)
            case AnswerDelivery():
                self._peers.answer(journal, effect)
            case Report():
                self._peers.report(journal, effect)
            case AcceptSequencer():
                return Accepted(MIN_TIMESTAMP)
            case CheckSequence():
                return SequenceChecked(effect.sequence, True)
            case _:
                assert_never(effect)
        return None

    def _take_report(self, journal: str, report: HookReport) -> None:
        match report:
            case HookFailed():
                self._peers.hook_failed(journal, report)
            case HooksSlow():
                """Virtual time stands still while a hook runs."""
            case _:
                assert_never(report)

    def _run_hook(self, journal: str, one: AsyncHook) -> IntervalEvent | None:
        if self._timed_out:
            self._put_off.append((journal, one))
            return None
        try:
            result = self._wait_for(one.coroutine)
            if result is not None:
                refuse_result(getattr(one.coroutine, "__qualname__", "a hook"), result)
        except asyncio.CancelledError:
            return HookFinished(one.hook, RuntimeError("the hook was cancelled"))
        except (Exception, SystemExit) as error:
            return HookFinished(one.hook, error)
        return HookFinished(one.hook, None)

    def _wait_for(self, coroutine: Coroutine[Any, Any, object]) -> object:
        """The result of a hook. A hook that never yields to the event loop cannot be stopped."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        loop, limit = self._loop, self._hook_timeout_seconds
        token = SKIPS_WAITS.set(True)
        task = asyncio.ensure_future(coroutine, loop=loop)
        SKIPS_WAITS.reset(token)
        try:
            return _run_until(loop, task, limit)
        except RuntimeError:
            if task.done():
                raise
        self._timed_out = True
        task.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError, SystemExit):
            _run_until(loop, task, _CLEANUP_SECONDS)
        hook = getattr(coroutine, "__qualname__", "the hook")
        raise HookTimeoutError(
            f"{hook} has not ended after {limit:g} s of real time: perhaps nothing ends what it awaits. Virtual time "
            "stands still meanwhile. If it needs longer, write TopologyHarness(..., hook_timeout_seconds=...)"
        )


def _run_until(loop: asyncio.AbstractEventLoop, task: asyncio.Future[Any], seconds: float) -> Any:
    """The task's result; RuntimeError if the task does not end within this many real seconds."""
    alarm = loop.call_later(seconds, loop.stop)
    try:
        return loop.run_until_complete(task)
    finally:
        alarm.cancel()
