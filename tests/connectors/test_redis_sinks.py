"""Sinks of Redis, with a real server: each record takes effect once (6.1)."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis as library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.cluster import RedisCluster

import millwheel as mw
from deploy.local.redis import RedisServer
from millwheel.connectors import Sink, SinkWriter, redis
from millwheel.testing.connectors import SinkContract
from tests import components
from tests.connectors.given import at, running
from tests.connectors.test_database import batch, place, with_writers
from tests.connectors.test_redis_source import serve_all_slots, stopped
from tests.documents.blocks import blocks_of
from tests.house.tree import ROOT

_numbers = itertools.count()
PROGRESS = "millwheel-progress"


class Sale(msgspec.Struct):
    item: str
    cents: int
    note: str | None = None


class Shop:
    """A server and a stream of a test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client: Any = library.Redis.from_url(url, decode_responses=True)
        self.name = f"totals{next(_numbers)}"

    def sink(self, **options: Any) -> Sink[Any]:
        return redis.sink(self.name, server=self.url, **options)

    def entries(self) -> list[dict[str, str]]:
        return [fields for _, fields in self.client.xrange(self.name)]

    def cents(self) -> list[int]:
        return [int(one["cents"]) for one in self.entries()]

    def progress(self, slot: str = "") -> dict[str, str]:
        return dict(self.client.hgetall(f"{PROGRESS}:{{{slot or self.name}}}"))


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop(components.redis().url)
    try:
        yield shop
    finally:
        shop.client.flushdb()
        shop.client.close()


@pytest.mark.guarantee("G1", "G3", "G15")
class TestStream(SinkContract[Sale]):
    record_type = Sale

    @pytest.fixture(autouse=True)
    def _shop(self, shop: Shop) -> None:
        self.shop = shop

    def make_sink(self) -> Sink[Sale]:
        return self.shop.sink()

    def stored(self) -> Sequence[int]:
        return self.shop.cents()

    def value(self, number: int) -> Sale:
        return Sale("tea", number)

    def number_of(self, value: Sale) -> int:
        return value.cents

    @contextmanager
    def away(self) -> Iterator[None]:
        with stopped(components.redis()):
            yield


@pytest.mark.guarantee("G1", "G3", "G15")
class TestCommands(TestStream):
    def make_sink(self) -> Sink[Sale]:
        return redis.command(lambda sale: ["RPUSH", self.shop.name, sale.cents], server=self.shop.url)

    def stored(self) -> Sequence[int]:
        return [int(one) for one in self.shop.client.lrange(self.shop.name, 0, -1)]


@pytest.mark.guarantee("G1", "G3", "G15")
class TestValues(TestStream):
    keeps_order = False  # each record has a key of its own, and keys have no order

    def make_sink(self) -> Sink[Sale]:
        return redis.values("total:", key="cents", server=self.shop.url)

    def stored(self) -> Sequence[int]:
        return [json.loads(self.shop.client.get(key))["cents"] for key in self.shop.client.keys("total:*")]


@pytest.mark.guarantee("G1")
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sales=st.lists(st.integers(0, 99), max_size=20),
    crash_at=st.sets(st.integers(0, 20)),
    wrong=st.sets(st.integers(0, 20)),
)
def test_each_record_takes_effect_once(shop: Shop, sales: list[int], crash_at: set[int], wrong: set[int]) -> None:
    """Also if Redis refuses one in the middle of a batch."""
    shop.client.flushdb()
    topology = mw.Topology("shop")
    push: Sink[Any] = redis.command(lambda sale: ["RPUSH", sale.item, sale.cents], server=shop.url)
    topology.source("sales", Sale).to("list", push, batch_records=3)
    with running(topology) as harness:
        for number, cents in enumerate(sales):
            if number in wrong:
                shop.client.set("tea", "no list") if not shop.client.exists("tea") else None
            with suppress(redis.RedisError):
                if number in crash_at:
                    harness.crash()
            with suppress(redis.RedisError):
                harness.send("sales", Sale("tea" if number % 2 else "pot", cents), at(number))
        if shop.client.type("tea") == "string":
            with suppress(redis.RedisError):
                harness.advance_clock(mw.seconds(60))
            shop.client.delete("tea")
        for _ in range(3):
            harness.advance_clock(mw.seconds(60))
        assert shop.client.lrange("pot", 0, -1) == [str(one) for one in sales[::2]]
        assert shop.client.lrange("tea", 0, -1) == [str(one) for one in sales[1::2]]


