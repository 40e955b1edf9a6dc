"""One Report stream, kept open: the newest report of every interval, until it has arrived (7.2)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from millwheel.rpc.channel import RETRYABLE, Backoff
from millwheel.rpc.errors import calling, heed_cancellation
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.watermarks import (
    AcceptRefusedError,
    Member,
    PendingWork,
    WatermarkReport,
    report_from_wire,
    report_to_wire,
)
from millwheel.rpc.writing import writing

if TYPE_CHECKING:
    from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceAsyncStub

__all__ = ["PendingOf", "ReportStream", "connected", "nothing_told"]

log = logging.getLogger("millwheel.client")

_REPORTS_A_MESSAGE: Final = 1_000
_OFTEN: Final = 10
"""Failures in a row, some seconds, after which even those that pass by themselves are worth a line, one in so many."""
_HEALTHY: Final = 1.0
"""Seconds that a stream must have lasted for its end to count as a first failure."""

Key: TypeAlias = tuple[str, Member]

PendingOf: TypeAlias = Callable[[str], Mapping[Member, PendingWork]]
"""What the members of a computation that are reported here have at work."""


def nothing_told(computation: str) -> Mapping[Member, PendingWork]:
    """The answer of who has nothing to tell."""
    return {}


def _level(error: RequestError, before: int) -> int:
    """How loud a failure is told that had so many ``before`` it."""
    if error.code not in RETRYABLE:
        return logging.ERROR
    return logging.WARNING if before % _OFTEN == _OFTEN - 1 else logging.DEBUG


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[None]:
    """Around client calls: failures leave as a RequestError, and so does the closing of a channel under a call.

    gRPC shows the latter as a cancellation, which it is not unless this task was cancelled.
    """
    try:
        async with calling(address):
            yield
    except asyncio.CancelledError:
        heed_cancellation()
        raise RequestError(FailureCode.UNAVAILABLE, f"the connection to {address} was closed") from None


class ReportStream:
    """Keeps the newest report per computation and member; every reconnect sends all of them again."""

    def __init__(
        self,
        stub: Callable[[], Awaitable[tuple[WatermarkServiceAsyncStub, str]]],
        accept: Callable[[WatermarkReport], Awaitable[None]],
        on_refused: Callable[[WatermarkReport], None],
        *,
        pending_of: PendingOf = nothing_told,
        coalesce: float,
        refresh: float,
        backoff: Backoff,
    ) -> None:
        """``accept`` has a report's sequencer accepted, where the authority does not know it; ``pending_of`` tells what
        members of a computation have at work."""
        self._stub = stub
        self._accept = accept
        self._on_refused = on_refused
        self._pending_of = pending_of
        self._pending: dict[Key, PendingWork] = {}
        """What was asked for, to go with the next report of each."""
        self._coalesce = coalesce
        self._refresh = refresh
        self._backoff = backoff
        self._newest: dict[Key, WatermarkReport] = {}
        self._unsent: dict[Key, None] = {}
        self._accepting: dict[Key, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._not_before = 0.0
        self._number = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and stay so."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop."""
        tasks = [*self._accepting.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = None

    def report(self, report: WatermarkReport) -> int:
        """Number ``report`` and send it soon, unless a newer one of the same member comes before; its number."""
        key = (report.computation, report.member)
        self._number += 1
        report.number = self._number
        self._newest[key] = report
        if key not in self._accepting:
            self._unsent[key] = None
            self._changed.set()
        return report.number

    def forget(self, computation: str, member: Member) -> None:
        """Send nothing more of a member."""
        key = (computation, member)
        self._newest.pop(key, None)
        self._unsent.pop(key, None)
        self._pending.pop(key, None)

    async def _run(self) -> None:
        """Stream after stream."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            try:
                await self._one_stream()
            except RequestError as error:
                log.log(_level(error, failures), "reporting watermarks: %s", error)
            except Exception:
                # Whoever reports would be silent for good, and hold every low watermark after it.
                log.exception("watermarks cannot be reported, trying again")
            failures = 1 if loop.time() - began > _HEALTHY else failures + 1
            await asyncio.sleep(self._backoff.delay(failures, random.random()))

    async def _one_stream(self) -> None:
        """Open a stream, send everything, then what changes; returns or raises RequestError when it ends."""
        stub, address = await self._stub()
        call: Any = stub.Report()  # type: ignore[call-arg]  # the stubs know no call that is written to
        async with connected(address), writing(call, self._write(call)):
            async for response in call:
                self._heed(response)

    async def _write(self, call: Any) -> None:
        async for request in self._requests():
            await call.write(request)

    async def _requests(self) -> AsyncIterator[pb.ReportRequest]:
        """What goes out on one stream."""
        self._unsent = dict.fromkeys(self._newest)
        refresh_at = self._now() + self._refresh
        while True:
            if self._now() >= refresh_at:
                self._unsent = dict.fromkeys(self._newest)
                refresh_at = self._now() + self._refresh
            reports = self._take()
            if reports:
                self._not_before = self._now() + self._coalesce
                yield pb.ReportRequest(intervals=[report_to_wire(report) for report in reports])
            else:
                await self._more(refresh_at)

    def _take(self) -> list[WatermarkReport]:
        """The next unsent reports, no more of them than a message holds."""
        keys = [key for key, _ in zip(self._unsent, range(_REPORTS_A_MESSAGE), strict=False)]
        for key in keys:
            del self._unsent[key]
        newest = [self._newest[key] for key in keys if key not in self._accepting]
        for report in newest:
            report.pending = self._pending.pop((report.computation, report.member), None)
        return newest

    async def _more(self, until: float) -> None:
        """Wait for changes and, close after a message, for others; but for the first no longer than ``until``."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._changed.wait()
            await asyncio.sleep(max(0.0, self._not_before - self._now()))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _heed(self, response: pb.ReportResponse) -> None:
        """Give up what was refused, announce what was never accepted, tell what is asked for."""
        for computation in response.wanted:
            self._tell_pending(computation)
        for report in self._standing(response.refused):
            self.forget(report.computation, report.member)
            self._on_refused(report)
        for report in self._standing(response.unaccepted):
            key = (report.computation, report.member)
            if key not in self._accepting:
                task = asyncio.create_task(self._announce(key, report))
                self._accepting[key] = task

    def _tell_pending(self, computation: str) -> None:
        for member, pending in self._pending_of(computation).items():
            key = (computation, member)
            if key in self._newest and key not in self._accepting:
                self._pending[key] = pending
                self._unsent[key] = None
        self._changed.set()

    def _standing(self, messages: Sequence[pb.IntervalWatermark]) -> list[WatermarkReport]:
        """Those of ``messages`` that speak of the sequencers that are reported now, not of earlier ones."""
        reports = [report_from_wire(message) for message in messages]
        return [
            report
            for report in reports
            if (newest := self._newest.get((report.computation, report.member))) is not None
            and newest.sequencer == report.sequencer
        ]

    async def _announce(self, key: Key, report: WatermarkReport) -> None:
        """Have a sequencer accepted again, then report again."""
        try:
            await self._accept(report)
        except AcceptRefusedError:
            # Whoever refuses a sequencer says nothing of a newer one, under which the interval may be back by now.
            if (newest := self._newest.get(key)) is not None and newest.sequencer == report.sequencer:
                self.forget(*key)
                self._on_refused(report)
        except RequestError as error:
            log.warning("sequencer %d of %s: %s", report.sequencer, report.computation, error)
        finally:
            del self._accepting[key]
        if key in self._newest:
            self.report(self._newest[key])
