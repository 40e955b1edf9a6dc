"""ListEvents over loopback gRPC: the caller's name, selections and pages, and what a term's recorder adds."""

from __future__ import annotations

from collections.abc import Callable

from millwheel.client.control import ControlClient
from millwheel.coordination.contract import Put
from millwheel.master.metrics import MasterCollector
from millwheel.master.replica import MasterReplica
from millwheel.model.catalog_keys import departure_key, worker_key
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as wire
from millwheel.rpc.v1.common_pb2 import Endpoint
from millwheel.store.memory import MemoryStore
from millwheel.worker.process.registration import Registration
from tests.coordination.memory import MemoryCoordinator
from tests.master.replica import replica
from tests.master.test_interval_service import Cluster, named
from tests.master.test_interval_service import cluster as cluster
from tests.patience import patience, until

LIST = "/millwheel.v1.ClusterService/ListEvents"


async def listed(client: ControlClient, **request: object) -> wire.ListEventsResponse:
    return await client.call(LIST, wire.ListEventsRequest(**request), wire.ListEventsResponse)  # type: ignore[arg-type]


async def kinds(client: ControlClient) -> list[str]:
    return [one.kind for one in await client.list_events()]


async def test_a_callers_move_has_its_host_as_actor(cluster: Cluster) -> None:
    before = await cluster.first()
    (other,) = set(cluster.workers) - {before.owner.worker_id}
    await cluster.client.move_interval(named(before.journal), other)
    (event,) = await cluster.client.list_events(kind="interval.moved")
    assert (event.actor, event.topology, event.subject) == ("127.0.0.1", "zeitgeist", "window-counter")
    assert event.before.endswith(f" at {before.owner.worker_id}")
    assert event.after.endswith(f" at {other}")


async def test_a_term_begins_with_its_master_and_its_workers(cluster: Cluster) -> None:
    found = await until(
        lambda: kinds(cluster.client), patience(20), holds=lambda all_kinds: all_kinds.count("worker.joined") == 2
    )
    assert found.count("master.elected") == 1
    (event,) = await cluster.client.list_events(kind="master")
    assert event.subject == cluster.master.address


async def lapsed() -> None:
    raise AssertionError("its lease is renewed")


def left_workers(master: MasterReplica) -> list[str]:
    families = {one.name: one for one in MasterCollector(master).collect()}
    return [sample.labels["process"] for sample in families["millwheel_master_left_workers"].samples]


async def test_a_worker_that_ends_in_order_has_left_and_not_gone(cluster: Cluster) -> None:
    async def found(*kinds: str) -> list[str]:
        return [one.kind for one in await cluster.client.list_events() if one.subject == "w9" and one.kind in kinds]

    def left() -> list[str]:
        return left_workers(cluster.master)

    registration = Registration(cluster.master.coordinator, "w9", "here:7450", patience(5), lapsed)
    await registration.start()
    await until(lambda: found("worker.joined"), patience(20))
    await registration.close()
    assert await until(lambda: found("worker.left", "worker.lost"), patience(20)) == ["worker.left"]
    assert left() == ["worker w9 at here:7450"]
    (gone,) = (await cluster.client.cluster_health()).departed
    assert (gone.worker_id, gone.address) == ("w9", "here:7450")
    lease = await cluster.master.coordinator.grant_lease(patience(60))
    record = catalog.WorkerRecord(endpoint=Endpoint(worker_id="w9", address="here:7450"))
    put = Put(worker_key("w9"), record.SerializeToString(), lease)
    await cluster.master.coordinator.transact((), [put], deletes=[departure_key("w9")])  # as a registration does
    await until(lambda: _nothing(left), patience(20))
    assert not (await cluster.client.cluster_health()).departed
    await cluster.master.coordinator.revoke_lease(lease)  # as that of a process that was killed
    await until(lambda: found("worker.lost"), patience(20))
    assert left() == []


async def _nothing(those: Callable[[], list[str]]) -> bool:
    return not those()


async def test_a_worker_that_leaves_without_a_leader_is_not_lost() -> None:
    coordinator, store = MemoryCoordinator(), MemoryStore()
    known, unknown = (Registration(coordinator, name, f"{name}:7450", patience(60), lapsed) for name in ("w8", "w9"))
    await known.start()
    async with replica(coordinator, store) as (address, _), ControlClient(address, patience=patience(20)) as client:
        await until(lambda: kinds(client), patience(20), holds=lambda found: "worker.joined" in found)
    await known.close()
    await unknown.start()
    await unknown.close()
    async with (
        replica(coordinator, store) as (address, master),
        ControlClient(address, patience=patience(20)) as client,
    ):
        found = await until(lambda: kinds(client), patience(20), holds=lambda found: len(found) == 4)
        assert found == ["worker.left", "master.elected", "worker.joined", "master.elected"]
        assert sorted(left_workers(master)) == ["worker w8 at w8:7450", "worker w9 at w9:7450"]
    await coordinator.close()


async def test_events_are_selected_and_come_by_pages(cluster: Cluster) -> None:
    for number in range(3):
        await cluster.client.split_interval(named((await _last(cluster)).journal), b"z" + bytes([65 + number]))
        for worker in cluster.workers.values():
            worker.independent = True
        await until(lambda: _is_free(cluster))
    first = await listed(cluster.client, topology="zeitgeist", kind="interval.", page_size=2)
    assert ([one.kind for one in first.events], bool(first.next_page_token)) == (["interval.split"] * 2, True)
    rest = await listed(
        cluster.client, topology="zeitgeist", kind="interval.", page_size=2, page_token=first.next_page_token
    )
    assert (len(rest.events), rest.next_page_token) == (1, "")
    assert [one.number for one in [*first.events, *rest.events]] == sorted(
        (one.number for one in [*first.events, *rest.events]), reverse=True
    )
    assert (await listed(cluster.client, since_us=first.events[0].at_us + 1, kind="interval.")).events == []
    assert (await listed(cluster.client, topology="other")).events == []


async def _last(cluster: Cluster) -> catalog.IntervalRecord:
    return (await cluster.client.list_intervals("zeitgeist", "window-counter"))[-1].interval


async def _is_free(cluster: Cluster) -> bool:
    return not any(one.interval.parents for one in await cluster.client.list_intervals("zeitgeist", "window-counter"))