def test_an_entry_has_the_fields_of_the_record(shop: Shop) -> None:
    async def do(writer: SinkWriter[Any]) -> None:
        await writer.write(batch(1, 10, 20))

    with_writers(shop.sink(), place(), do=do)
    assert shop.entries() == [{"item": "tea", "cents": "10"}, {"item": "tea", "cents": "20"}]
    with_writers(shop.sink(json="data"), place(run=2), do=do)
    assert json.loads(shop.entries()[-1]["data"]) == {"item": "tea", "cents": 20}
    assert shop.progress() == {"shop/sales-table 0": "2 1 1"}


def test_what_is_written_can_be_read_again(shop: Shop) -> None:
    class Nested(msgspec.Struct):
        name: str
        at: mw.Timestamp
        share: float
        sure: bool
        parts: dict[str, list[int]]
        note: str | None = None

    whole = Nested("na\nme null", at(1), 0.1, True, {"a": [1, 2]})
    topology = mw.Topology("again")
    topology.source("given", Nested).to("out", shop.sink())
    topology.source("read", Nested, redis.source(shop.name, Nested, server=shop.url))
    with running(topology) as harness:
        harness.send_all("given", [(whole, at(1)), (msgspec.structs.replace(whole, note="x"), at(2))])
        harness.advance_clock(mw.seconds(60))
        harness.advance_clock(mw.seconds(60))
        assert list(harness.values("read")) == [whole, msgspec.structs.replace(whole, note="x")]


def test_old_entries_may_be_removed(shop: Shop) -> None:
    async def do(writer: SinkWriter[Any]) -> None:
        await writer.write(batch(1, *range(500)))

    with_writers(shop.sink(maxlen=100), place(), do=do)
    assert 100 <= len(shop.entries()) < 300
    assert shop.cents()[-1] == 499


def test_values_keeps_the_newest_of_each_key(shop: Shop) -> None:
    async def do(writer: SinkWriter[Any]) -> None:
        await writer.write(batch(1, 10, 20))

    with_writers(redis.values("total:", key="item", server=shop.url), place(), do=do)
    assert json.loads(shop.client.get("total:tea")) == {"item": "tea", "cents": 20}


def test_a_record_without_a_command_is_left_out(shop: Shop) -> None:
    async def do(writer: SinkWriter[Any]) -> None:
        await writer.write(batch(1, 1, 2, 3))
        await writer.write(batch(2, 2))

    even: Sink[Any] = redis.command(
        lambda one: None if one.cents % 2 else ["INCRBY", "sold", one.cents], server=shop.url
    )
    with_writers(even, place(), do=do)
    assert shop.client.get("sold") == "4"
    assert shop.client.hgetall(PROGRESS) == {"shop/sales-table 0": "1 2 2"}


@pytest.mark.guarantee("G1")
def test_a_refused_record_is_named_and_its_batch_goes_on(shop: Shop) -> None:
    shop.client.set("b", "no list")
    words = {1: "a", 2: "b", 3: "c"}
    push: Sink[Any] = redis.command(lambda one: ["RPUSH", words[one.cents], one.cents], server=shop.url)

    async def do(writer: SinkWriter[Any]) -> None:
        for _ in range(2):
            with pytest.raises(redis.RedisError, match=r"refuses record 2 of 3 in batch 1 .*WRONGTYPE.*The 1 before"):
                await writer.write(batch(1, 1, 2, 3))
        with pytest.raises(redis.RedisError, match="comes next"):
            await writer.write(batch(2, 1))
        shop.client.delete("b")
        await writer.write(batch(1, 1, 2, 3))
        await writer.write(batch(2, 1))

    with_writers(push, place(), do=do)
    assert [shop.client.lrange(one, 0, -1) for one in "abc"] == [["1", "1"], ["2"], ["3"]]


