"""Ranges of a log's offsets, over loopback gRPC: each record once, through moves and owners that are behind (4.3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from millwheel.client.kept_log import KeptLog
from millwheel.rpc.failures import RequestError
from millwheel.worker.log import LogSettings
from tests.patience import patience
from tests.worker.log.test_log_service import STREAM, Cluster, cluster_of, named


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with cluster_of(LogSettings(publish_records=10)) as running:
        yield running


@pytest.mark.guarantee("G1", section="4.3")
async def test_a_range_is_read_once_while_the_log_moves(cluster: Cluster) -> None:
    await cluster.produce(named(0, 200))
    found: list[tuple[int, bytes]] = []
    async with KeptLog(STREAM, address=cluster.address, patience=patience(20)) as kept:
        assert (await kept.start(), await kept.end()) == (0, 200)
        async for batch in kept.read(5, 195):
            found += [(offset, value) for offset, _, value in batch]
            if batch.first_offset % 50 == 5:
                await cluster.move(batch.first_offset // 50 % 2)
    assert found == list(enumerate(named(0, 200)))[5:195]


@pytest.mark.guarantee("G1", section="6.2")
async def test_an_owner_that_is_behind_is_asked_again(cluster: Cluster) -> None:
    """A former owner that knows nothing of its successor has not all records."""
    await cluster.produce(named(0, 3))

    async def read(first: int, end: int) -> list[int]:
        async with KeptLog(STREAM, address=cluster.address, patience=patience(20)) as kept:
            return [offset async for batch in kept.read(first, end) for offset, _, _ in batch]

    reading = asyncio.create_task(read(4, 6))
    await asyncio.sleep(0.05)
    assert not reading.done()
    await cluster.produce(named(3, 3))
    assert await reading == [4, 5]


async def test_the_patience_of_a_reader_ends(cluster: Cluster) -> None:
    await cluster.produce(named(0, 3))
    async with KeptLog(STREAM, address=cluster.address, patience=0.2) as kept:
        await cluster.leave()
        with pytest.raises(RequestError, match="no worker owns the log of stream 'windows' now"):
            await kept.end()
        await cluster.take(1)
        assert await kept.end() == 3
