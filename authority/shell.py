"""The driver of one authority shard: it performs the core's I/O on the shard's journal (7.2).

Changes from reports and acceptances are collected for a few milliseconds and journaled in one append. One append is
in flight at a time. Changes that arrive meanwhile go into the next one.

Invariant: only a journaled append leads to an answer or a broadcast.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from time import monotonic_ns
from typing import Final, NamedTuple, assert_never

from prometheus_client import CollectorRegistry

from millwheel.authority.base import BaseSnapshot
from millwheel.authority.core import AuthorityCore, CoreSettings
from millwheel.authority.listeners import Listeners
from millwheel.authority.messages import (
    AnswerCall,
    AppendChanges,
    AppendJournaled,
    AuthorityEffect,
    AuthorityEvent,
    BroadcastValues,
    DeleteJournaled,
    ForgetComputation,
    InjectorsExpected,
    PercentileRequested,
    RefuseCall,
    RefuseReport,
    RemovalRequested,
    ReportsReceived,
    SequencerOffered,
    SnapshotWritten,
    Tick,
    WriteSnapshot,
)
from millwheel.authority.metrics import AuthorityMetrics
from millwheel.authority.pace import PaceSettings
from millwheel.authority.percentiles import WHOLE
from millwheel.authority.shares import Explanation, Refusal
from millwheel.authority.writer import JournalWriter, read_core
from millwheel.model.backoff import Backoff
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.watermarks import AcceptRefusedError, BroadcastUpdate, Member, WatermarkReport
from millwheel.store.contract import Append, SequencerRefusedError, StateStore

__all__ = ["AuthorityShell", "AuthorityStoppedError", "PercentileAnswer", "ShellSettings", "Wants"]

log = logging.getLogger("millwheel.authority")

_POLL_BACKOFF: Final = Backoff(0.002, 0.05)
"""Seconds between two checks whether all members have published their pending work: at first, and at most."""


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """Settings of one shard's driver. All times are in seconds.

    - ``coalesce``, ``rest``, ``longest_rest``, ``idle``, ``verify``: see ``PaceSettings`` (``authority/pace.py``).
    - ``ask``: how long members have to publish their pending work.
    """

    coalesce: float = 0.002
    rest: float = 0.0
    longest_rest: float = 1.0
    idle: float = 0.1
    verify: float = 5.0
    ask: float = 1.0
    core: CoreSettings = field(default_factory=CoreSettings)

    @property
    def paced(self) -> CoreSettings:
        """The core's settings, with the delays of these."""
        coalesce, longest_rest, idle, verify = (
            round(delay * 1e6) for delay in (self.coalesce, self.longest_rest, self.idle, self.verify)
        )
        return replace(self.core, pace=PaceSettings(coalesce, self.rest, longest_rest, idle, verify))


class PercentileAnswer(NamedTuple):
    """A percentile watermark, the number of the computation's members, and how many did not publish in time."""

    watermark: int
    members: int
    silent: int


class Wants:
    """Pending-work requests to owners. Each Report call listens, and passes requests on to its reporter."""

    def __init__(self) -> None:
        self._listeners: dict[Callable[[str], None], None] = {}

    def listen(self, want: Callable[[str], None]) -> None:
        """Call ``want`` with the name of each requested computation from now on. Call :meth:`leave` at the end."""
        self._listeners[want] = None

    def leave(self, want: Callable[[str], None]) -> None:
        """Stop calling ``want``."""
        self._listeners.pop(want, None)

    def ask(self, computation: str) -> None:
        """Request the pending work of all owners of ``computation``."""
        for want in self._listeners:
            want(computation)


class AuthorityStoppedError(RequestError):
    """This shard has stopped: a newer process deposed it, it was closed, or it lost its journal."""

    def __init__(self, journal: str, why: str) -> None:
        super().__init__(
            FailureCode.UNAVAILABLE,
            f"authority shard {journal} has stopped: {why}",
            "ask the coordinator which process has the shard, and connect there",
            reason="AUTHORITY_STOPPED",
        )