@pytest.mark.guarantee("G1")
def test_a_user_who_may_not_keep_the_progress_writes_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    rights = ["%R~millwheel-progress*", f"~{shop.name}", "+@all"]
    shop.client.execute_command("ACL", "SETUSER", "writer", "on", ">secret", *rights)
    monkeypatch.setenv("SHOP_PASSWORD", "secret")
    url = f"redis://writer:${{SHOP_PASSWORD}}@{shop.url.removeprefix('redis://')}"

    async def do(writer: SinkWriter[Any]) -> None:
        with pytest.raises(redis.RedisError, match="shop/sales-table, shard 0 cannot be written"):
            await writer.write(batch(1, 10))

    with_writers(redis.sink(shop.name, server=url), place(), do=do)
    assert shop.entries() == []
    shop.client.acl_deluser("writer")


def test_a_later_topology_counts_from_one_again(shop: Shop) -> None:
    async def do(former: SinkWriter[Any], later: SinkWriter[Any]) -> None:
        await former.write(batch(1, 10))
        await later.write(batch(1, 20))
        with pytest.raises(redis.RedisError, match="this one is over") as over:
            await former.write(batch(2, 30))
        await later.write(batch(2, 22))
        follow(shop, over)
        await former.write(batch(2, 30))

    with_writers(shop.sink(), place(run=1), place(run=2), do=do)
    assert shop.cents() == [10, 20, 22, 30]


def follow(shop: Shop, error: pytest.ExceptionInfo[redis.RedisError]) -> None:
    """Run the command that an error proposes."""
    found = re.search(r'HSET (\S+) "(.*?)" "(.*?)"', str(error.value))
    assert found is not None
    key, field, value = found.groups()
    shop.client.hset(key, field, value)


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("run", [1, 2], ids=["of a former fork", "after a restore"])
def test_another_first_batch_can_go_on(shop: Shop, run: int) -> None:
    async def do(there: SinkWriter[Any], other: SinkWriter[Any]) -> None:
        await there.write(batch(1, 10))
        await there.write(batch(2, 20))
        with pytest.raises(redis.RedisError, match=r"this one is over|batch 1 comes next") as no:
            await other.write(batch(1, 11, id="1b"))
        follow(shop, no)
        await other.write(batch(1, 11, id="1b"))
        await other.write(batch(1, 11, id="1b"))

    with_writers(shop.sink(), place(run=2), place(run=run), do=do)
    assert shop.cents() == [10, 20, 11]


@pytest.mark.guarantee("G1")
def test_a_topology_that_was_set_back_is_noticed(shop: Shop) -> None:
    async def do(writer: SinkWriter[Any]) -> None:
        for number in (1, 2, 3):
            await writer.write(batch(number, number))
        with pytest.raises(
            redis.RedisError, match=r"batch 2 comes next: Redis lost writes, or .* was set back"
        ) as failed:
            await writer.write(batch(2, 20, id="2b"))
        follow(shop, failed)
        await writer.write(batch(2, 20, id="2b"))

    with_writers(shop.sink(), place(), do=do)
    assert shop.cents() == [1, 2, 3, 20]


@pytest.mark.guarantee("G1")
def test_a_server_that_lost_writes_is_noticed(tmp_path: Path) -> None:
    with RedisServer(tmp_path, appendonly="no") as server:
        shop = Shop(server.url)

        async def do(writer: SinkWriter[Any]) -> None:
            await writer.write(batch(1, 10))
            shop.client.save()
            await writer.write(batch(2, 20))
            server.kill()
            server.start()
            with pytest.raises(redis.RedisError, match=r"has batch 1 .* batch 3 comes next: Redis lost writes"):
                await writer.write(batch(3, 30))

        with_writers(shop.sink(), place(), do=do)
        assert shop.cents() == [10]
        shop.client.close()


