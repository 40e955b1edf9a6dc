"""Streams of Redis as a source, with a real server: each entry comes once."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis as library

import millwheel as mw
from deploy.local.redis import RedisServer
from millwheel.connectors import BadRecord, Source, redis
from millwheel.testing import TopologyHarness
from millwheel.testing.connectors import SourceContract
from tests import components
from tests.connectors.given import NOON, at, running
from tests.patience import patience

_numbers = itertools.count()


class Item(msgspec.Struct):
    name: str
    weight: float | None = None


class Sale(msgspec.Struct):
    item: str
    cents: int
    tags: list[str] = []
    more: Item | None = None


class Bus:
    """A stream of a test, in the shared server or in one of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client: Any = library.Redis.from_url(url, decode_responses=True)
        self.name = f"sales{next(_numbers)}"

    def add(self, *cents: int, **more: str) -> None:
        for one in cents:
            id = f"{NOON // 1_000 + one}-0"
            self.client.xadd(self.name, {"item": "tea", "cents": str(one), **more}, id)

    def topology(self, bad: str | None = None, **options: Any) -> mw.Topology:
        topology = mw.Topology("shop")
        options = {"server": self.url, "streams": self.name, **options}
        topology.source("sales", Sale, redis.source(kind=Sale, **options), bad=bad)
        return topology


@pytest.fixture
def bus() -> Iterator[Bus]:
    bus = Bus(components.redis().url)
    try:
        yield bus
    finally:
        bus.client.delete(bus.name)
        bus.client.close()


def serve_all_slots(client: Any) -> None:
    """Make the server a cluster of its own."""
    client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
    end = time.monotonic() + patience(30)
    while "cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
        assert time.monotonic() < end
        time.sleep(0.02)


def cents(harness: TopologyHarness) -> list[int]:
    return [sale.cents for sale in harness.values("sales")]


def go_on(harness: TopologyHarness) -> None:
    harness.advance_clock(mw.seconds(60))


@contextmanager
def stopped(server: RedisServer) -> Iterator[None]:
    """The server is away, and has written down all that it has."""
    server.process.stop()
    try:
        yield
    finally:
        server.start()


@pytest.mark.guarantee("G1", "G7", "G13")
class TestStreams(SourceContract[Sale, redis.StreamPosition]):
    record_type = Sale

    @pytest.fixture(autouse=True)
    def _bus(self, bus: Bus) -> Iterator[None]:
        self.bus = bus
        yield
        bus.client.delete(*(f"{bus.name}:{split}" for split in range(3)))

    def make_source(self) -> Source[Sale, redis.StreamPosition]:
        return redis.source(f"{self.bus.name}:*", Sale, server=self.bus.url, pattern=True)

    def write(self, split: int, numbers: Sequence[int]) -> None:
        with self.bus.client.pipeline(transaction=False) as pipeline:
            for number in numbers:
                pipeline.xadd(f"{self.bus.name}:{split}", {"item": "tea", "cents": number})
            pipeline.execute()

    def write_bad(self, split: int) -> None:
        self.bus.client.xadd(f"{self.bus.name}:{split}", {"item": "tea", "cents": "many"})

    def number_of(self, value: Sale) -> int:
        return value.cents

    @contextmanager
    def away(self) -> Iterator[None]:
        with stopped(components.redis()):
            yield


@pytest.mark.guarantee("G1")
def test_each_entry_comes_once_and_in_order(bus: Bus) -> None:
    bus.add(*range(1, 2_501))
    with running(bus.topology()) as harness:
        go_on(harness)
        harness.crash()
        bus.add(*range(2_501, 2_511))
        go_on(harness)
        assert cents(harness) == list(range(1, 2_511))
        state = harness.state("sales-reader", bus.name)
        assert (state.behind, state.records, state.position.added) == (0, 2_510, 2_510)
        assert state.position.id == f"{NOON // 1_000 + 2_510}-0"


