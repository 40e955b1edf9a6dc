"""The authority's I/O: one shard on its journal (7.2).

What reports and acceptances change is coalesced over a few milliseconds and journaled in one append;
one append is in flight at a time, and what comes meanwhile goes with the next. Only a journaled
append lets anything out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from time import monotonic_ns
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry

from millwheel.authority.base import Snapshot
from millwheel.authority.core import AuthorityCore, CoreSettings, Effects
from millwheel.authority.listeners import Listeners
from millwheel.authority.metrics import AuthorityMetrics
from millwheel.authority.percentiles import WHOLE
from millwheel.authority.shares import Explanation, Refusal
from millwheel.authority.writer import JournalWriter, read_core
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.watermarks import AcceptRefusedError, BroadcastUpdate, Member, WatermarkReport
from millwheel.store.contract import Append, SequencerRefusedError, StateStore

__all__ = ["AuthorityShell", "AuthorityStoppedError", "PercentileAnswer", "ShellSettings", "Wants"]

log = logging.getLogger("millwheel.authority")

_LOOK_FIRST: Final = 0.002
_LOOK_LAST: Final = 0.05
"""Seconds between two looks whether all have told what they were asked for."""


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """Seconds.

    ``coalesce``: how far apart appends are at least, so that changes that come close together share one. ``rest``:
    how many times as long as an append took nothing is appended after it, but what somebody waits for: where the
    store is slow, watermarks must not be what keeps it busy. ``longest_rest``: but never for longer; an append may have
    taken as long as the store was away, and watermarks may not stand still for a multiple of that.
    ``idle``: how long a change may wait that nobody waits for. ``verify``: how often a shard without changes
    makes sure that it was not deposed, for else those who listen to it would hear nothing for ever. ``ask``: how
    long members may take to tell what they have at work.
    """

    coalesce: float = 0.002
    rest: float = 0.0
    longest_rest: float = 1.0
    idle: float = 0.1
    verify: float = 5.0
    ask: float = 1.0
    core: CoreSettings = field(default_factory=CoreSettings)


class PercentileAnswer(NamedTuple):
    """A percentile watermark; how many members the computation has, and how many have told nothing in time."""

    watermark: int
    members: int
    silent: int


class Wants:
    """Asks owners for what they have at work: whoever listens passes it on to those who report to it."""

    def __init__(self) -> None:
        self._listeners: dict[Callable[[str], None], None] = {}

    def listen(self, want: Callable[[str], None]) -> None:
        """``want`` is called with what is asked for from now on; :meth:`leave` in the end."""
        self._listeners[want] = None

    def leave(self, want: Callable[[str], None]) -> None:
        """Hear nothing more."""
        self._listeners.pop(want, None)

    def ask(self, computation: str) -> None:
        """Ask the owners of ``computation``, which is known."""
        for want in self._listeners:
            want(computation)


class AuthorityStoppedError(RequestError):
    """This shard has stopped: it was deposed by a newer process, closed, or lost its journal."""

    def __init__(self, journal: str, why: str) -> None:
        super().__init__(
            FailureCode.UNAVAILABLE,
            f"authority shard {journal} has stopped: {why}",
            "ask the coordinator which process has the shard, and connect there",
            reason="AUTHORITY_STOPPED",
        )


class AuthorityShell:
    """One running shard. All calls are for one event loop; made by :meth:`open`."""

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
        self._wake = asyncio.Event()
        self._idle: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped: str | None = None
        self._not_before = 0.0
        self._rest_until = 0.0
        self._asked = asyncio.Event()
        """Set while somebody waits for what no append holds yet."""
        self._ended = asyncio.Event()
        for computation, watermark in core.computations().items():
            metrics.show(computation, watermark)
        self._appender = asyncio.create_task(self._append_for_ever())
        self._changed()

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
        """Fence ``journal`` for ``sequencer``, which nobody else has drawn, and take up its values.

        SequencerRefusedError if a newer process has it, JournalMissingError if it was never created,
        StoreUnavailableError if nothing is known: draw a new sequencer and open again.
        """
        settings = settings or ShellSettings()
        core = await read_core(store, journal, sequencer, settings.core)
        metrics = AuthorityMetrics(registry or CollectorRegistry())
        return cls(JournalWriter(store, journal), core, metrics, settings)

    @property
    def journal(self) -> str:
        """The shard's journal."""
        return self._core.journal

    def of(self, computation: str) -> AuthorityShell:
        """The shard that keeps ``computation``: to whoever has but one, it is this one."""
        return self

    @property
    def stopped(self) -> str | None:
        """Why the shard has stopped, if it has."""
        return self._stopped

    async def wait_stopped(self) -> str:
        """Wait until the shard stops, for whatever reason, and say why."""
        await self._ended.wait()
        return self._stopped or ""

    async def close(self) -> None:
        """Stop. What is not journaled is as if never said; owners say it again to the next process."""
        self._stop("it was closed")
        for task in [self._appender, *self._tasks]:
            task.cancel()
        await asyncio.gather(self._appender, *self._tasks, return_exceptions=True)

    # -- calls -----------------------------------------------------------------------------------

    async def accept(self, computation: str, member: Member, sequencer: int, report_number: int = 0) -> int:
        """Let ``sequencer`` speak for ``member`` (G4); journaled when it returns what was last broadcast for it, and so
        is what a process has reported up to ``report_number``.

        AcceptRefusedError if a larger one does; AuthorityStoppedError if it is not known whether it was accepted.
        ReportNotHeardError if that report has not come.
        """
        try:
            return await self._journaled(
                lambda token: self._core.accept_sequencer(token, computation, member, sequencer, report_number)
            )
        except AcceptRefusedError:
            self._metrics.refused.labels("acceptance").inc()
            raise

    async def report(self, reports: Sequence[WatermarkReport]) -> list[Refusal]:
        """Take reports, in order; those that do not count, and why. AuthorityStoppedError once nothing counts."""
        self._check()
        refused = self._core.report(reports, monotonic_ns() // 1_000)
        self._metrics.reports.inc(len(reports))
        for refusal in refused:
            self._metrics.refused.labels("superseded" if refusal.superseded else "unaccepted").inc()
        self._changed()
        return refused

    async def expect_injectors(self, stream: str, processes: Iterable[str], as_of: int = 0) -> None:
        """Have ``stream``'s watermark wait for exactly ``processes`` (5.2); journaled when it returns.

        ``as_of``: see :meth:`AuthorityCore.expect_injectors`.
        """
        await self._journaled(lambda token: self._core.expect_injectors(token, stream, processes, as_of))

    async def remove(self, computation: str, up_to: int = 0) -> None:
        """Forget a computation that was cancelled; journaled when it returns.

        With ``up_to`` nothing happens if a larger sequencer was accepted: a stream's name may have come back while a
        master that was deposed held on to the request. Nor is one up to it accepted any more.
        """
        self._check()
        if up_to and self._core.outlives(computation, up_to):
            return
        await self._journaled(lambda token: self._core.remove(token, computation, up_to))

    async def watch(self, computations: Iterable[str]) -> AsyncGenerator[dict[str, BroadcastUpdate], None]:
        """The broadcast values of ``computations`` at once, then what changes; to a slow listener only the newest.

        Ends with AuthorityStoppedError when the shard stops.
        """
        self._check()
        listener = self._listeners.add(computations)
        try:
            while True:
                yield await listener.next()
        finally:
            self._listeners.remove(listener)

    def explain(self, computation: str, limit: int = 100) -> Explanation | None:
        """Which members hold the watermark of ``computation``, and by what (G8); None if it is unknown."""
        self._check()
        return self._core.explain(computation, monotonic_ns() // 1_000, limit)

    async def percentile(self, computation: str, basis_points: int) -> PercentileAnswer | None:
        """The watermark of ``computation`` alone without the smallest timestamps at work in it (7.2); None if unknown.

        Its members are asked what they have at work, and have :data:`ShellSettings.ask` seconds to tell.
        """
        self._check()
        since = monotonic_ns() // 1_000
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + self._settings.ask, _LOOK_FIRST
        work = self._core.work(computation, since)
        if work is not None:
            self.wants.ask(computation)
        while work is not None and work.silent and loop.time() < until and basis_points < WHOLE:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LOOK_LAST)
            work = self._core.work(computation, since)
        if work is None:
            return None
        self._check()
        try:
            value = await self._journaled(
                lambda token: self._core.decide_percentile(token, computation, basis_points, since)
            )
        except KeyError:
            return None
        return PercentileAnswer(value, work.members, work.silent)

    # -- the journal -----------------------------------------------------------------------------

    async def _journaled(self, event: Callable[[int], None]) -> int:
        """Give the core an event with a token, and wait for its answer."""
        self._check()
        token = next(self._tokens)
        event(token)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answers[token] = answer
        self._asked.set()
        self._changed()
        try:
            return await answer
        finally:
            del self._answers[token]

    def _check(self) -> None:
        if self._stopped is not None:
            raise self._failure()

    def _failure(self) -> AuthorityStoppedError:
        return AuthorityStoppedError(self.journal, self._stopped or "")

    def _changed(self) -> None:
        """See to it that what waits is journaled: soon, or by and by if nobody waits for it."""
        if self._core.urgent:
            self._wake.set()
        elif self._core.dirty and self._idle is None:
            self._idle = asyncio.get_running_loop().call_later(self._settings.idle, self._wake.set)

    async def _append_for_ever(self) -> None:
        """Append after append until the shard stops."""
        try:
            while True:
                woken = await self._woken()
                self._wake.clear()
                if self._idle is not None:
                    self._idle.cancel()
                    self._idle = None
                self._asked.clear()
                append = self._core.next_append(even_if_empty=not woken)
                if append is not None:
                    await self._append(append)
                    self._perform(self._core.appended())
                self._changed()
        except SequencerRefusedError as error:
            self._stop(f"deposed, {error}")
        except Exception as error:
            log.exception("authority shard %s cannot go on", self.journal)
            self._stop(f"{type(error).__name__}: {error}")

    async def _append(self, append: Append) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        await self._writer.append(append)
        took = clock() - began
        self._metrics.append.observe(took)
        self._not_before = began + self._settings.coalesce
        self._rest_until = clock() + min(self._settings.rest * took, self._settings.longest_rest)

    async def _woken(self) -> bool:
        """Wait for a change and, close after an append, for others; False if none came for long."""
        try:
            async with asyncio.timeout(self._settings.verify):
                await self._wake.wait()
        except TimeoutError:
            return False
        await asyncio.sleep(max(0.0, self._not_before - asyncio.get_running_loop().time()))
        try:
            async with asyncio.timeout_at(self._rest_until):
                await self._asked.wait()
        except TimeoutError:
            """Nobody waited for an answer."""
        return True

    def _perform(self, effects: Effects) -> None:
        """Let out what the journal now knows."""
        for token, watermark in effects.answers:
            answer = self._answers.get(token)
            if answer is not None and not answer.done():
                answer.set_result(watermark)
        self._listeners.hear(effects.values, effects.sequencers)
        for computation, watermark in effects.values.items():
            self._metrics.show(computation, watermark)
        for computation in effects.removed:
            self._metrics.forget(computation)
        if effects.delete_below is not None:
            self._spawn(partial(self._writer.tidy, effects.delete_below, effects.delete_parts))
        if effects.snapshot is not None:
            self._spawn(partial(self._snapshot, effects.snapshot))

    async def _snapshot(self, snapshot: Snapshot) -> None:
        """Write a base while appends go on; the next of them names it."""
        await self._writer.write_parts(snapshot)
        self._core.snapshot_written(snapshot)
        self._changed()

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work`` beside. It is begun by its task: one that is cancelled before leaves nothing half begun."""

        async def run() -> None:
            try:
                await work()
            except Exception as error:
                log.exception("authority shard %s cannot go on", self.journal)
                self._stop(f"{type(error).__name__}: {error}")

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _stop(self, why: str) -> None:
        """Let nothing out any more."""
        if self._stopped is not None:
            return
        self._stopped = why
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._failure())
        self._listeners.fail(self._failure)
        if self._idle is not None:
            self._idle.cancel()
        if asyncio.current_task() is not self._appender:
            self._appender.cancel()
        self._ended.set()
