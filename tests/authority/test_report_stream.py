"""What a reporter keeps when the authority refuses it (7.2, G4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import TYPE_CHECKING, cast

import pytest

from millwheel.client.watermark_streams import ReportStream
from millwheel.model.backoff import Backoff
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.rpc.channel import open_channel
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.report_columns import MAX_REPORTS, check_count
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceStub
from millwheel.rpc.watermarks import AcceptRefusedError, WatermarkReport, report_to_wire
from tests.authority.conftest import Served
from tests.authority.shard import GROUP
from tests.patience import patience

if TYPE_CHECKING:
    from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceAsyncStub


def said(sequencer: int, watermark: int) -> WatermarkReport:
    return WatermarkReport(GROUP, ALL_KEYS, sequencer, watermark)


class Authority:
    """A server, as a stream of reports sees it: what came is in ``reports``, and each of ``answers`` goes out."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[pb.ReportRequest] = asyncio.Queue()
        self.answers: asyncio.Queue[pb.ReportResponse | RequestError] = asyncio.Queue()

    def Report(self) -> Authority:
        return self

    async def all_read(self) -> None:
        """Return when the last answer has been read, and the next is waited for."""
        await self.answers.join()

    async def write(self, request: pb.ReportRequest) -> None:
        self.reports.put_nowait(request)

    def cancel(self) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[pb.ReportResponse]:
        while not isinstance(answer := await self.answers.get(), RequestError):
            yield answer
            self.answers.task_done()
        await self.reports.get()
        raise answer


async def accepted_before(report: WatermarkReport) -> None:
    raise AssertionError("it was accepted before")


def stream_to(authority: Authority, refused: list[WatermarkReport], refresh: float) -> ReportStream:
    async def stub() -> tuple[WatermarkServiceAsyncStub, str]:
        return cast("WatermarkServiceAsyncStub", authority), "an address"

    return ReportStream(stub, accepted_before, refused.append, coalesce=0.001, refresh=refresh, backoff=Backoff(0.01))


@pytest.mark.guarantee("G8", section="7.2")
async def test_an_old_sequencers_refusal_leaves_the_reported_one_alone() -> None:
    authority, refused = Authority(), list[WatermarkReport]()
    stream = stream_to(authority, refused, refresh=60.0)
    stream.start()
    try:
        stream.report(said(2, 20))
        async with asyncio.timeout(patience(10)):
            await authority.reports.get()
            for sequencer in (1, 3):
                authority.answers.put_nowait(pb.ReportResponse(refused=[report_to_wire(said(sequencer, 10))]))
            authority.answers.put_nowait(pb.ReportResponse(pending_requested=[GROUP]))
            await authority.all_read()
            stream.report(said(2, 30))
            await authority.reports.get()
        assert refused == []
    finally:
        await stream.close()


@pytest.mark.guarantee("G8", section="7.2")
async def test_reports_are_repeated_though_nothing_changes() -> None:
    """An authority takes an owner for silent if it receives no report for long."""
    authority = Authority()
    stream = stream_to(authority, [], refresh=0.01)
    stream.start()
    try:
        stream.report(said(2, 20))
        async with asyncio.timeout(patience(3)):
            for _ in range(3):
                assert len((await authority.reports.get()).intervals) == 1
    finally:
        await stream.close()


@pytest.mark.guarantee("G4", "G8", section="7.2")
async def test_an_old_sequencers_refusal_takes_nothing_from_the_newer(served: Served) -> None:
    """The older sequencer of an interval is refused while it is announced. The interval already has a newer one."""
    refused: list[WatermarkReport] = []
    announced, answer = asyncio.Event(), asyncio.Event()

    async def accept(report: WatermarkReport) -> None:
        announced.set()
        await answer.wait()
        raise AcceptRefusedError(f"sequencer {report.sequencer} is old")

    async with open_channel(served.address) as channel:

        async def stub() -> tuple[WatermarkServiceAsyncStub, str]:
            return WatermarkServiceStub(channel), served.address

        stream = ReportStream(stub, accept, refused.append, coalesce=0.001, refresh=60.0, backoff=Backoff(0.01))
        stream.start()
        try:
            stream.report(said(1, 10))
            async with asyncio.timeout(patience(10)):
                await announced.wait()
                await served.open_shard.accept(GROUP, ALL_KEYS, 2)
                stream.report(said(2, 20))
                answer.set()
                async for news in served.open_shard.broadcasts.watch([GROUP]):
                    if news[GROUP].watermark == 20:
                        break
            assert refused == [], "the newer sequencer's owner has lost nothing"
        finally:
            await stream.close()


