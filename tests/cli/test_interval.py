"""The interval commands against a real master, with workers that report loads and are notified of handovers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from millwheel.cli.interval import plain_status, status_row
from millwheel.client.control import ControlClient
from millwheel.client.holds.names import GroupNames
from millwheel.master.settings import MasterSettings
from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import milliseconds
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import interval_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.rpc.v1.interval_pb2 import IntervalName
from millwheel.store.memory import MemoryStore
from tests.cli.test_topology import GOOD, Cli
from tests.coordination.memory import MemoryCoordinator
from tests.master.replica import Owner, owner, replica
from tests.patience import until

SETTINGS = MasterSettings(split_points=(b"m",), poll_loads_every=milliseconds(50))


@dataclass(frozen=True)
class Cluster:
    cli: Cli
    workers: dict[str, Owner]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    coordinator = MemoryCoordinator()
    async with AsyncExitStack() as stack:
        workers = {name: await stack.enter_async_context(owner(coordinator, name)) for name in ("w1", "w2")}
        address, master = await stack.enter_async_context(replica(coordinator, MemoryStore(), SETTINGS))
        await master.leading()
        cli = Cli(address)
        submitted = await cli("topology", "submit", GOOD)
        assert submitted.code == 0, submitted.err
        yield Cluster(cli, workers)
    await coordinator.close()


async def listed(cli: Cli, place: str = "sample/counter") -> list[dict[str, object]]:
    shown = await cli("interval", "list", place, "-o", "json")
    assert shown.code == 0, shown.err
    found = json.loads(shown.out)
    assert isinstance(found, list)
    return found


async def test_move_split_and_merge_show_what_there_is_now(cluster: Cluster) -> None:
    cli = cluster.cli
    first, second = await listed(cli)
    assert (first["keys"], second["keys"]) == ("['', 'm')", "['m', +inf)")
    assert {first["owner"], second["owner"]} == {"w1", "w2"}
    moved = await cli("interval", "move", "sample/counter", "--key", "a", "--to", str(second["owner"]), "-o", "json")
    (row,) = json.loads(moved.out)
    assert (row["journal"], row["owner"]) == (first["journal"], second["owner"])
    split = await cli("interval", "split", str(first["journal"]), "--at", "g", "-o", "yaml")
    assert split.code == 0, split.err
    assert "keys: \"['', 'g')\"" in split.out
    rows = await listed(cli)
    assert [row["keys"] for row in rows] == ["['', 'g')", "['g', 'm')", "['m', +inf)"]
    assert rows[0]["parents"] == rows[1]["parents"] == [first["journal"]]
    table = await cli("interval", "list", "sample")
    assert f"starts from {first['journal']}" in table.out
    early = await cli("interval", "merge", "sample/counter", "--key", "a")
    assert (early.code, early.out) == (6, "")
    assert "try again in a few seconds" in early.err
    for worker in cluster.workers.values():
        worker.independent = True
    until_free = await listed(cli)
    while any(row["parents"] for row in until_free):
        until_free = await listed(cli)
    merged = await cli("interval", "merge", "sample/counter", "--key", "a")
    assert merged.code == 0, merged.err
    assert merged.out.splitlines()[0].split() == ["KEYS", "OWNER", "SEQUENCER", "JOURNAL"]
    assert "['', 'm')" in merged.out


async def test_a_split_without_a_key_halves_the_load_or_is_explained(cluster: Cluster) -> None:
    cli = cluster.cli
    shown = await cli("interval", "split", "sample/counter", "--key", "a")
    assert (shown.code, shown.out) == (6, "")
    assert "has not reported its keys' load yet" in shown.err
    for worker in cluster.workers.values():
        worker.sample = {b"a": 0.3, b"c": 0.3, b"f": 0.4}
    rows = await listed(cli)
    while rows[0]["load"] is None or "f" not in (await cli("interval", "split", "sample/counter", "--key", "a")).out:
        rows = await listed(cli)
    assert [row["keys"] for row in await listed(cli)][:2] == ["['', 'f')", "['f', 'm')"]


@pytest.mark.parametrize(("owner", "shown"), [("w1", "?"), ("", "")])
def test_an_interval_without_a_report_says_so(owner: str, shown: str) -> None:
    """Regression: while an interval moved, its columns were blank. Under a new leader, each was said to move."""
    status = wire.IntervalStatus(topology="shop", computation="count")
    status.interval.journal, status.interval.owner.worker_id = "count.1.j1", owner
    row = status_row(plain_status(status), status.load, GroupNames({}))
    assert row[2:5] == [owner or "none", "count.1.j1", shown]


@pytest.mark.parametrize("is_source", [True, False])
def test_a_note_says_what_helps_for_a_source(is_source: bool) -> None:
    """Regression: for a read that does not end, the note advised asyncio.timeout, as for a hook of the user's."""
    status = wire.IntervalStatus(topology="shop", computation="orders-reader")
    incarnation = IncarnationId("orders-reader.1")
    status.load.incarnation = incarnation
    status.load.failures.awaited.add(key=b"0", hook="process_timer", work="timer ''", since_us=1)
    spec = specs.TopologySpec(name="shop")
    spec.computations.add(name="orders-reader", reads="kafka:orders" if is_source else "")
    record = catalog.TopologyRecord(spec=spec, incarnations={"orders-reader": incarnation})
    note = str(status_row(plain_status(status), status.load, GroupNames.from_records([record]))[-1])
    assert ("the read of split '0' of source shop/orders" in note, "asyncio.timeout" in note) == (
        is_source,
        not is_source,
    )