def test_the_time_of_an_entry_is_that_in_its_id(bus: Bus) -> None:
    bus.add(1_000, 2_000)
    with running(bus.topology()) as harness:
        go_on(harness)
        assert harness.watermark("sales-reader") == at(2)


def test_the_fields_of_a_value_are_those_of_the_entry(bus: Bus) -> None:
    bus.add(7, tags='["a", "b"]', more='{"name": "pot", "weight": 0.5}', other="ignored")
    with running(bus.topology()) as harness:
        go_on(harness)
        assert list(harness.values("sales")) == [Sale("tea", 7, ["a", "b"], Item("pot", 0.5))]


def test_a_field_may_have_the_value_as_json(bus: Bus) -> None:
    bus.client.xadd(bus.name, {"data": '{"item": "tea", "cents": 5}'})
    with running(bus.topology(json="data")) as harness:
        go_on(harness)
        assert list(harness.values("sales")) == [Sale("tea", 5)]


def test_a_function_may_make_the_value(bus: Bus) -> None:
    bus.client.xadd(bus.name, {"a": "1", "b": "2"}, "5-1")
    topology = mw.Topology("shop")
    read = redis.source(bus.name, decode=lambda entry: f"{entry.id} {sorted(entry.fields)}", server=bus.url)
    topology.source("texts", str, read, timestamp=lambda text: at(1))
    with running(topology) as harness:
        go_on(harness)
        assert list(harness.values("texts")) == ["5-1 ['a', 'b']"]


def test_streams_are_found_by_a_pattern(bus: Bus) -> None:
    first = bus.name
    bus.add(1)
    bus.client.set(f"{first}:text", "no stream")
    with running(bus.topology(streams=f"{first}*", pattern=True)) as harness:
        go_on(harness)
        bus.name = f"{first}:later"
        bus.add(2)
        go_on(harness)
        assert cents(harness) == [1, 2]
    bus.client.delete(first, f"{first}:text")


def test_a_stream_that_comes_later_is_read(bus: Bus) -> None:
    with running(bus.topology()) as harness:
        go_on(harness)
        bus.add(1, 2)
        go_on(harness)
        assert cents(harness) == [1, 2]


def test_a_source_may_begin_with_what_comes_from_now_on(bus: Bus) -> None:
    bus.add(1, 2)
    with running(bus.topology(start="latest")) as harness:
        go_on(harness)
        bus.add(3)
        go_on(harness)
        assert cents(harness) == [3]


def test_a_source_may_begin_in_the_middle(bus: Bus) -> None:
    bus.add(*range(1, 11))
    after = f"{NOON // 1_000 + 7}-0"
    for start in (datetime.fromtimestamp(NOON / 1_000_000, UTC) + timedelta(milliseconds=8), {bus.name: after}):
        with running(bus.topology(start=start)) as harness:
            go_on(harness)
            bus.client.xtrim(bus.name, maxlen=9, approximate=False)  # what was not wanted
            go_on(harness)
            assert cents(harness) == [8, 9, 10]
            assert harness.state("sales-reader", bus.name).position.added == 10
            harness.update(bus.topology(start="earliest"))
            go_on(harness)
            assert cents(harness) == [8, 9, 10]


@pytest.mark.guarantee("G1")
def test_a_start_that_may_be_trimmed_is_an_error(bus: Bus) -> None:
    bus.add(1, 2, 3, 4)
    bus.client.xtrim(bus.name, maxlen=2, approximate=False)
    start = {bus.name: f"{NOON // 1_000 + 1}-0"}
    with (
        pytest.raises(redis.RedisError, match="has lost 2 entries, and some may be behind start="),
        running(bus.topology(start=start)),
    ):
        pass
    with running(bus.topology(start=start, skip_removed=True)) as harness:
        go_on(harness)
        assert cents(harness) == [3, 4]
    beyond = {bus.name: f"{NOON // 1_000 + 5}-0"}
    with pytest.raises(redis.RedisError, match="ends at entry"), running(bus.topology(start=beyond)):
        pass


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("start", ["earliest", mw.Timestamp(NOON)])
async def test_the_first_read_has_the_beginning_alone(bus: Bus, start: Any) -> None:
    """So it is committed before anything is read from there."""
    bus.add(1, 2)
    reader = await redis.source(bus.name, Sale, server=bus.url, start=start).open_reader(bus.name, None)
    assert list((await reader.read()).records) == []
    assert len((await reader.read()).records) == 2
    await reader.close()