@pytest.mark.guarantee("G8", section="7.2")
async def test_an_unexpected_error_ends_one_stream_not_the_reporting(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    await served.open_shard.accept(GROUP, ALL_KEYS, 1)
    errors = [KeyError("once")]

    async def accept(report: WatermarkReport) -> None:
        raise AssertionError("it was accepted before")

    async with open_channel(served.address) as channel:

        async def stub() -> tuple[WatermarkServiceAsyncStub, str]:
            if errors:
                raise errors.pop()
            return WatermarkServiceStub(channel), served.address

        stream = ReportStream(stub, accept, lambda _: None, coalesce=0.001, refresh=60.0, backoff=Backoff(0.01))
        stream.start()
        try:
            stream.report(said(1, 20))
            async with asyncio.timeout(patience(10)):
                async for news in served.open_shard.broadcasts.watch([GROUP]):
                    if news[GROUP].watermark == 20:
                        break
        finally:
            await stream.close()
    assert "once" in caplog.text


@pytest.mark.guarantee("G8", section="7.2")
async def test_a_new_stream_begins_with_every_report(served: Served) -> None:
    """A report may be lost with the stream that carried it. A watermark that does not change is not reported again."""
    await served.open_shard.accept(GROUP, ALL_KEYS, 1)
    opened, losing = count(1), Authority()
    losing.answers.put_nowait(RequestError(FailureCode.UNAVAILABLE, "it has ended"))

    async def accept(report: WatermarkReport) -> None:
        raise AssertionError("it was accepted before")

    async with open_channel(served.address) as channel:

        async def stub() -> tuple[WatermarkServiceAsyncStub, str]:
            first = cast("WatermarkServiceAsyncStub", losing)
            return (first if next(opened) == 1 else WatermarkServiceStub(channel)), served.address

        stream = ReportStream(stub, accept, lambda _: None, coalesce=0.001, refresh=60.0, backoff=Backoff(0.01))
        stream.start()
        try:
            stream.report(said(1, 20))
            async with asyncio.timeout(patience(3)):
                async for news in served.open_shard.broadcasts.watch([GROUP]):
                    if news[GROUP].watermark == 20:
                        break
        finally:
            await stream.close()


async def test_a_stream_that_fails_again_and_again_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    tried, often = count(1), asyncio.Event()

    async def nowhere() -> tuple[WatermarkServiceAsyncStub, str]:
        if next(tried) == 15:
            often.set()
        raise RequestError(FailureCode.UNAVAILABLE, "cannot reach it")

    async def accept(report: WatermarkReport) -> None:
        pass

    stream = ReportStream(
        nowhere, accept, lambda report: None, coalesce=0.001, refresh=10, backoff=Backoff(0.001, 0.001)
    )
    stream.start()
    async with asyncio.timeout(patience(10)):
        await often.wait()
    await stream.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot reach it" in caplog.text


@pytest.mark.guarantee("G13", section="7.2")
async def test_no_request_has_more_reports_than_are_read() -> None:
    authority = Authority()
    stream = stream_to(authority, [], refresh=60.0)
    for number in range(MAX_REPORTS + 1):
        stream.report(WatermarkReport(GROUP, KeyInterval(number.to_bytes(2, "big"), None), 1, 10))
    stream.start()
    try:
        async with asyncio.timeout(patience(10)):
            check_count(await authority.reports.get())
    finally:
        await stream.close()
