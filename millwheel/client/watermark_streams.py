"""The two streams to one shard of the low watermark authority, which are reopened after failures (7.2).

One sends the newest report of every interval until it has arrived. The other receives broadcast watermarks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc

from millwheel.model.backoff import Backoff
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.cancelling import cancellations, raise_if_cancelled
from millwheel.rpc.channel import RETRYABLE
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.report_columns import request_to_wire
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.watermarks import (
    AcceptRefusedError,
    BroadcastUpdate,
    Member,
    PendingWork,
    WatermarkReport,
    report_from_wire,
    sequencers_from_wire,
)
from millwheel.rpc.writing import writing

if TYPE_CHECKING:
    from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceAsyncStub

__all__ = ["PendingOf", "ReportStream", "Stub", "connected", "nothing_reported", "watch_watermarks"]

log = logging.getLogger("millwheel.client")

_MAX_REPORTS_PER_MESSAGE: Final = 1_000
_MANY_FAILURES: Final = 10
"""A warning is logged once in so many failures in a row, for failures that pass by themselves. This takes seconds."""
_HEALTHY_SECONDS: Final = 1.0
"""If a stream ends after more seconds than this, the failure count starts at 1 again."""

Key: TypeAlias = tuple[str, Member]

Stub: TypeAlias = "Callable[[], Awaitable[tuple[WatermarkServiceAsyncStub, str]]]"
"""Returns a stub for the shard's current server, and the server's address."""

PendingOf: TypeAlias = Callable[[str], Mapping[Member, PendingWork]]
"""Returns the pending work of those members of a group that report here."""


def nothing_reported(group: str) -> Mapping[Member, PendingWork]:
    """A ``PendingOf`` without pending work."""
    return {}


def _level(error: RequestError, before: int) -> int:
    """The log level of a failure after ``before`` other failures in a row."""
    if error.code not in RETRYABLE:
        return logging.ERROR
    return logging.WARNING if before % _MANY_FAILURES == _MANY_FAILURES - 1 else logging.DEBUG


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[None]:
    """Context of client calls. It converts failures to RequestError, also the closing of a channel during a call.

    gRPC shows that closing as a cancellation. It is a real cancellation only if this task was cancelled in the context.
    """
    before = cancellations()
    try:
        yield
    except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
        raise _failure(error, address, before) from error


def _failure(error: BaseException, address: str, before: int) -> RequestError:
    raise_if_cancelled(before)
    if isinstance(error, grpc.aio.AioRpcError):
        return from_rpc_error(error, address)
    return RequestError(FailureCode.UNAVAILABLE, f"the connection to {address} was closed")


class ReportStream:
    """Keeps the newest report of each group and member. After a reconnect all of them are sent again.

    It has many attributes: what is kept of each member, the open stream's form and pace, and the caller's functions.
    """

    def __init__(
        self,
        stub: Stub,
        accept: Callable[[WatermarkReport], Awaitable[None]],
        on_refused: Callable[[WatermarkReport], None],
        *,
        pending_of: PendingOf = nothing_reported,
        coalesce: float,
        refresh: float,
        backoff: Backoff,
    ) -> None:
        """Create a stream.

        Args:
            stub: Returns a stub for the authority, and its address.
            accept: Announces a report's sequencer if the authority does not know it.
            on_refused: Called with a report whose sequencer is out of date.
            pending_of: Returns the pending work of a group's members.
            coalesce: The least number of seconds between two messages.
            refresh: Seconds after which every report is sent again.
            backoff: The back-off between connections.
        """
        self._stub = stub
        self._accept = accept
        self._on_refused = on_refused
        self._pending_of = pending_of
        self._pending: dict[Key, PendingWork] = {}
        """Requested pending work, to send with the next report of each member."""
        self._coalesce = coalesce
        self._refresh = refresh
        self._backoff = backoff
        self._newest: dict[Key, WatermarkReport] = {}
        self._unsent: dict[Key, None] = {}
        self._accepting: dict[Key, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._not_before = 0.0
        self._number = 0
        self._by_columns = False
        """Whether the authority of the open stream has stated that it reads columns."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect and stay connected."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop reporting."""
        tasks = [*self._accepting.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = None

    def report(self, report: WatermarkReport) -> int:
        """Number ``report`` and queue it. A newer report of the same member replaces it. Returns its number."""
        key = (report.group, report.member)
        self._number += 1
        report.number = self._number
        self._newest[key] = report
        if key not in self._accepting:
            self._unsent[key] = None
            self._changed.set()
        return report.number

    def forget(self, group: str, member: Member) -> None:
        """Stop reports about a member."""
        key = (group, member)
        self._newest.pop(key, None)
        self._unsent.pop(key, None)
        self._pending.pop(key, None)

    async def _run(self) -> None:
        """Open streams, one after the other."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            try:
                await self._one_stream()
            except RequestError as error:
                log.log(_level(error, failures), "reporting watermarks: %s", error)
            except Exception:
                # Without another attempt this reporter would be silent for good, and would hold every low watermark
                # after it.
                log.exception("watermarks cannot be reported, trying again")
            failures = 1 if loop.time() - began > _HEALTHY_SECONDS else failures + 1
            await asyncio.sleep(self._backoff.delay(failures, random.random()))

    async def _one_stream(self) -> None:
        """Open a stream, send every report, then each change.

        Returns or raises RequestError at the end of the stream.
        """
        stub, address = await self._stub()
        self._by_columns = False  # a stream may lead to an authority of an earlier version
        call: Any = stub.Report()  # type: ignore[call-arg]  # the stubs know no call that is written to
        async with connected(address), writing(call, self._write(call)):
            async for response in call:
                self.received(response)

    async def _write(self, call: Any) -> None:
        """Write the messages of one stream."""
        refresh_at = self._now()
        while True:
            if self._now() >= refresh_at:
                self._unsent = dict.fromkeys(self._newest)
                refresh_at = self._now() + self._refresh
            if reports := self._take():
                self._not_before = self._now() + self._coalesce
                await call.write(request_to_wire(reports, by_columns=self._by_columns))
            else:
                await self._more(refresh_at)

    def _take(self) -> list[WatermarkReport]:
        """Remove and return the next unsent reports, at most as many as fit into a message."""
        keys = [key for key, _ in zip(self._unsent, range(_MAX_REPORTS_PER_MESSAGE), strict=False)]
        for key in keys:
            del self._unsent[key]
        newest = [self._newest[key] for key in keys if key not in self._accepting]
        for report in newest:
            report.pending = self._pending.pop((report.group, report.member), None)
        return newest

    async def _more(self, until: float) -> None:
        """Wait for a change, at most until ``until``.

        After a change, wait for ``coalesce`` to gather further changes.
        """
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._changed.wait()
            await asyncio.sleep(max(0.0, self._not_before - self._now()))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def received(self, response: pb.ReportResponse) -> None:
        """Process a response: drop refused members, announce unknown sequencers, and queue requested pending work."""
        self._by_columns = self._by_columns or response.reads_columns
        for group in response.pending_requested:
            self._report_pending(group)
        for report in self._current(response.refused):
            self.forget(report.group, report.member)
            self._on_refused(report)
        for report in self._current(response.unaccepted):
            key = (report.group, report.member)
            if key not in self._accepting:
                self._accepting[key] = asyncio.create_task(self._announce(key, report))

    def _report_pending(self, group: str) -> None:
        for member, pending in self._pending_of(group).items():
            key = (group, member)
            if key in self._newest and key not in self._accepting:
                self._pending[key] = pending
                self._unsent[key] = None
        self._changed.set()

    def _current(self, messages: Sequence[pb.IntervalWatermark]) -> list[WatermarkReport]:
        """Those of ``messages`` that are about the current sequencers, and not about earlier ones."""
        return [
            report
            for report in map(report_from_wire, messages)
            if (newest := self._newest.get((report.group, report.member))) is not None
            and newest.sequencer == report.sequencer
        ]

    async def _announce(self, key: Key, report: WatermarkReport) -> None:
        """Announce a sequencer again, then report again."""
        try:
            await self._accept(report)
        except AcceptRefusedError:
            # The refusal is about this sequencer only. The interval may be back here under a newer one.
            if (newest := self._newest.get(key)) is not None and newest.sequencer == report.sequencer:
                self.forget(*key)
                self._on_refused(report)
        except RequestError as error:
            log.warning("sequencer %d of %s: %s", report.sequencer, report.group, error)
        finally:
            del self._accepting[key]
        if key in self._newest:
            self.report(self._newest[key])