@pytest.mark.guarantee("G1")
def test_a_beginning_is_chosen_once(bus: Bus) -> None:
    """Otherwise each attempt would begin behind the entry that cannot be read."""
    with running(bus.topology(start="latest")) as harness:
        bus.client.xadd(bus.name, {"item": "tea", "cents": "many"}, f"{NOON // 1_000 + 1}-0")
        with pytest.raises(Exception, match=r"entry \d+-0: .*`int`"):
            go_on(harness)
        bus.add(2)
        with pytest.raises(Exception, match=r"entry \d+-0: .*`int`"):
            harness.crash()
        assert cents(harness) == []


@pytest.mark.guarantee("G1")
def test_entries_that_were_removed_unread_stop_a_stream(bus: Bus) -> None:
    bus.add(1, 2)
    with running(bus.topology()) as harness:
        go_on(harness)
        bus.client.xtrim(bus.name, maxlen=0, approximate=False)  # all of it was read
        bus.add(3, 4, 5, 6)
        bus.client.xtrim(bus.name, maxlen=2, approximate=False)
        with pytest.raises(redis.RedisError, match=r"up to entry \d+-0, and 2 entries behind it were removed unread"):
            go_on(harness)
        assert cents(harness) == [1, 2]
        harness.update(bus.topology(skip_removed=True))
        go_on(harness)
        bus.add(7)
        go_on(harness)
        assert cents(harness) == [1, 2, 5, 6, 7]


def test_a_stream_that_was_trimmed_behind_its_reader_goes_on(bus: Bus) -> None:
    with running(bus.topology()) as harness:
        for one in range(1, 6):
            bus.add(2 * one, 2 * one + 1)
            go_on(harness)
            bus.client.xtrim(bus.name, maxlen=one % 2, approximate=False)
        assert cents(harness) == list(range(2, 12))


@pytest.mark.guarantee("G1")
def test_a_stream_that_was_made_again_stops(bus: Bus) -> None:
    bus.add(1, 2)
    with running(bus.topology()) as harness:
        go_on(harness)
        bus.client.delete(bus.name)
        with pytest.raises(redis.RedisError, match="is now another or an earlier one"):
            go_on(harness)
        bus.add(3)
        with pytest.raises(redis.RedisError, match="skip_removed=True"):
            go_on(harness)
        harness.update(bus.topology(skip_removed=True))
        go_on(harness)
        assert cents(harness) == [1, 2, 3]


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("left", [[], [1, 2]])
def test_a_replica_that_lags_is_waited_for(tmp_path: Path, left: list[int]) -> None:
    """Its entries come later. With skip_removed, they were read twice: the replica looked like a server that lost some.

    ``left``: what the replica has, of three entries that were read.
    """
    with RedisServer(tmp_path) as server:
        bus = Bus(server.url)
        bus.add(1, 2, 3)
        with running(bus.topology(skip_removed=True)) as harness:
            go_on(harness)
            bus.client.delete(bus.name)
            bus.add(*left)
            bus.client.replicaof("127.0.0.1", 1)  # where no primary is
            with pytest.raises(redis.RedisError, match="is a replica that has not come so far"):
                go_on(harness)
            bus.client.replicaof("NO", "ONE")
            bus.add(*[one for one in (1, 2, 3, 4) if one not in left])
            go_on(harness)
            go_on(harness)
            assert cents(harness) == [1, 2, 3, 4]
        bus.client.close()


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("left", [[], [1]])
async def test_a_beginning_that_a_replica_lacks_is_waited_for(tmp_path: Path, left: list[int]) -> None:
    """The entry is right, and the replica is late. On a primary it is an error of start=."""
    with RedisServer(tmp_path) as server:
        bus = Bus(server.url)
        bus.add(*left)
        source = redis.source(bus.name, Sale, server=bus.url, start={bus.name: f"{NOON // 1_000 + 3}-0"})
        for primary, error in ((("127.0.0.1", 1), "goes on behind entry .*has not come"), (("NO", "ONE"), "ends at")):
            bus.client.replicaof(*primary)
            reader = await source.open_reader(bus.name, None)
            with pytest.raises(redis.RedisError, match=error):
                await reader.read()
            await reader.close()
        bus.add(3, 4)
        reader = await source.open_reader(bus.name, None)
        assert list((await reader.read()).records) == []
        assert [sale.cents for sale, _ in (await reader.read()).records if isinstance(sale, Sale)] == [4]
        await reader.close()
        bus.client.close()


