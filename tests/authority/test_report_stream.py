"""What a reporter keeps when the authority refuses it (7.2, G4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import TYPE_CHECKING, cast

import pytest

from millwheel.client.report_stream import ReportStream
from millwheel.core.keys import ALL_KEYS
from millwheel.rpc.channel import Backoff, open_channel
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceStub
from millwheel.rpc.watermarks import AcceptRefusedError, WatermarkReport
from tests.authority.conftest import Serve
from tests.authority.shard import COMPUTATION
from tests.patience import patience

if TYPE_CHECKING:
    from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceAsyncStub


def said(sequencer: int, watermark: int) -> WatermarkReport:
    return WatermarkReport(COMPUTATION, ALL_KEYS, sequencer, watermark)


async def test_g4_g8_a_refusal_of_an_older_sequencer_takes_nothing_from_the_newer_one_7_2(serve: Serve) -> None:
    """An interval comes back, under a newer sequencer, while the older one is being announced, and is refused."""
    served = await serve(None)
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
                await served.shell.accept(COMPUTATION, ALL_KEYS, 2)
                stream.report(said(2, 20))
                answer.set()
                async for news in served.shell.watch([COMPUTATION]):
                    if news[COMPUTATION].watermark == 20:
                        break
            assert refused == [], "the newer sequencer's owner has lost nothing"
        finally:
            await stream.close()


async def test_g8_an_error_that_nobody_foresaw_ends_one_stream_and_not_the_reporting_7_2(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    served = await serve(None)
    await served.shell.accept(COMPUTATION, ALL_KEYS, 1)
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
                async for news in served.shell.watch([COMPUTATION]):
                    if news[COMPUTATION].watermark == 20:
                        break
        finally:
            await stream.close()
    assert "once" in caplog.text


async def test_g8_a_new_stream_begins_with_every_report_7_2(serve: Serve) -> None:
    """What went out on a stream that ended may be lost, and a watermark that stands still is not reported again."""
    served = await serve(None)
    await served.shell.accept(COMPUTATION, ALL_KEYS, 1)
    lost, opened = asyncio.Event(), count(1)

    class Losing:
        """An authority's server that takes reports, and ends before they count."""

        def Report(self) -> Losing:
            return self

        async def write(self, request: object) -> None:
            lost.set()

        def cancel(self) -> None:
            lost.set()

        async def __aiter__(self) -> AsyncIterator[object]:
            await lost.wait()
            raise RequestError(FailureCode.UNAVAILABLE, "it has ended")
            yield

    async def accept(report: WatermarkReport) -> None:
        raise AssertionError("it was accepted before")

    async with open_channel(served.address) as channel:

        async def stub() -> tuple[WatermarkServiceAsyncStub, str]:
            first = cast("WatermarkServiceAsyncStub", Losing())
            return (first if next(opened) == 1 else WatermarkServiceStub(channel)), served.address

        stream = ReportStream(stub, accept, lambda _: None, coalesce=0.001, refresh=60.0, backoff=Backoff(0.01))
        stream.start()
        try:
            stream.report(said(1, 20))
            async with asyncio.timeout(patience(10)):
                async for news in served.shell.watch([COMPUTATION]):
                    if news[COMPUTATION].watermark == 20:
                        break
        finally:
            await stream.close()


async def test_a_stream_that_fails_again_and_again_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
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