@pytest.mark.guarantee("G1")
def test_a_server_that_is_killed_gets_each_record_once(tmp_path: Path) -> None:
    with RedisServer(tmp_path, appendfsync="always") as server:
        shop = Shop(server.url)
        topology = mw.Topology("shop")
        topology.source("sales", Sale).to("out", shop.sink(), batch_records=1)
        with running(topology) as harness:
            harness.send("sales", Sale("tea", 1), at(1))
            server.kill()
            with pytest.raises(redis.RedisError, match="cannot be written"):
                harness.send("sales", Sale("tea", 2), at(2))
            server.start()
            harness.advance_clock(mw.seconds(60))
            assert shop.cents() == [1, 2]
        shop.client.close()


def test_a_cluster_needs_one_hash_tag(tmp_path: Path) -> None:
    with RedisServer(tmp_path, cluster_enabled="yes") as server:
        shop = Shop(server.url)
        serve_all_slots(shop.client)

        def connect() -> Any:
            return RedisCluster(host="127.0.0.1", port=server.port)

        async def do(writer: SinkWriter[Any]) -> None:
            await writer.write(batch(1, 10))

        async def fail(writer: SinkWriter[Any]) -> None:
            with pytest.raises(redis.RedisError, match="all keys of a sink need one hash tag"):
                await writer.write(batch(1, 10))

        push: list[Any] = ["RPUSH", "{tag}list", 1]
        with_writers(redis.sink(shop.name, server=connect), place(), do=do)
        with_writers(redis.values("{tag}:", key="item", server=connect), place(), do=do)
        with_writers(redis.command(lambda _: push, server=connect, slot="tag"), place(run=2), do=do)
        with_writers(redis.command(lambda _: push, server=connect, slot="other"), place(), do=fail)
        assert shop.cents() == [10]
        assert shop.progress("tag") == {"shop/sales-table 0": "2 1 1"}
        shop.client.close()


def test_what_is_no_command_is_refused(shop: Shop) -> None:
    async def do(writer: SinkWriter[Any]) -> None:
        with pytest.raises(TypeError, match="text, bytes or a number, not None"):
            await writer.write(batch(1, 10))

    with_writers(redis.command(lambda _: ["SET", "a", None], server=shop.url), place(), do=do)
    with pytest.raises(mw.UsageError, match="name of a stream"):
        redis.sink("", server=shop.url)
    with pytest.raises(mw.UsageError, match="maxlen= is a positive number"):
        redis.sink("a", server=shop.url, maxlen=0)
    with pytest.raises(mw.UsageError, match="takes a function"):
        redis.command("SET", server=shop.url)  # type: ignore[arg-type]


def test_the_programs_of_the_page_work(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    page: Any = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)  # types of a program are looked up in its module
    for block in blocks_of(ROOT / "docs" / "redis.md"):
        if block.language == "python":
            code = block.code.replace("redis://localhost:6379/0", shop.url)
            exec(compile(code, block.page, "exec"), vars(page))
    for auction, cents in (("lamp", 300), ("lamp", 700), ("vase", 500)):
        shop.client.xadd("bids", {"auction": auction, "cents": cents})
    with running(page.auctions, now=mw.Timestamp(time.time_ns() // 1_000)) as harness:
        for _ in range(3):
            harness.advance_clock(mw.seconds(60))
    assert [fields["auction"] for _, fields in shop.client.xrange("big-bids")] == ["lamp", "vase"]
    assert [json.loads(shop.client.get(f"best:{one}"))["cents"] for one in ("lamp", "vase")] == [700, 500]
    assert shop.client.hgetall("counts") == {"lamp": "2", "vase": "1"}
