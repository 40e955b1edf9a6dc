"""IntervalService over loopback gRPC: pages, hints before the change, letting go as owners tell (sections 4.1, 7.1)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from millwheel.client.control import ControlClient
from millwheel.master.replica import MasterReplica
from millwheel.master.settings import MasterSettings
from millwheel.model.time import milliseconds
from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import calling
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import handover_pb2
from millwheel.rpc.v1 import interval_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.rpc.v1.interval_pb2_grpc import IntervalServiceStub
from millwheel.store.contract import JournalMissingError
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator
from tests.master.replica import Owner, owner, replica
from tests.patience import patience, until

from .harness import topology

CODE = b"the code"
SETTINGS = MasterSettings(intervals_per_computation=8, poll_loads_every=milliseconds(50))


class Cluster:
    """A leading master with two workers, and a topology of two computations."""

    def __init__(
        self, client: ControlClient, master: MasterReplica, workers: dict[str, Owner], store: MemoryStore
    ) -> None:
        self.client = client
        self.master = master
        self.workers = workers
        self.store = store

    async def first(self) -> catalog.IntervalRecord:
        return (await self.client.list_intervals("zeitgeist", "window-counter"))[0].interval

    async def until(self, holds: Callable[[catalog.IntervalRecord], bool]) -> catalog.IntervalRecord:
        """Wait for this condition of the first interval, and return the interval."""
        found: catalog.IntervalRecord = await until(self.first, holds=holds)
        return found

    async def all_listed(self, holds: Callable[[wire.IntervalStatus], bool]) -> None:
        """Wait until this holds for all listed intervals."""

        async def look() -> bool:
            return all(holds(one) for one in await self.client.list_intervals("zeitgeist"))

        await until(look)

    async def is_dropped(self, journal: str) -> bool:
        try:
            await self.store.read_head(journal)
        except JournalMissingError:
            return True
        return False


def code_of_tests() -> specs.TopologySpec:
    spec = topology()
    spec.code.digest = hashlib.sha256(CODE).hexdigest()
    return spec


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    coordinator, store = MemoryCoordinator(), MemoryStore()
    async with AsyncExitStack() as stack:
        workers = {name: await stack.enter_async_context(owner(coordinator, name)) for name in ("w1", "w2")}
        address, master = await stack.enter_async_context(replica(coordinator, store, SETTINGS))
        client = await stack.enter_async_context(ControlClient(address))
        await master.leading()
        await client.upload_package(code_of_tests().code.digest, CODE)
        await client.submit(code_of_tests())
        yield Cluster(client, master, workers, store)
    await coordinator.close()


def named(journal: str) -> wire.IntervalName:
    return wire.IntervalName(journal=journal)


async def test_pages_make_up_the_whole_list_in_order(cluster: Cluster) -> None:
    whole = await cluster.client.list_intervals()
    assert len(whole) == 2 * 8 + 2
    order = [(bool(one.stream), one.topology, one.computation, one.stream, one.interval.keys.start) for one in whole]
    assert order == sorted(order)
    for size in (1, 3, 18, 100):
        by_page = await cluster.client.list_intervals(page_size=size)
        assert [one.interval for one in by_page] == [one.interval for one in whole]
    some = await cluster.client.list_intervals("zeitgeist", "window-counter", page_size=3)
    assert [one.interval for one in some] == [one.interval for one in whole if one.computation == "window-counter"]


async def one_page(cluster: Cluster, request: wire.ListIntervalsRequest) -> wire.ListIntervalsResponse:
    """The master's answer itself, because the client hides pages."""
    address = cluster.client.address
    async with asyncio.timeout(patience(5)), open_channel(address) as channel, calling(address):
        response: wire.ListIntervalsResponse = await IntervalServiceStub(channel).ListIntervals(request)
    return response


async def test_a_list_goes_on_where_it_was_through_splits(cluster: Cluster) -> None:
    request = wire.ListIntervalsRequest(topology="zeitgeist", computation="window-counter", page_size=2)
    first = await one_page(cluster, request)
    request.page_token = first.next_page_token
    await cluster.client.split_interval(named(first.intervals[0].interval.journal), b"!!")
    second = await one_page(cluster, request)
    assert second.intervals[0].interval.keys.start == first.intervals[1].interval.keys.end


async def test_a_foreign_page_token_is_refused(cluster: Cluster) -> None:
    for token in ("nonsense", "a.b", "Zm9v.Zm9v.Zm9v", "€"):
        with pytest.raises(RequestError) as caught:
            await one_page(cluster, wire.ListIntervalsRequest(page_token=token))
        assert caught.value.reason == "PAGE_TOKEN_INVALID"