async def watch_watermarks(
    stub_of: Stub, groups: Iterable[str], backoff: Backoff
) -> AsyncGenerator[dict[str, BroadcastUpdate], None]:
    """Broadcast values of ``groups``. See :meth:`millwheel.client.watermarks.WatermarkClient.watch`."""
    known: dict[str, int] = {}
    request = pb.WatchWatermarksRequest(groups=sorted(set(groups)))
    failures, before = 0, cancellations()
    while True:
        call = None
        try:
            stub, address = await stub_of()
            call = stub.WatchWatermarks(request)
            while (response := await _read(call, address, before)) is not None:
                failures = 0
                if news := _news(response, known):
                    yield news
        except RequestError as error:
            if error.code not in RETRYABLE:
                raise
        finally:
            if call is not None:
                call.cancel()
        failures += 1
        await asyncio.sleep(backoff.delay(failures, random.random()))


async def _read(
    call: grpc.aio.UnaryStreamCall[pb.WatchWatermarksRequest, pb.WatchWatermarksResponse], address: str, before: int
) -> pb.WatchWatermarksResponse | None:
    """The next message, or None at the end of the call. ``before``: the cancellations of the task before the watch."""
    try:
        response = await call.read()
    except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
        raise _failure(error, address, before) from error
    return response if isinstance(response, pb.WatchWatermarksResponse) else None


def _news(response: pb.WatchWatermarksResponse, known: dict[str, int]) -> dict[str, BroadcastUpdate]:
    """The updates in ``response`` that change ``known``. ``known`` is updated."""
    news = {}
    for message in response.watermarks:
        name, before = message.group, known.get(message.group)
        watermark = max(message.watermark_us, MIN_TIMESTAMP if before is None else before)
        if watermark != before or message.sequencers:
            known[name] = watermark
            sequencers = sequencers_from_wire(message.sequencers) if message.sequencers else ()
            news[name] = BroadcastUpdate(watermark, sequencers)
    return news