def test_an_entry_that_cannot_be_read_stops_its_stream(bus: Bus) -> None:
    with running(bus.topology()) as harness:
        bus.add(1)
        bus.client.xadd(bus.name, {"item": "tea", "cents": "many"}, f"{NOON // 1_000 + 2}-0")
        bus.add(3)
        with pytest.raises(Exception, match=r"entry \d+-0: .*`int`.*bad=\"NAME\""):
            go_on(harness)
        assert cents(harness) == []
    with running(bus.topology(bad="unreadable")) as harness:
        go_on(harness)
        assert cents(harness) == [1, 3]
        (bad,) = harness.values("unreadable")
        assert isinstance(bad, BadRecord)
        assert (bad.split, bad.place) == (bus.name, f"entry {NOON // 1_000 + 2}-0")
        assert json.loads(bad.raw) == {"item": "tea", "cents": "many"}


def test_an_entry_whose_time_fails_has_its_id(bus: Bus) -> None:
    topology = mw.Topology("shop")
    source = redis.source(bus.name, Sale, server=bus.url)
    topology.source("sales", Sale, source, timestamp=lambda sale: mw.Timestamp(sale.cents), bad="unreadable")
    with running(topology) as harness:
        bus.add(1)
        go_on(harness)
        assert [bad.place for bad in harness.values("unreadable")] == [f"entry {NOON // 1_000 + 1}-0"]


def test_a_key_of_another_type_is_named(bus: Bus) -> None:
    with running(bus.topology()) as harness:
        bus.client.set(bus.name, "text")
        with pytest.raises(redis.RedisError, match=f"{bus.name!r}.*has another type"):
            go_on(harness)


def test_a_read_has_a_bound_in_bytes(bus: Bus) -> None:
    for one in range(1, 41):
        bus.add(one, other="x" * 200_000)
    source = redis.source(bus.name, Sale, server=bus.url)

    async def sizes() -> list[int]:
        reader, got = await source.open_reader(bus.name, redis.StreamPosition()), list[int]()
        while not got or got[-1]:
            got.append(len((await reader.read()).records))
        await reader.close()
        return got

    assert asyncio.run(sizes()) == [6, 6, 6, 6, 6, 6, 4, 0]


