"""The master's services over loopback gRPC: packages, submissions, routing, injection, standbys (section 7.1)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from millwheel.client.control import ControlClient
from millwheel.client.subscription.cursors import delete_cursor, list_cursors
from millwheel.coordination.contract import Put
from millwheel.master.messages import SubmitTopology
from millwheel.master.packages import MAX_PACKAGE_BYTES, Packages
from millwheel.master.replica import MasterReplica
from millwheel.master.settings import MasterSettings
from millwheel.model.catalog_keys import LEADERSHIP
from millwheel.model.incarnation import IncarnationId, injector_group
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, milliseconds
from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.rpc.v1.control_pb2_grpc import TopologyServiceStub
from millwheel.rpc.watermarks import WatermarkReport
from millwheel.store.contract import StateRow
from millwheel.store.memory import MemoryStore
from tests.authority.gated import GatedAuthority
from tests.coordination.memory import MemoryCoordinator
from tests.master.replica import authority, owner, register_worker, replica
from tests.patience import patience, until

from .harness import computation, external, source, topology

CODE = b"the code" * 200_000
DIGEST = hashlib.sha256(CODE).hexdigest()
QUICK = MasterSettings(drain_grace=milliseconds(50), observe_every=milliseconds(50))


class Cluster:
    """One leading master with one client."""

    def __init__(
        self, client: ControlClient, master: MasterReplica, coordinator: MemoryCoordinator, store: MemoryStore
    ):
        self.client = client
        self.master = master
        self.coordinator = coordinator
        self.store = store

    async def submit(self, spec: specs.TopologySpec | None = None, request: str = "") -> catalog.TopologyRecord:
        await self.client.upload_package(DIGEST, CODE)
        return await self.client.submit(with_code(spec or topology()), request)


def with_code(spec: specs.TopologySpec) -> specs.TopologySpec:
    spec.code.digest = DIGEST
    return spec


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    coordinator, store = MemoryCoordinator(), MemoryStore()
    async with replica(coordinator, store, QUICK) as (address, master), ControlClient(address) as client:
        await master.leading()
        yield Cluster(client, master, coordinator, store)
    await coordinator.close()


async def refused(work: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await work
    return caught.value


async def test_packages_come_back_as_they_were_and_are_stored_once(cluster: Cluster) -> None:
    assert await cluster.client.upload_package(DIGEST, CODE)
    assert not await cluster.client.upload_package(DIGEST, CODE)
    assert await cluster.client.download_package(DIGEST) == CODE
    empty = hashlib.sha256(b"").hexdigest()
    assert await cluster.client.upload_package(empty, b"")
    assert await cluster.client.download_package(empty) == b""


async def test_packages_that_differ_from_their_digest_are_refused(cluster: Cluster) -> None:
    error = await refused(cluster.client.upload_package("0" * 64, CODE))
    assert error.reason == "DIGEST_MISMATCH"
    assert DIGEST in error.message
    assert (await refused(cluster.client.upload_package("../etc", CODE))).reason == "DIGEST_INVALID"
    assert (await refused(cluster.client.download_package("1" * 64))).code is FailureCode.NOT_FOUND
    large = bytes(MAX_PACKAGE_BYTES + 1)
    error = await refused(cluster.client.upload_package(hashlib.sha256(large).hexdigest(), large))
    assert error.reason == "PACKAGE_TOO_LARGE"


async def test_a_refusal_of_a_package_comes_after_the_last_write(cluster: Cluster) -> None:
    """Regression: the call ended while the client wrote to it. Then gRPC loses the reason."""
    written: list[int] = []

    async def chunks(count: int) -> AsyncIterator[control.UploadPackageRequest]:
        yield control.UploadPackageRequest(digest="../etc")
        for number in range(count):
            written.append(number)
            yield control.UploadPackageRequest(chunk=bytes(1 << 20))

    async with open_channel(cluster.client.address) as channel:
        stub = TopologyServiceStub(channel)
        for count, reason in [(40, "DIGEST_INVALID"), (100, "PACKAGE_TOO_LARGE")]:
            written.clear()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.UploadPackage(chunks(count))
            assert from_rpc_error(caught.value).reason == reason
            assert len(written) == count


async def test_a_digest_alone_asks_whether_a_package_is_known(cluster: Cluster) -> None:
    async def ask() -> bool:
        async with open_channel(cluster.client.address) as channel:
            answer = await TopologyServiceStub(channel).UploadPackage(
                iter([control.UploadPackageRequest(digest=DIGEST)])
            )
            return bool(answer.already_known)

    assert not await ask()
    assert await cluster.client.upload_package(DIGEST, CODE)
    assert await ask()


async def test_a_damaged_package_is_never_handed_out_whole() -> None:
    store = MemoryStore()
    packages = Packages(store, 5)
    await packages.put(DIGEST, CODE)
    (manifest,) = await store.read_states(IncarnationId("packages"), [DIGEST.encode()])
    assert manifest is not None
    await store.drop_incarnation(IncarnationId("packages"))
    rows = [manifest, StateRow(f"{DIGEST}/0001".encode(), manifest.commit, b"other")]
    await store.write_states(IncarnationId("packages"), "packages", 5, rows)
    with pytest.raises(RequestError, match="is damaged"):
        async for _ in packages.get(DIGEST):
            pass


@pytest.mark.paper(section="6.2")
async def test_a_deposed_master_stores_no_packages() -> None:
    store = MemoryStore()
    await Packages(store, 6).put(DIGEST, CODE)
    with pytest.raises(RequestError, match="no longer leads"):
        await Packages(store, 5).put(hashlib.sha256(b"x").hexdigest(), b"x")


async def test_a_topology_runs_and_can_be_looked_at(cluster: Cluster) -> None:
    await register_worker(cluster.coordinator, "w1", "127.0.0.1:1")
    record = await cluster.submit()
    assert record.state == catalog.TOPOLOGY_STATE_RUNNING
    assert record.submitted_at_us > 0
    found = await cluster.client.get_topology("zeitgeist")
    assert found.topology == record
    assert {one.stream for one in found.logs} == {"zeitgeist/dips", "zeitgeist/dead-letters"}
    assert len(found.interval_maps) == 4
    assert {one.owner.worker_id for record in found.interval_maps for one in record.intervals} == {"w1"}


async def test_a_submission_without_its_package_is_refused(cluster: Cluster) -> None:
    error = await refused(cluster.client.submit(with_code(topology())))
    assert error.reason == "PACKAGE_UNKNOWN"


async def test_every_problem_travels_with_the_refusal(cluster: Cluster) -> None:
    bad = topology(computations=[computation("a", {"querys": "text"}, []), computation("a", {}, [])])
    problems = await cluster.client.validate(bad)
    error = await refused(cluster.submit(bad))
    assert error.code is FailureCode.INVALID_ARGUMENT
    assert list(error.problems) == problems
    assert len(problems) == 3
    assert "did you mean 'zeitgeist/queries'" in str(error)


async def test_validate_reports_a_taken_name(cluster: Cluster) -> None:
    await cluster.submit()
    assert await cluster.client.validate(with_code(topology())) == []
    (problem,) = await cluster.client.validate(topology())
    assert "use another name" in problem.message


async def test_requests_repeated_under_their_id_are_one(cluster: Cluster) -> None:
    first = await cluster.submit(request="r1")
    assert await cluster.submit(request="r1") == first
    error = await refused(cluster.submit(request="r2"))
    assert error.code is FailureCode.ALREADY_EXISTS
    assert "cancel" in error.remedy


async def test_lists_come_in_pages(cluster: Cluster) -> None:
    for index in range(5):
        await cluster.submit(topology(f"t{index}", [source("s")], [computation("c", {"s": "k"}, [])]))
    assert [one.spec.name for one in await cluster.client.list_topologies(page_size=2)] == [f"t{i}" for i in range(5)]


async def test_unknown_names_are_not_found(cluster: Cluster) -> None:
    await cluster.submit()
    for work in (cluster.client.get_topology("zeitgeisd"), cluster.client.drain("zeitgeisd")):
        error = await refused(work)
        assert error.code is FailureCode.NOT_FOUND
        assert "did you mean 'zeitgeist'" in error.message
    assert (await refused(cluster.client.ensure_stream_log("dipps"))).code is FailureCode.NOT_FOUND


async def test_routing_is_sent_whole_and_again_after_each_change(cluster: Cluster) -> None:
    await register_worker(cluster.coordinator, "w1", "127.0.0.1:1")
    await cluster.submit()
    watch = cluster.client.watch_routing("zeitgeist/queries")
    first = await anext(watch)
    assert [one.computation for one in first.consumers] == ["window-counter"]
    assert first.stream.injected
    assert first.consumers[0].intervals.intervals[0].owner.address == "127.0.0.1:1"
    assert not first.draining
    reader = topology(
        "reader", [external("zeitgeist/queries")], [computation("r", {"zeitgeist/queries": "q"}, ["out"])]
    )
    await cluster.submit(reader)
    second = await anext(watch)
    assert [one.topology for one in second.consumers] == ["reader", "zeitgeist"]
    assert second.revision > first.revision
    await cluster.client.cancel("reader")
    assert [one.topology for one in (await anext(watch)).consumers] == ["zeitgeist"]
    await cluster.client.drain("zeitgeist")
    assert (await anext(watch)).draining
    await watch.aclose()  # type: ignore[attr-defined]


@pytest.mark.paper(section="4.2")
async def test_routing_has_the_type_that_the_streams_owner_declares(cluster: Cluster) -> None:
    """A declaration without a schema takes any record: then no type is shown."""
    kinds = {kind: specs.RecordSchema(types=[specs.TypeSchema(kind=kind)]) for kind in ("int", "str")}

    def owner(name: str, **more: Any) -> specs.TopologySpec:
        return topology(name, [source("queries", **more)], [computation("r", {"queries": "q"}, ["out"])])

    async def reported(stream: str) -> list[str]:
        routing = await cluster.client.routing(stream)
        assert routing.stream.name == stream
        assert not routing.stream.HasField("schema")
        return [schema.types[0].kind for schema in routing.schemas]

    await cluster.submit(owner("a", schema=kinds["str"]))
    await cluster.submit(owner("b", schema=kinds["int"]))
    await cluster.submit(owner("c"))
    assert [await reported(f"{name}/queries") for name in "abc"] == [["str"], ["int"], []]


async def test_routing_of_an_unknown_stream_is_not_found(cluster: Cluster) -> None:
    error = await refused(anext(cluster.client.watch_routing("zeitgeist/queries")))
    assert error.code is FailureCode.NOT_FOUND


async def test_a_stream_log_is_made_once_and_found_again(cluster: Cluster) -> None:
    await register_worker(cluster.coordinator, "w1", "127.0.0.1:1")
    await cluster.submit()
    one = await cluster.client.ensure_stream_log("zeitgeist/windows")
    assert one.created
    assert one.created_at_us > 0, "from then on its records are kept"
    one.created = False
    assert one == await cluster.client.ensure_stream_log("zeitgeist/windows")
    assert one.owner.worker_id == "w1"
    assert (await cluster.store.read_head(one.journal)).commit == 0


async def test_to_look_for_a_streams_cursors_makes_no_log(cluster: Cluster) -> None:
    await register_worker(cluster.coordinator, "w1", "127.0.0.1:1")
    await cluster.submit()
    assert await list_cursors("zeitgeist/windows", cluster.client) == []
    error = await refused(delete_cursor("zeitgeist/windows", "c", cluster.client))
    assert (error.code, error.message) == (FailureCode.NOT_FOUND, "stream 'zeitgeist/windows' has no cursor 'c'")
    found = await cluster.client.get_topology("zeitgeist")
    assert "zeitgeist/windows" not in {log.stream for log in found.logs}
    assert "did you mean 'windows'" in str(await refused(list_cursors("widnows", cluster.client)))


async def test_a_drain_ends_once_the_workers_have_nothing_to_do(cluster: Cluster) -> None:
    async with owner(cluster.coordinator, "w1") as servicer:
        record = await cluster.submit()
        servicer.queued = 4
        assert (await cluster.client.drain("zeitgeist")).state == catalog.TOPOLOGY_STATE_DRAINING
        await described(cluster, lambda one: any("4 records pending" in line for line in one.waiting_for))
        servicer.queued = 0
        drained = await described(cluster, lambda one: one.topology.state == catalog.TOPOLOGY_STATE_DRAINED)
        for one in drained.interval_maps:
            assert one.intervals[0].HasField("owner") == (one.topology == "")
        assert record.incarnations == drained.topology.incarnations


async def described(cluster: Cluster, holds: Callable[[control.GetTopologyResponse], bool]) -> Any:
    """The topology, once ``holds`` is true of it."""
    return await until(lambda: cluster.client.get_topology("zeitgeist"), patience(10), holds=holds)


async def test_cancel_drops_journals_and_state_and_frees_the_name(cluster: Cluster) -> None:
    async with authority(cluster.coordinator):
        await cluster.submit()
        journals = [
            one.journal for m in (await cluster.client.get_topology("zeitgeist")).interval_maps for one in m.intervals
        ]
        assert (await cluster.client.cancel("zeitgeist")).state == catalog.TOPOLOGY_STATE_CANCELLED
        await described(cluster, lambda one: not one.interval_maps)
        for journal in journals:
            with pytest.raises(Exception, match=journal):
                await cluster.store.read_head(journal)
        assert (await cluster.submit(request="again")).version == 2


async def report(authority: GatedAuthority, process: str, watermark: int) -> None:
    """Report as the process does."""
    group = injector_group("zeitgeist/queries")
    one = WatermarkReport(group, process, authority.sequencers[process], watermark)
    assert await authority.open_shard.report([one]) == []


@pytest.mark.guarantee("G4")
async def test_the_authority_accepts_injectors_before_they_begin(cluster: Cluster) -> None:
    await cluster.submit()
    assert (await refused(cluster.client.open_injector("zeitgeist/queries", "p"))).reason == "NO_AUTHORITY"
    async with authority(cluster.coordinator) as servicer:
        await asyncio.sleep(0.05)
        opened = await cluster.client.open_injector("zeitgeist/queries", "p")
        assert servicer.sequencers == {"p": opened.sequencer}
        assert opened.watermark_us == MIN_TIMESTAMP
        known = (await cluster.master.leading()).catalog
        assert opened.authority == known.authority_of(injector_group("zeitgeist/queries"))
        again = await cluster.client.open_injector("zeitgeist/queries", "p")
        assert again.sequencer > opened.sequencer
        await report(servicer, "p", 7)
        (status,) = await cluster.client.list_injectors("zeitgeist/queries")
        assert (status.process, status.watermark_us, status.finished) == ("p", 7, False)
        assert status.sequencer == again.sequencer
        await cluster.client.open_injector("zeitgeist/queries", "q")
        await report(servicer, "q", MAX_TIMESTAMP)
        assert (await refused(cluster.client.open_injector("zeitgeist/queries", "q"))).reason == "INJECTOR_FINISHED"
        assert [one.finished for one in await cluster.client.list_injectors()] == [False, True]
        assert (await refused(cluster.client.list_injectors("nope"))).code is FailureCode.NOT_FOUND


async def test_an_ended_stream_and_a_finished_process_are_distinct(cluster: Cluster) -> None:
    async with authority(cluster.coordinator) as servicer:
        await cluster.submit()
        for process in ("p", "other"):
            await cluster.client.open_injector("zeitgeist/queries", process)
        await report(servicer, "p", MAX_TIMESTAMP)
        one = await refused(cluster.client.open_injector("zeitgeist/queries", "p"))
        assert "injector process 'p' of stream 'zeitgeist/queries' has finished" in one.message
        assert one.remedy == "use another process name"
        await report(servicer, "other", MAX_TIMESTAMP)
        ended = await refused(cluster.client.open_injector("zeitgeist/queries", "new"))
        assert "stream 'zeitgeist/queries', with every injector process of it, has finished" in ended.message
        assert "another stream" in ended.remedy


@pytest.mark.guarantee("G7", section="5.2")
async def test_a_process_is_retired_once_its_end_is_journaled(cluster: Cluster) -> None:
    async with authority(cluster.coordinator) as servicer:
        await cluster.submit()
        opened = await cluster.client.open_injector("zeitgeist/queries", "p")
        await report(servicer, "p", 7)
        error = await refused(cluster.client.retire_injector("zeitgeist/queries", "p"))
        assert error.reason == "INJECTOR_NOT_FINISHED"
        servicer.store.gate.clear()
        await report(servicer, "p", MAX_TIMESTAMP)
        retiring = asyncio.create_task(cluster.client.retire_injector("zeitgeist/queries", "p"))
        await asyncio.sleep(0.2)
        (status,) = await cluster.client.list_injectors("zeitgeist/queries")
        assert (status.watermark_us, status.retired, retiring.done()) == (MAX_TIMESTAMP, False, False)
        assert servicer.sequencers == {"p": opened.sequencer}, "no other life was accepted"
        servicer.store.gate.set()
        await retiring
        assert (await cluster.client.list_injectors("zeitgeist/queries"))[0].retired


async def test_a_process_is_not_unfinished_while_the_authority_is_away(cluster: Cluster) -> None:
    """Without the authority, no one knows whether the process has finished.

    Regression: users were asked to finish it first, although it had finished.
    """
    async with authority(cluster.coordinator) as servicer:
        await cluster.submit()
        await cluster.client.open_injector("zeitgeist/queries", "p")
        await report(servicer, "p", MAX_TIMESTAMP)
    away = await refused(cluster.client.retire_injector("zeitgeist/queries", "p"))
    assert (away.code, away.reason) == (FailureCode.UNAVAILABLE, "AUTHORITY_AWAY")
    assert "authority of stream 'zeitgeist/queries' cannot be reached" in away.message
    assert "`millwheel authority run`" in away.remedy


@pytest.mark.guarantee("G8")
async def test_of_many_injector_processes_each_is_listed_as_it_is(cluster: Cluster) -> None:
    names = [f"p{number:03}" for number in range(120)]
    async with authority(cluster.coordinator) as servicer:
        await cluster.submit()
        for name in names:
            await cluster.client.open_injector("zeitgeist/queries", name)
            await report(servicer, name, 7)
        listed = await cluster.client.list_injectors("zeitgeist/queries")
    assert [(one.process, one.watermark_us) for one in listed] == [(name, 7) for name in names]


@pytest.mark.guarantee("G7", section="5.2")
async def test_the_authority_expects_injectors_until_cancellation(
    cluster: Cluster,
) -> None:
    async with authority(cluster.coordinator) as servicer:
        streams = [
            source("zeitgeist/queries", expected_injectors=["p", "q"]),
            specs.StreamSpec(name="zeitgeist/windows"),
        ]
        await cluster.submit(topology(streams=streams))
        await cluster.client.open_injector("zeitgeist/queries", "p")
        assert servicer.expected == {"zeitgeist/queries": ["p", "q"]}
        incarnations = (await cluster.client.get_topology("zeitgeist")).topology.incarnations.values()
        await cluster.client.cancel("zeitgeist")
        gone = {*incarnations, "injector/zeitgeist/queries"}
        async with asyncio.timeout(patience(5)):
            while gone:
                gone.discard(await servicer.removed.get())


@pytest.mark.guarantee("G8", section="5.2")
async def test_an_update_that_drops_a_process_is_reported_by_itself(
    cluster: Cluster,
) -> None:
    """Regression: the watermark waited for a process that no longer existed, and no one could finish it under its
    name."""
    async with authority(cluster.coordinator) as servicer:
        streams = [
            source("zeitgeist/queries", expected_injectors=["p", "q"]),
            specs.StreamSpec(name="zeitgeist/windows"),
        ]
        await cluster.submit(topology(streams=streams))
        await cluster.client.open_injector("zeitgeist/queries", "p")
        assert servicer.expected == {"zeitgeist/queries": ["p", "q"]}
        streams[0].ClearField("expected_injectors")
        streams[0].expected_injectors.append("p")
        await cluster.client.update(with_code(topology(streams=streams)))
        async with asyncio.timeout(patience(5)):
            while await servicer.reported.get() != ["p"]:
                pass
        assert servicer.expected == {"zeitgeist/queries": ["p"]}
        assert servicer.as_of == sorted(servicer.as_of)
        assert servicer.as_of[0] > 0


async def test_batch_cursors_survive_and_never_go_back(cluster: Cluster) -> None:
    assert await cluster.client.batch_cursor("query/1") == -1
    for batch in (0, 4, 2):
        await cluster.client.commit_batch("query/1", batch)
    assert await cluster.client.batch_cursor("query/1") == 4


@pytest.mark.paper(section="7.1")
async def test_a_vanished_workers_intervals_move_while_master_watches(cluster: Cluster) -> None:
    lease = await cluster.coordinator.grant_lease(60)
    await register_worker(cluster.coordinator, "w1", "127.0.0.1:1", lease)
    await cluster.submit()
    await register_worker(cluster.coordinator, "w2", "127.0.0.1:2")
    watch = cluster.client.watch_routing("zeitgeist/queries")
    first = (await anext(watch)).consumers[0].intervals.intervals[0]
    await cluster.coordinator.revoke_lease(lease)
    second = (await anext(watch)).consumers[0].intervals.intervals[0]
    assert (first.owner.worker_id, second.owner.worker_id) == ("w1", "w2")
    assert second.sequencer > first.sequencer
    await watch.aclose()  # type: ignore[attr-defined]


async def test_health_and_reflection_answer(cluster: Cluster) -> None:
    channel = open_channel(cluster.client.address)
    health = health_pb2_grpc.HealthStub(channel)
    answer = await health.Check(
        health_pb2.HealthCheckRequest(service="millwheel.v1.TopologyService"), timeout=patience(5)
    )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (listed,) = [one async for one in reflection.ServerReflectionInfo(iter([request]), timeout=patience(5))]
    assert "millwheel.v1.RoutingService" in {one.name for one in listed.list_services_response.service}
    await channel.close(None)


@pytest.mark.paper(section="7.1")
async def test_a_standby_names_the_leader_and_takes_over_when_it_ends() -> None:
    coordinator, store = MemoryCoordinator(), MemoryStore()
    async with AsyncExitStack() as old, AsyncExitStack() as new:
        first, leader = await old.enter_async_context(replica(coordinator, store, ttl=patience(0.3)))
        await leader.leading()
        second, _ = await new.enter_async_context(replica(coordinator, store, ttl=patience(0.3)))
        async with ControlClient(second) as client:
            async with open_channel(second) as channel:  # the client would try again
                stub = TopologyServiceStub(channel)
                with pytest.raises(grpc.aio.AioRpcError, match=f"the master at {first} leads"):
                    await stub.ListTopologies(control.ListTopologiesRequest(), timeout=patience(5))
            await client.upload_package(DIGEST, CODE)
            assert client.address == first
            await client.submit(with_code(topology()), "r1")
        await old.aclose()
        async with ControlClient(second, patience=patience(10)) as client:
            assert [one.spec.name for one in await client.list_topologies()] == ["zeitgeist"]
            assert await client.download_package(DIGEST) == CODE
    await coordinator.close()


class Unheard(ControlClient):
    """Its uploads to ``standby`` end while they are written, and gRPC keeps the standby's answer to itself."""

    standby = ""

    def _topologies(self) -> Any:
        real = super()._topologies()
        if self.address != self.standby:
            return real

        async def upload(requests: Any, timeout: float) -> None:
            metadata = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, metadata, metadata, "Internal error from Core", "")

        return SimpleNamespace(UploadPackage=upload, ListTopologies=real.ListTopologies)


