"""A shard keeps members of the catalog only, so callers cannot make groups without a bound (5.2, 7.2; G13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from millwheel.client.watermarks import WatermarkClient
from millwheel.coordination.contract import PrefixSnapshot, Put
from millwheel.errors import CoordinatorError
from millwheel.model.catalog_keys import chunk_key, injector_key
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.v1.catalog_pb2 import InjectorRecord, IntervalMapRecord
from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceStub
from millwheel.rpc.watermarks import AcceptRefusedError, Member, interval_to_wire
from tests.authority.conftest import Served
from tests.authority.shard import GROUP, INJECTOR, STREAM, cut
from tests.coordination.memory import MemoryCoordinator
from tests.patience import patience, until
from tests.system.server import Server


class Catalog(MemoryCoordinator):
    """A coordinator that counts lists, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = 0
        self.away = False

    async def list(self, prefix: str) -> PrefixSnapshot:
        self.lists += 1
        if self.away:
            raise CoordinatorError("no answer")
        await asyncio.sleep(0.02)
        return await super().list(prefix)


@pytest.fixture
async def catalog(served: Served) -> Catalog:
    """The catalog of the served shard."""
    made = Catalog()
    served.coordinator = made
    await served.kill()
    await served.start()
    return made


async def add_intervals(catalog: MemoryCoordinator, incarnation: str) -> None:
    record = IntervalMapRecord(computation=incarnation).SerializeToString()
    await catalog.transact((), [Put(chunk_key(IncarnationId(incarnation), 0), record)])


async def add_process(catalog: MemoryCoordinator, process: str, sequencer: int) -> None:
    record = InjectorRecord(stream=STREAM, process=process, sequencer=sequencer).SerializeToString()
    await catalog.transact((), [Put(injector_key(STREAM, process), record)])


async def refusal(served: Served | str, group: str, member: Member, sequencer: int = 1) -> RequestError:
    """The error of an acceptance that is refused."""
    keys = None if isinstance(member, str) else interval_to_wire(member)
    process = member if isinstance(member, str) else ""
    request = pb.AcceptSequencerRequest(group=group, keys=keys, process=process, sequencer=sequencer)
    async with open_channel(served if isinstance(served, str) else served.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await WatermarkServiceStub(channel).AcceptSequencer(request, timeout=patience(10))
    return from_rpc_error(caught.value)


@pytest.mark.guarantee("G13", section="7.2")
async def test_members_that_do_not_exist_make_no_groups(served: Served, catalog: Catalog) -> None:
    for number in range(20):
        for group, member in ((f"ghost.{number}", ALL_KEYS), (f"injector/ghost-{number}", "p")):
            error = await refusal(served, group, member)
            assert (error.code, error.reason) == (FailureCode.NOT_FOUND, "MEMBER_UNKNOWN")
            assert "ghost" in str(error)
            assert served.open_shard.explain(group) is None


@pytest.mark.guarantee("G13", section="5.2")
async def test_a_stream_gets_no_process_that_no_master_opened(served: Served, catalog: Catalog) -> None:
    await add_process(catalog, "p", 7)
    async with client(served) as injector:
        assert await injector.accept(INJECTOR, "p", 7) == MIN_TIMESTAMP
    assert "no injector process 'q'" in str(await refusal(served, INJECTOR, "q", 8))
    assert "never got sequencer 8: its last is 7" in str(await refusal(served, INJECTOR, "p", 8))
    explained = served.open_shard.explain(INJECTOR)
    assert explained is not None
    assert [row.member for row in explained.rows] == ["p"]


@pytest.mark.guarantee("G8", section="7.2")
async def test_a_topology_is_known_as_soon_as_its_record_is(served: Served, catalog: Catalog) -> None:
    assert (await refusal(served, GROUP, ALL_KEYS)).code is FailureCode.NOT_FOUND
    await add_intervals(catalog, GROUP)
    async with client(served) as owner:
        assert await owner.accept(GROUP, ALL_KEYS, 1) == MIN_TIMESTAMP
        catalog.away = True
        assert await owner.accept(GROUP, ALL_KEYS, 2) == MIN_TIMESTAMP, "what the shard has is not looked up again"


async def test_all_intervals_of_a_new_computation_share_a_look_up(served: Served, catalog: Catalog) -> None:
    await add_intervals(catalog, GROUP)
    keys = cut(*(bytes([at]) for at in range(1, 40)))
    async with client(served) as owner:
        await asyncio.gather(*(owner.accept(GROUP, one, number) for number, one in enumerate(keys, start=1)))
    assert catalog.lists < 10


async def test_look_ups_of_a_missing_incarnation_are_shared(served: Served, catalog: Catalog) -> None:
    async with asyncio.TaskGroup() as group:
        refused = [group.create_task(refusal(served, GROUP, one)) for one in cut(*(bytes([at]) for at in range(1, 20)))]
    assert {one.result().reason for one in refused} == {"MEMBER_UNKNOWN"}
    assert catalog.lists < 10


async def test_a_catalog_that_is_away_is_no_refusal(served: Served, catalog: Catalog) -> None:
    catalog.away = True
    assert (await refusal(served, GROUP, ALL_KEYS)).code is FailureCode.UNAVAILABLE
    assert served.open_shard.explain(GROUP) is None


@pytest.mark.guarantee("G4", section="7.2")
async def test_a_group_removed_during_the_look_up_stays_removed(served: Served, catalog: Catalog) -> None:
    await add_intervals(catalog, GROUP)
    async with client(served) as owner:
        accepting = asyncio.create_task(owner.accept(GROUP, ALL_KEYS, 1))
        await until(lambda: catalog.lists > 0)
        await served.open_shard.remove(GROUP)
        with pytest.raises(AcceptRefusedError, match="was removed"):
            await accepting
    assert served.open_shard.explain(GROUP) is None


def client(served: Served) -> WatermarkClient:
    return WatermarkClient(served.where, on_refused=lambda _: None)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A development server."""
    async with Server(tmp_path / "db", tmp_path / "server.log") as made:
        yield made


@pytest.mark.guarantee("G13", section="7.2")
async def test_a_server_asks_its_catalog(server: Server) -> None:
    error = await refusal(server.address, "injector/no.stream", "p")
    assert (error.code, error.reason) == (FailureCode.NOT_FOUND, "MEMBER_UNKNOWN")
