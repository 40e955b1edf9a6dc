"""The Report call of WatermarkService (7.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from typing import Protocol

from millwheel.authority.broadcasts import BroadcastServicer, Context
from millwheel.authority.driver import AuthorityStoppedError
from millwheel.authority.members import Refusal
from millwheel.authority.shard import AuthorityShard
from millwheel.rpc.errors import abort
from millwheel.rpc.failures import RequestError
from millwheel.rpc.merging import merged
from millwheel.rpc.report_columns import ReportColumns, check_count, columns_from_wire
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.watermarks import (
    WatermarkReport,
    check_names,
    report_from_wire,
    report_to_wire,
)

__all__ = ["ReportingServicer", "Shards"]


class Shards(Protocol):
    """The shards that a process serves."""

    def shard_for(self, group: str) -> AuthorityShard:
        """Return the shard that keeps ``group``; RequestError (UNAVAILABLE) if it is not served here."""


class ReportingServicer(BroadcastServicer):
    """The calls with streams: reports come in, broadcasts go out."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(lambda group: self._shards.shard_for(group).broadcasts)
        self._shards = shards

    async def Report(
        self, request_iterator: AsyncIterator[pb.ReportRequest], context: Context
    ) -> AsyncIterator[pb.ReportResponse]:
        """Receive reports, and return the refused ones. The first response states which forms of reports are read.

        A malformed report ends the call; the reports before it count.
        """
        events = _ShardEvents()

        async def coming() -> AsyncGenerator[pb.ReportRequest, None]:
            try:
                async for request in request_iterator:
                    yield request
            finally:
                events.end()

        try:
            yield pb.ReportResponse(reads_columns=True)
            sources: list[AsyncGenerator[pb.ReportRequest | list[str], None]] = [coming(), events.news()]
            async with aclosing(merged(sources)) as news:
                async for one in news:
                    if isinstance(one, list):
                        yield pb.ReportResponse(pending_requested=one)
                    elif (response := await self._take(one, events)) is not None:
                        yield response
        except RequestError as error:
            await abort(context, error)
        finally:
            events.leave()

    async def _take(self, request: pb.ReportRequest, events: _ShardEvents) -> pb.ReportResponse | None:
        """Check a whole batch, then apply it and follow its shards. Return the refused reports, if any.

        A malformed batch changes nothing. Invariant: the work of one turn of the loop has a bound (G13).
        """
        check_count(request)
        batches: dict[AuthorityShard, tuple[list[WatermarkReport], list[ReportColumns]]] = {}
        for number, message in enumerate(request.intervals):
            where = f"intervals[{number}]."
            check_names(**{f"{where}group": message.group, f"{where}process": message.process})
            report = report_from_wire(message, where)
            batches.setdefault(self._shards.shard_for(report.group), ([], []))[0].append(report)
        for number, many in enumerate(request.columns):
            columns = columns_from_wire(many, f"columns[{number}].")
            batches.setdefault(self._shards.shard_for(columns.group), ([], []))[1].append(columns)
        refused: list[Refusal] = []
        for shard, (reports, by_columns) in batches.items():
            events.follow(shard)
            refused += await shard.report(reports, by_columns)
        if not refused:
            return None
        return pb.ReportResponse(
            refused=_wire(refusal.report for refusal in refused if refusal.superseded),
            unaccepted=_wire(refusal.report for refusal in refused if not refusal.superseded),
        )


class _ShardEvents:
    """What a Report call receives from its shards: pending-work requests, and the news that a shard has stopped."""

    def __init__(self) -> None:
        self._requested: dict[str, None] = {}
        self._failure: AuthorityStoppedError | None = None
        self._ended = False
        self._news = asyncio.Event()
        self._followed: dict[AuthorityShard, asyncio.Task[None]] = {}

    def follow(self, shard: AuthorityShard) -> None:
        """Receive news of ``shard`` from now on."""
        if shard not in self._followed:
            shard.work_requests.listen(self._request)
            self._followed[shard] = asyncio.create_task(self._watch_end(shard))

    async def news(self) -> AsyncGenerator[list[str], None]:
        """Yield requested groups until :meth:`end`.

        Raises AuthorityStoppedError when a shard stops, so that every reporter looks for its successor.
        """
        while not self._ended:
            await self._news.wait()
            self._news.clear()
            if self._failure is not None:
                raise self._failure
            if self._requested:
                requested, self._requested = sorted(self._requested), {}
                yield requested

    def end(self) -> None:
        """End :meth:`news`, because the reporter has closed its side of the call."""
        self._ended = True
        self._news.set()

    def leave(self) -> None:
        """Stop receiving news of any shard."""
        for shard, task in self._followed.items():
            shard.work_requests.leave(self._request)
            task.cancel()

    def _request(self, group: str) -> None:
        self._requested[group] = None
        self._news.set()

    async def _watch_end(self, shard: AuthorityShard) -> None:
        why = await shard.wait_stopped()
        self._failure = self._failure or AuthorityStoppedError(shard.journal, why)
        self._news.set()


def _wire(reports: Iterable[WatermarkReport]) -> list[pb.IntervalWatermark]:
    return [report_to_wire(report) for report in reports]