class AuthorityShell:
    """One running shard, created by :meth:`open`. All calls belong to one event loop."""

    def __init__(
        self, writer: JournalWriter, core: AuthorityCore, metrics: AuthorityMetrics, settings: ShellSettings
    ) -> None:
        self._writer = writer
        self._core = core
        self.wants = Wants()
        self._metrics = metrics
        self._settings = settings
        self._listeners = Listeners(lambda name: (core.broadcast(name), core.sequencers(name)))
        self._tokens = count()
        self._answers: dict[int, asyncio.Future[int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None
        self._appending: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped: str | None = None
        self._ended = asyncio.Event()
        for computation, watermark in core.computations().items():
            metrics.show(computation, watermark)
        self._step(Tick())

    @classmethod
    async def open(
        cls,
        store: StateStore,
        journal: str,
        sequencer: int,
        *,
        registry: CollectorRegistry | None = None,
        settings: ShellSettings | None = None,
    ) -> AuthorityShell:
        """Fence ``journal`` for the freshly drawn ``sequencer``, and restore the shard from it.

        Raises SequencerRefusedError if a newer process owns the journal, JournalMissingError if it was never created.
        Raises StoreUnavailableError if the outcome is unknown: draw a new sequencer and open again.
        """
        settings = settings or ShellSettings()
        core = await read_core(store, journal, sequencer, settings.paced)
        metrics = AuthorityMetrics(registry or CollectorRegistry())
        return cls(JournalWriter(store, journal), core, metrics, settings)

    @property
    def journal(self) -> str:
        """The shard's journal."""
        return self._core.journal

    def of(self, computation: str) -> AuthorityShell:
        """Return the shard that keeps ``computation``. A process with a single shard always gets this one."""
        return self

    @property
    def stopped(self) -> str | None:
        """Why the shard has stopped; None while it runs."""
        return self._stopped

    async def wait_stopped(self) -> str:
        """Wait until the shard stops, and return the reason."""
        await self._ended.wait()
        return self._stopped or ""

    async def close(self) -> None:
        """Stop. Changes that are not journaled are lost, and their owners report them again to the next process."""
        self._stop("it was closed")
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- calls -----------------------------------------------------------------------------------

    async def accept(self, computation: str, member: Member, sequencer: int, report_number: int = 0) -> int:
        """Accept ``sequencer`` as the owner of ``member`` (G4), and return the value last broadcast for it.

        The acceptance is journaled when this call returns. With ``report_number`` (injector processes only), the
        reports up to that number are journaled too.

        Raises AcceptRefusedError if a larger sequencer is the owner, AuthorityStoppedError if the outcome is unknown.
        Raises ReportNotReceivedError if that report was not received.
        """
        try:
            return await self._journaled(
                lambda token: SequencerOffered(token, computation, member, sequencer, report_number)
            )
        except AcceptRefusedError:
            self._metrics.refused.labels("acceptance").inc()
            raise

    async def report(self, reports: Sequence[WatermarkReport]) -> list[Refusal]:
        """Apply reports in order, and return the refused ones. AuthorityStoppedError once the shard has stopped."""
        self._check()
        self._metrics.reports.inc(len(reports))
        effects = self._step(ReportsReceived(reports))
        return [effect.refusal for effect in effects if isinstance(effect, RefuseReport)]

    async def expect_injectors(self, stream: str, processes: Iterable[str], as_of: int = 0) -> None:
        """Make ``stream``'s watermark wait for exactly ``processes`` (5.2). It is journaled when this call returns.

        ``as_of``: see :class:`InjectorsExpected`.
        """
        await self._journaled(lambda token: InjectorsExpected(token, stream, processes, as_of))

    async def remove(self, computation: str, up_to: int = 0) -> None:
        """Forget a cancelled computation. It is journaled when this call returns.

        With ``up_to``, nothing happens if a larger sequencer was accepted. The stream's name may be in use again by
        the time that a request of a deposed master arrives. After the removal no sequencer up to ``up_to`` is
        accepted.
        """
        self._check()
        if up_to and self._core.outlives(computation, up_to):
            return
        await self._journaled(lambda token: RemovalRequested(token, computation, up_to))

    async def watch(self, computations: Iterable[str]) -> AsyncGenerator[dict[str, BroadcastUpdate], None]:
        """Yield the broadcast values of ``computations`` at once, then changes.

        A slow listener gets only the newest.

        Raises AuthorityStoppedError when the shard stops.
        """
        self._check()
        listener = self._listeners.add(computations)
        try:
            while True:
                yield await listener.next()
        finally:
            self._listeners.remove(listener)

    def explain(self, computation: str, limit: int = 100) -> Explanation | None:
        """Return which members hold the watermark of ``computation``, and why (G8); None if it is unknown."""
        self._check()
        return self._core.explain(computation, _now(), limit)

    async def percentile(self, computation: str, basis_points: int) -> PercentileAnswer | None:
        """Return a percentile watermark of ``computation``, which ignores its smallest timestamps at work (7.2).

        Requests the members' pending work and waits up to :data:`ShellSettings.ask` seconds for it. Returns None if
        the computation is unknown.
        """
        self._check()
        since = _now()
        loop = asyncio.get_running_loop()
        until, polls = loop.time() + self._settings.ask, 0
        work = self._core.work(computation, since)
        if work is not None:
            self.wants.ask(computation)
        while work is not None and work.silent and loop.time() < until and basis_points < WHOLE:
            polls += 1
            await asyncio.sleep(_POLL_BACKOFF.delay(polls, random.random()))
            work = self._core.work(computation, since)
        if work is None:
            return None
        self._check()
        try:
            value = await self._journaled(lambda token: PercentileRequested(token, computation, basis_points, since))
        except KeyError:
            return None
        return PercentileAnswer(value, work.members, work.silent)

    # -- the journal -----------------------------------------------------------------------------

    async def _journaled(self, event: Callable[[int], AuthorityEvent]) -> int:
        """Pass an event with a fresh token to the core, and wait for the token's answer."""
        self._check()
        token = next(self._tokens)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answers[token] = answer
        try:
            self._step(event(token))
            return await answer
        finally:
            del self._answers[token]

    def _check(self) -> None:
        if self._stopped is not None:
            raise self._failure()

    def _failure(self) -> AuthorityStoppedError:
        return AuthorityStoppedError(self.journal, self._stopped or "")

    def _step(self, event: AuthorityEvent) -> Sequence[AuthorityEffect]:
        """Pass an event to the core, and perform its effects."""
        effects = self._core.step(event, _now())
        self._perform(effects)
        self._arm()
        return effects

    def _arm(self) -> None:
        """Bring the core a ``Tick`` at its next deadline."""
        at = self._core.next_deadline()
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, at
        if at is not None and self._stopped is None:
            delay = max(0.0, (at - _now()) / 1e6)
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        try:
            self._step(Tick())
        except Exception as error:
            self._fail(error)

    def _perform(self, effects: Sequence[AuthorityEffect]) -> None:
        for effect in effects:
            match effect:
                case RefuseReport(refusal):
                    self._metrics.refused.labels("superseded" if refusal.superseded else "unaccepted").inc()
                case AppendChanges(append):
                    self._appending = self._spawn(partial(self._append, append))
                case AnswerCall() | RefuseCall():
                    self._answer(effect)
                case BroadcastValues(values, sequencers):
                    self._listeners.hear(values, sequencers)
                    for computation, watermark in values.items():
                        self._metrics.show(computation, watermark)
                case ForgetComputation(computation):
                    self._metrics.forget(computation)
                case DeleteJournaled(below, parts):
                    self._spawn(partial(self._writer.tidy, below, parts))
                case WriteSnapshot(snapshot):
                    self._spawn(partial(self._snapshot, snapshot))
                case _:
                    assert_never(effect)

    def _answer(self, effect: AnswerCall | RefuseCall) -> None:
        answer = self._answers.get(effect.token)
        if answer is None or answer.done():
            return
        if isinstance(effect, AnswerCall):
            answer.set_result(effect.watermark)
        else:
            answer.set_exception(effect.error)

    async def _append(self, append: Append) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            await self._writer.append(append)
        except SequencerRefusedError as error:
            self._stop(f"deposed, {error}")
            return
        self._metrics.append.observe(clock() - began)
        self._step(AppendJournaled())

    async def _snapshot(self, snapshot: BaseSnapshot) -> None:
        """Write a base while appends continue. The next append names it."""
        await self._writer.write_parts(snapshot)
        self._step(SnapshotWritten(snapshot))

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run ``work`` in the background.

        The task itself starts ``work``, so a task that is cancelled before it runs leaves nothing half started.
        """

        async def run() -> None:
            try:
                await work()
            except Exception as error:
                self._fail(error)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _fail(self, error: Exception) -> None:
        log.error("authority shard %s cannot go on", self.journal, exc_info=error)
        self._stop(f"{type(error).__name__}: {error}")

    def _stop(self, why: str) -> None:
        """Stop the shard: no answer and no broadcast leaves it any more."""
        if self._stopped is not None:
            return
        self._stopped = why
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._failure())
        self._listeners.fail(self._failure)
        if self._timer is not None:
            self._timer.cancel()
        if self._appending is not None and asyncio.current_task() is not self._appending:
            self._appending.cancel()
        self._ended.set()


def _now() -> int:
    """The core's clock, in microseconds."""
    return monotonic_ns() // 1_000