def test_a_wrong_password_is_named(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    bus.client.acl_setuser(bus.name, enabled=True, passwords=["+right@:/"], keys=["*"], commands=["+@all"])
    place = bus.url.removeprefix("redis://")
    url = f"redis://{bus.name}:${{SHOP_PASSWORD}}@{place}"
    bus.add(1)
    with pytest.raises(mw.UsageError, match="environment variable SHOP_PASSWORD"), running(bus.topology(server=url)):
        pass
    monkeypatch.setenv("SHOP_PASSWORD", "wrong")
    wrong = pytest.raises(redis.RedisError, match=r"Redis at 127.0.0.1:.*Check user and password")
    with wrong as failed, running(bus.topology(server=url)):
        pass
    assert "wrong@" not in str(failed.value)
    monkeypatch.setenv("SHOP_PASSWORD", "right@:/")
    with running(bus.topology(server=url)) as harness:
        go_on(harness)
        assert cents(harness) == [1]
    bus.client.acl_deluser(bus.name)


def test_a_user_needs_only_the_right_to_read(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    rights = ["+eval_ro", "+exists", "+xinfo|stream", "+xrange"]
    bus.client.execute_command("ACL", "SETUSER", bus.name, "on", ">secret", f"%R~{bus.name}", "-@all", *rights)
    monkeypatch.setenv("SHOP_PASSWORD", "secret")
    bus.add(1)
    url = f"redis://{bus.name}:${{SHOP_PASSWORD}}@{bus.url.removeprefix('redis://')}"
    with running(bus.topology(server=url)) as harness:
        go_on(harness)
        assert cents(harness) == [1]
    bus.client.acl_deluser(bus.name)


@pytest.mark.guarantee("G1")
def test_a_server_that_comes_and_goes_loses_nothing(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, appendfsync="always")
    bus = Bus(server.url)
    with pytest.raises(redis.RedisError, match=r"cannot be read: Redis at 127.0.0.1"), running(bus.topology()):
        pass
    with server, running(bus.topology()) as harness:
        bus.add(1, 2)
        go_on(harness)
        server.kill()
        with pytest.raises(redis.RedisError, match="refused"):
            go_on(harness)
        server.start()
        bus.add(3)
        go_on(harness)
        assert cents(harness) == [1, 2, 3]
    bus.client.close()


@pytest.mark.guarantee("G1")
def test_a_server_that_lost_entries_is_noticed(tmp_path: Path) -> None:
    with RedisServer(tmp_path, appendonly="no") as server:
        bus = Bus(server.url)
        bus.add(1)
        bus.client.save()
        bus.add(2, 3)
        with running(bus.topology()) as harness:
            go_on(harness)
            server.kill()
            server.start()
            bus.add(4)
            with pytest.raises(redis.RedisError, match="the server lost entries"):
                go_on(harness)
        bus.client.close()


def test_a_cluster_is_read_by_a_function(tmp_path: Path) -> None:
    with RedisServer(tmp_path, cluster_enabled="yes") as server:
        bus = Bus(server.url)
        serve_all_slots(bus.client)
        bus.add(1)

        def connect() -> Any:
            from redis.cluster import RedisCluster

            return RedisCluster(host="127.0.0.1", port=server.port)

        for options in (dict[str, Any](), {"streams": f"{bus.name}*", "pattern": True}):
            with running(bus.topology(server=connect, **options)) as harness:
                go_on(harness)
                assert cents(harness) == [1]
        bus.client.close()


@pytest.mark.parametrize(
    ("arguments", "options", "why"),
    [
        (([], Sale), {}, "by their names"),
        ((["a*", "b*"], Sale), {"pattern": True}, "by their names"),
        (("", Sale), {}, "by their names"),
        (("a", Sale), {"start": "first"}, "start= is"),
        (("a", Sale), {"start": datetime(2026, 1, 5)}, "has no time zone"),  # that is the mistake
        (("a", Sale), {"start": {"a": "5"}}, "has the id of an entry"),
        (("a", Sale), {"start": {"b": "5-0"}}, "does not read"),
        (("a", int), {}, "has fields, and .* has none"),
        (("a", Sale), {"server": "http://localhost"}, "needs a URL"),
        (("a", Sale), {"server": "redis://me:secret@localhost"}, "has no passwords"),
        (("a", Sale), {"server": "redis://localhost?password=secret"}, "has no passwords"),
    ],
)
def test_what_is_no_source_is_refused(arguments: tuple[Any, ...], options: dict[str, Any], why: str) -> None:
    with pytest.raises(mw.UsageError, match=why) as refused:
        redis.source(*arguments, **{"server": "redis://localhost", **options})
    assert "secret" not in str(refused.value)


def test_declaring_a_source_does_not_load_the_library() -> None:
    program = """if True:
        import sys
        from millwheel.connectors import redis
        redis.source("bids", decode=str, server="redis://localhost")
        print("redis" in sys.modules)
    """
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