async def test_everything_is_listed_with_the_streams_logs(cluster: Cluster) -> None:
    rows = await listed(cluster.cli, "")
    assert {(row["topology"], row["computation"], row["stream"]) for row in rows} == {
        ("sample", "counter", None),
        (None, None, "sample/counts"),
        (None, None, "sample/dead-letters"),
    }
    table = await cluster.cli("interval", "list")
    assert "log of sample/counts" in table.out
    assert table.out.splitlines()[0].split()[:4] == ["COMPUTATION", "KEYS", "OWNER", "JOURNAL"]


async def test_impossible_requests_are_explained_with_an_exit_code(cluster: Cluster) -> None:
    wrong: list[tuple[tuple[str, ...], int, str]] = [
        (("split", "sample/counter", "--key", "a", "--at", "q"), 5, "it is outside"),
        (("split", "sample/counter", "--at", "m"), 5, "nothing would be below it"),
        (("split", "sample/countr", "--at", "g"), 3, "did you mean 'counter'"),
        (("split", "sampel/counter", "--at", "g"), 3, "did you mean 'sample'"),
        (("move", "sample/counter"), 5, "has 2 intervals, and none of them is named"),
        (("move", "sample/counter", "--key", "a", "--to", "w9"), 3, "registered: w1, w2"),
        (("move", "counter.1.j99"), 3, "interval list"),
        (("merge", "sample/counter", "--key", "z"), 6, "name the interval before it"),
        (("merge", "counter.1.j99", "--key", "a"), 2, "leave --key out"),
        (("list", "sampel"), 3, "did you mean 'sample'"),
        (("list", "a/b/c"), 5, "write TOPOLOGY/COMPUTATION"),
    ]
    for shown, (arguments, code, part) in zip(
        await asyncio.gather(*(cluster.cli("interval", *arguments) for arguments, _, _ in wrong)), wrong, strict=True
    ):
        assert (shown.code, shown.out) == (code, ""), arguments
        assert part in shown.err, arguments


async def test_an_empty_key_is_refused_by_command_and_server(cluster: Cluster) -> None:
    cli = cluster.cli
    before = await until(lambda: listed(cli), holds=lambda shown: all(one["load"] for one in shown))
    for verb, option in (("split", "--key"), ("split", "--at"), ("move", "--key"), ("merge", "--key")):
        shown = await cli("interval", verb, "sample/counter", option, "")
        assert (shown.code, shown.out) == (2, "")
        assert "an empty key" in shown.err
    whole = IntervalName(journal=str(before[0]["journal"]))
    async with ControlClient(cli.address) as client:
        with pytest.raises(RequestError, match="empty key") as caught:
            await client.split_interval(whole, at=b"")
        assert caught.value.code is FailureCode.INVALID_ARGUMENT
    assert await listed(cli) == before
