"""Watermarks of computations whose shards are on several servers, and move (7.2)."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Hashable
from contextlib import aclosing
from functools import partial
from typing import ClassVar, cast

import pytest
from prometheus_client import CollectorRegistry

from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shard import AuthorityShard
from millwheel.client import watermarks
from millwheel.client.shards import ShardedWatermarks
from millwheel.client.watermark_streams import nothing_reported
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import KeyInterval
from millwheel.rpc.failures import RequestError, authority_is_away
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server
from millwheel.rpc.watermarks import WatermarkReport
from millwheel.store.memory import MemoryStore
from millwheel.worker.messages import Report
from millwheel.worker.process.watermarks import AuthorityLink
from tests.patience import patience
from tests.serving import LoopbackServer

ALL = KeyInterval(b"", None)


class Shards:
    """Two shards, by a computation's last letter. Each can restart any number of times."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._sequencer = 0
        self._addresses: dict[Hashable, str] = {}
        self._ends: dict[Hashable, tuple[AuthorityShard, LoopbackServer]] = {}

    def shard_of(self, computation: str) -> Hashable:
        return computation[-1]

    async def address_of(self, shard: Hashable) -> str:
        if shard not in self._addresses:
            raise authority_is_away(f"shard {shard}")
        return self._addresses[shard]

    async def start(self, shard: str, *, again: bool = False) -> None:
        """Start a shard again, at a new address."""
        if not again:
            await self._store.create_journal(shard)
        self._sequencer += 1
        open_shard = await AuthorityShard.open(self._store, shard, self._sequencer, registry=CollectorRegistry())
        server = LoopbackServer(partial(add_WatermarkServiceServicer_to_server, WatermarkServicer(open_shard)))
        await server.start()
        self._addresses[shard] = server.address
        self._ends[shard] = (open_shard, server)

    async def end(self, shard: str) -> None:
        open_shard, server = self._ends.pop(shard)
        del self._addresses[shard]
        await server.stop()
        await open_shard.close()

    async def close(self) -> None:
        for shard in list(self._ends):
            await self.end(str(shard))


def report(computation: str, watermark: int) -> WatermarkReport:
    return WatermarkReport(computation, ALL, 1, watermark, watermark)


@pytest.mark.guarantee("G7", section="7.2")
async def test_each_computation_reports_to_its_shard_where_that_moves() -> None:
    shards = Shards()
    await shards.start("1")
    await shards.start("2")
    try:
        async with (
            asyncio.timeout(patience(30)),
            ShardedWatermarks(shards, on_refused=lambda report: pytest.fail(str(report))) as client,
        ):
            for name in ("a.1", "b.2"):
                await client.accept(name, ALL, 1)
                client.client_for(name).reports.report(report(name, 5))
            async with aclosing(client.watch(["a.1", "b.2"])) as updates:
                seen: dict[str, int] = {}
                async for update in updates:
                    seen.update((name, news.watermark) for name, news in update.items())
                    if seen == {"a.1": 5, "b.2": 5}:
                        break
                assert (await client.explain("b.2")).watermark_us == 5
                await shards.end("2")
                client.client_for("a.1").reports.report(report("a.1", 6))
                client.client_for("b.2").reports.report(report("b.2", 7))
                with pytest.raises(RequestError, match="the low watermark authority of shard 2 cannot"):
                    await client.explain("b.2")
                await shards.start("2", again=True)
                async for update in updates:
                    seen.update((name, news.watermark) for name, news in update.items())
                    if seen == {"a.1": 6, "b.2": 7}:
                        break
    finally:
        await shards.close()


class Name(str):
    """A text that can be referred to weakly."""


@pytest.mark.guarantee("G13", section="7.2")
async def test_nothing_is_kept_of_a_computation_that_has_left() -> None:
    """Regression: each computation that a worker had reported left an entry until the worker ended."""
    name = Name("a.1")
    kept = weakref.ref(name)
    link = AuthorityLink(Shards(), lambda *refused: pytest.fail(str(refused)), nothing_reported)
    link.report(Report(cast("IncarnationId", name), ALL, 1, 5, 5, HoldKind.HOLD_KIND_INPUT, ""))
    link.forget(name, ALL)
    del name
    gc.collect()
    assert kept() is None
    await link.close()


@pytest.mark.guarantee("G8", section="7.2")
async def test_no_connection_stays_open_to_where_a_shard_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: callers that asked for the shard while others left its old place opened a connection each.

    One stayed open.
    """
    closing = asyncio.Event()

    class Channel:
        opened: ClassVar[list[Channel]] = []

        def __init__(self, address: str) -> None:
            self.address = address
            self.opened.append(self)

        def unary_unary(self, *_: object, **__: object) -> None:
            """A method of the service."""

        unary_stream = stream_unary = stream_stream = unary_unary

        async def close(self, grace: float | None) -> None:
            self.opened.remove(self)
            await closing.wait()

    places = ["a:1", "b:2", "b:2", "c:3", "c:3"]

    async def place() -> str:
        return places.pop(0)

    monkeypatch.setattr(watermarks, "open_channel", Channel)
    client = watermarks.WatermarkClient(place, on_refused=lambda _: None)
    await client.follow()
    leaving = [asyncio.create_task(client.follow()) for _ in range(3)]
    await asyncio.sleep(0)
    assert [one.address for one in Channel.opened] != ["a:1"]
    closing.set()
    await asyncio.gather(*leaving)
    await client.follow()
    assert [one.address for one in Channel.opened] == ["c:3"]
    await client.close()
    assert Channel.opened == []