async def test_loads_are_listed_as_the_present_owners_reported_them(cluster: Cluster) -> None:
    await cluster.all_listed(lambda one: one.HasField("load"))
    before = await cluster.first()
    cluster.workers["w1"].busy = cluster.workers["w2"].busy = 0.7
    await cluster.client.move_interval(named(before.journal))
    after = (await cluster.client.list_intervals("zeitgeist", "window-counter"))[0]
    assert not after.HasField("load") or after.load.sequencer == after.interval.sequencer


async def test_owners_are_notified_before_a_move_and_then_it_is_done(cluster: Cluster) -> None:
    before = await cluster.first()
    old, new = (
        cluster.workers[name] for name in sorted(cluster.workers, key=lambda one: one != before.owner.worker_id)
    )
    old.hold.clear()
    moving = asyncio.ensure_future(cluster.client.move_interval(named(before.journal), new.worker))

    async def is_told() -> bool:
        return bool(old.received)

    await until(is_told)
    assert old.received == [handover_pb2.PrepareReleaseRequest(journal=before.journal, sequencer=before.sequencer)]
    assert new.received == [], "what is to be read is made small first"
    assert (await cluster.first()) == before, "while the hint is under way nothing has changed"
    old.hold.set()
    moved = await moving
    assert moved.owner.worker_id == new.worker
    (opening,) = new.received
    assert isinstance(opening, handover_pb2.PrepareOpenRequest)
    assert (list(opening.journals), opening.keys) == ([before.journal], before.keys)
    assert opening.incarnation == before.journal.rpartition(".j")[0]


async def test_a_silent_owner_delays_a_change_only_briefly(cluster: Cluster) -> None:
    before = await cluster.first()
    for worker in cluster.workers.values():
        worker.hold.clear()
    async with asyncio.timeout(patience(6)):
        moved = await cluster.client.move_interval(named(before.journal))
    assert moved.owner != before.owner
    for worker in cluster.workers.values():
        worker.hold.set()


async def test_children_that_stay_are_prepared_by_their_owner_alone(cluster: Cluster) -> None:
    before = await cluster.first()
    await cluster.client.split_interval(named(before.journal), b"!!")
    owner_, other = (
        cluster.workers[name] for name in sorted(cluster.workers, key=lambda n: n != before.owner.worker_id)
    )
    assert owner_.received == [handover_pb2.PrepareReleaseRequest(journal=before.journal, sequencer=before.sequencer)]
    assert other.received == []


@pytest.mark.paper(section="6.2")
async def test_parents_are_released_on_reports_and_journals_dropped(cluster: Cluster) -> None:
    before = await cluster.first()
    lower, _ = await cluster.client.split_interval(named(before.journal), b"!!")
    await asyncio.sleep(0.2)
    assert (await cluster.first()).parents
    for worker in cluster.workers.values():
        worker.independent = True
    free = await cluster.until(lambda one: not one.parents)
    assert (free.journal, free.sequencer) == (lower.journal, lower.sequencer)
    await until(lambda: cluster.is_dropped(before.journal))
    again = await cluster.client.split_interval(named(free.journal), b"  !")
    assert len(again) == 2


async def test_a_split_by_load_that_a_hot_key_forbids_names_the_key(cluster: Cluster) -> None:
    for worker in cluster.workers.values():
        worker.sample = {b" a": 0.05, b"!hot": 0.93}
    before = await cluster.first()
    await cluster.all_listed(lambda one: bool(one.load.sample))
    with pytest.raises(RequestError) as caught:
        await cluster.client.split_interval(named(before.journal))
    assert (caught.value.code, caught.value.reason) == (FailureCode.FAILED_PRECONDITION, "HOT_KEY")
    assert "key '!hot' alone has 93% of it" in caught.value.message
    assert "give a key to split at (`--at KEY`)" in caught.value.remedy


async def test_a_repeated_split_by_load_is_the_same_split(cluster: Cluster) -> None:
    for worker in cluster.workers.values():
        worker.sample = {b" a": 0.5, b"!b": 0.5}
    name = wire.IntervalName(topology="zeitgeist", computation="window-counter", key=b" ")
    await cluster.all_listed(lambda one: bool(one.load.sample))
    first = await cluster.client.split_interval(name, request_id="once")
    assert first[1].keys.start == b"!b"
    assert await cluster.client.split_interval(name, request_id="once") == first


async def test_another_owner_or_key_may_be_named(cluster: Cluster) -> None:
    before = await cluster.first()
    other = next(name for name in cluster.workers if name != before.owner.worker_id)
    lower, upper = await cluster.client.split_interval(named(before.journal), b"!!", other)
    assert (lower.owner.worker_id, upper.owner.worker_id) == (before.owner.worker_id, other)