@pytest.mark.paper(section="7.1")
async def test_an_upload_whose_refusal_was_lost_finds_the_leader() -> None:
    coordinator, store = MemoryCoordinator(), MemoryStore()
    async with AsyncExitStack() as both:
        first, leader = await both.enter_async_context(replica(coordinator, store))
        await leader.leading()
        second, _ = await both.enter_async_context(replica(coordinator, store))
        client = Unheard(second)
        client.standby = second
        async with client:
            assert await client.upload_package(DIGEST, CODE)
            assert client.address == first
    await coordinator.close()


async def test_a_request_to_a_master_losing_leadership_can_be_repeated(cluster: Cluster) -> None:
    await cluster.client.upload_package(DIGEST, CODE)
    term = await cluster.master.leading()
    await cluster.coordinator.transact((), (), ["leadership/master"])
    async with ControlClient(cluster.client.address, patience=patience(10)) as client:
        record = await client.submit(with_code(topology()), "r1")
    assert record.version == 1
    assert term.is_over


async def test_a_master_between_terms_does_not_name_itself_as_leader() -> None:
    coordinator = MemoryCoordinator()
    await coordinator.transact((), [Put(LEADERSHIP, b"127.0.0.1:1")])
    error = await refused(MasterReplica(coordinator, MemoryStore(), "127.0.0.1:1", ttl=5).term())
    assert (error.reason, error.leader) == ("NOT_LEADING", "")
    assert "no master leads just now" in error.message
    await coordinator.close()


class SilentStore(MemoryStore):
    """A store that never answers ``create_journal``."""

    async def create_journal(self, journal: str, commit: int = 0) -> None:
        if journal == "packages":
            await super().create_journal(journal, commit)
        else:
            await asyncio.Event().wait()


async def test_requests_to_a_stopping_master_are_answered() -> None:
    coordinator = MemoryCoordinator()
    master = MasterReplica(coordinator, SilentStore(), "127.0.0.1:1", ttl=5)
    running = asyncio.ensure_future(master.run())
    await master.leading()
    asked = asyncio.ensure_future(master.ask(SubmitTopology(topology(), "r1")))
    await asyncio.sleep(0.05)
    assert not asked.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with asyncio.timeout(patience(5)):
        error = await refused(asked)
    assert error.reason == "NOT_LEADING"
    await coordinator.close()
