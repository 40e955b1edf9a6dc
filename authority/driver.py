"""The driver of one authority shard: it performs the core's effects on the shard's journal (7.2).

Changes from reports and acceptances are collected for a few milliseconds and journaled in one append. One append is
in flight at a time. Changes that arrive meanwhile go into the next one.

Invariant: only a journaled append leads to an answer or a broadcast.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import assert_never

from millwheel.authority.base import BaseSnapshot
from millwheel.authority.broadcasts import Broadcasts
from millwheel.authority.core import AuthorityCore
from millwheel.authority.members import Refusal
from millwheel.authority.messages import (
    AnswerCall,
    AppendChanges,
    AppendJournaled,
    AuthorityEffect,
    AuthorityEvent,
    BroadcastValues,
    DeleteJournaled,
    RefuseCall,
    RefuseReport,
    ReportsReceived,
    SnapshotWritten,
    Tick,
    WriteSnapshot,
)
from millwheel.authority.metrics import AuthorityMetrics
from millwheel.authority.writer import JournalWriter
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.report_columns import ReportColumns
from millwheel.rpc.watermarks import WatermarkReport
from millwheel.store.contract import Append, SequencerRefusedError

__all__ = ["AuthorityDriver", "AuthorityStoppedError", "now_us"]

log = logging.getLogger("millwheel.authority")


class AuthorityStoppedError(RequestError):
    """This shard has stopped: a newer process deposed it, it was closed, or it lost its journal."""

    def __init__(self, journal: str, why: str) -> None:
        super().__init__(
            FailureCode.UNAVAILABLE,
            f"authority shard {journal} has stopped: {why}",
            "ask the coordinator which process has the shard, and connect there",
            reason="AUTHORITY_STOPPED",
        )


class AuthorityDriver:
    """One running shard: it applies reports, appends what changed, and broadcasts what is journaled.

    All calls belong to one event loop.
    """

    def __init__(self, writer: JournalWriter, core: AuthorityCore, metrics: AuthorityMetrics) -> None:
        self._writer = writer
        self._core = core
        self._metrics = metrics
        self.broadcasts = Broadcasts(core.broadcast, core.sequencers)
        self._answers: dict[int, asyncio.Future[int]] = {}
        """The calls that wait for their answers, by token."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None
        self._appending: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped: str | None = None
        self._ended = asyncio.Event()
        self._step(Tick())

    @property
    def journal(self) -> str:
        """The shard's journal."""
        return self._core.journal

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

    async def report(self, reports: Sequence[WatermarkReport], columns: Sequence[ReportColumns] = ()) -> list[Refusal]:
        """Apply reports in order, and return the refused ones. AuthorityStoppedError once the shard has stopped."""
        self._check()
        self._metrics.reports.inc(len(reports) + sum(many.count for many in columns))
        effects = self._step(ReportsReceived(reports, columns))
        return [effect.refusal for effect in effects if isinstance(effect, RefuseReport)]

    # -- the journal -----------------------------------------------------------------------------

    def _check(self) -> None:
        if self._stopped is not None:
            raise self._failure()

    def _failure(self) -> AuthorityStoppedError:
        return AuthorityStoppedError(self.journal, self._stopped or "")

    def _step(self, event: AuthorityEvent) -> Sequence[AuthorityEffect]:
        """Pass an event to the core, and perform its effects."""
        effects = self._core.step(event, now_us())
        self.perform(effects)
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
            delay = max(0.0, (at - now_us()) / 1e6)
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        try:
            self._step(Tick())
        except Exception as error:
            self._fail(error)

    def perform(self, effects: Sequence[AuthorityEffect]) -> None:
        """Perform the effects of an event, in their order."""
        for effect in effects:
            match effect:
                case RefuseReport(refusal):
                    self._metrics.refused.labels("superseded" if refusal.superseded else "unaccepted").inc()
                case AppendChanges(append):
                    self._appending = self._spawn(partial(self._append, append))
                case AnswerCall() | RefuseCall():
                    self._answer(effect)
                case BroadcastValues(values, sequencers):
                    self.broadcasts.publish(values, sequencers)
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
        self.broadcasts.fail(self._failure)
        if self._timer is not None:
            self._timer.cancel()
        if self._appending is not None and asyncio.current_task() is not self._appending:
            self._appending.cancel()
        self._ended.set()


def now_us() -> int:
    """The core's clock, in microseconds."""
    return monotonic_ns() // 1_000
