"""HandoverService over loopback gRPC: shorter journals, parts read ahead, and refusals (7.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.rpc.channel import open_channel
from millwheel.rpc.v1 import handover_pb2 as wire
from millwheel.rpc.v1 import handover_pb2_grpc
from millwheel.sdk.errors import PackageError
from millwheel.store.contract import Append, PartId
from millwheel.store.memory import MemoryStore
from millwheel.worker.interval.commits.divided import divide, joined
from millwheel.worker.messages import Deposed, FenceJournal, Opened, Parent, PrepareRelease, ReleasePrepared
from millwheel.worker.process import handover
from millwheel.worker.process.handover import HandoverService
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.opening import Opener, ReadAhead
from millwheel.worker.process.run_queue import RunQueue
from tests.patience import patience, until
from tests.serving import LoopbackServer
from tests.worker.doubles import ScriptedCore, ScriptedPeers
from tests.worker.test_worker import hosted, worker

JOURNAL = "c.1.j1"


async def retry(call: Callable[[], Awaitable[Any]]) -> Any:
    """The outcome of a call of the memory store is always known."""
    return await call()


async def no_code(computation: str) -> None:
    raise PackageError(f"there is no code of {computation}")


@asynccontextmanager
async def handing_over(
    store: MemoryStore,
    ahead: ReadAhead,
    host: CoreHost | None = None,
    load: Callable[[str], Awaitable[None]] = no_code,
) -> AsyncIterator[Any]:
    def find(journal: str, sequencer: int) -> CoreHost | None:
        return host if (journal, sequencer) == (JOURNAL, 5) else None

    service = HandoverService(find, store, ahead, load)
    add = partial(handover_pb2_grpc.add_HandoverServiceServicer_to_server, service)
    async with LoopbackServer(add) as address, open_channel(address) as channel:
        yield handover_pb2_grpc.HandoverServiceStub(channel)


def hosting(core: ScriptedCore) -> CoreHost:
    return CoreHost(JOURNAL, core, MemoryStore(), ScriptedPeers(), RunQueue(asyncio.get_running_loop()).share("t"))


class Counting(MemoryStore):
    """Counts the parts that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[PartId] = []

    async def read_parts(self, journal: str, parts: Any) -> list[bytes]:
        self.read += parts
        return await super().read_parts(journal, parts)


async def with_base() -> tuple[Counting, tuple[PartId, ...]]:
    """A store with a journal that is based on three parts, one of them an id segment, and has one entry above."""
    store = Counting()
    await store.create_journal(JOURNAL)
    await store.fence(JOURNAL, 5)
    names = ("meta", "segment/filter/x/1", "segment/ids/x/1")
    parts = tuple(PartId(name, 5, 0) for name in names)
    for part in parts:
        await store.write_part(JOURNAL, part, part.name.encode())
    await store.append(JOURNAL, Append(5, 1, 0, parts, b"entry"))
    return store, parts


@pytest.mark.paper(section="7.1")
async def test_the_owner_answers_when_its_journal_is_short() -> None:
    def react(event: Any) -> list[Any]:
        return [ReleasePrepared(event.request, 3, 90)] if type(event) is PrepareRelease else []

    async with handing_over(MemoryStore(), {}, hosting(ScriptedCore(react))) as stub:
        answer = await stub.PrepareRelease(
            wire.PrepareReleaseRequest(journal=JOURNAL, sequencer=5), timeout=patience(5)
        )
        assert (answer.entries, answer.commit) == (3, 90)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.PrepareRelease(wire.PrepareReleaseRequest(journal=JOURNAL, sequencer=4), timeout=patience(5))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_an_interval_lost_meanwhile_does_not_delay_the_master() -> None:
    host = hosting(ScriptedCore())
    async with handing_over(MemoryStore(), {}, host) as stub:
        call = asyncio.ensure_future(
            stub.PrepareRelease(wire.PrepareReleaseRequest(journal=JOURNAL, sequencer=5), timeout=patience(20))
        )
        await asyncio.sleep(0.05)
        host.post(Deposed("a successor holds it"))
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await asyncio.wait_for(call, patience(5))
        assert lost.value.code() is grpc.StatusCode.ABORTED
        assert await host.prepare_release() is None


@pytest.mark.paper(section="6.2")
async def test_what_is_read_ahead_is_not_read_again() -> None:
    store, parts = await with_base()
    ahead: ReadAhead = {}
    async with handing_over(store, ahead) as stub:
        request = wire.PrepareOpenRequest(incarnation=IncarnationId("c.1"), journals=[JOURNAL, "c.1.gone"])
        await stub.PrepareOpen(request, timeout=patience(5))
    assert store.read == list(parts[:2]), "an id segment is read when its filter hits"
    opened = await Opener(store, FenceJournal(JOURNAL, 6), retry, ahead).open()
    assert store.read == list(parts[:2])
    assert opened.parts == {parts[0]: b"meta", parts[1]: b"segment/filter/x/1", parts[2]: b""}
    assert opened.entries == [b"entry"]


@pytest.mark.guarantee("G13")
async def test_parts_read_ahead_are_forgotten_if_reading_breaks_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: such parts were kept for ever. Once there were enough of them, nothing was read ahead any more."""
    monkeypatch.setattr(handover, "KEPT_SECONDS", 0.05)
    store, parts = await with_base()
    monkeypatch.setattr(handover, "KEPT_BYTES", 2)
    ahead: ReadAhead = {}
    async with handing_over(store, ahead) as stub:
        request = wire.PrepareOpenRequest(incarnation=IncarnationId("c.1"), journals=[JOURNAL])
        await stub.PrepareOpen(request, timeout=patience(5))
        assert ahead == {(JOURNAL, parts[0]): b"meta"}
        await until(lambda: not ahead)


@pytest.mark.guarantee("G11", section="7.1")
async def test_openers_of_children_in_any_order_seal_and_create_once() -> None:
    store, parts = await with_base()
    parent = Parent(JOURNAL, ALL_KEYS)

    async def opened(journal: str, sequencer: int) -> Opened:
        return await Opener(store, FenceJournal(journal, sequencer, (parent,)), retry, {}).open()

    first, second, moved = await asyncio.gather(opened("c.1.j2", 7), opened("c.1.j3", 8), opened("c.1.j2", 9))
    for child in (first, second, moved):
        assert (child.head.commit, child.head.truncation_point, child.head.parts) == (1, 1, ())
        ((origin),) = child.parents
        assert origin.head.parts == parts
        assert origin.entries == [b"entry"]
    part = PartId("meta", 9, 2)
    await store.write_part("c.1.j2", part, b"own")
    await store.append("c.1.j2", Append(9, 2, 1, (part,), b"own entry"))
    await store.drop_journal(JOURNAL)
    later = await opened("c.1.j2", 10)
    assert not later.parents, "its own base is complete"
    assert later.entries == [b"own entry"]


@pytest.mark.guarantee("G11", section="7.1")
async def test_a_child_whose_head_names_no_base_reads_its_parents() -> None:
    """The head of such a child names parts, and these are of its entry."""
    store, _ = await with_base()
    parent = Parent(JOURNAL, ALL_KEYS)
    await Opener(store, FenceJournal("c.1.j2", 7, (parent,)), retry, {}).open()
    small, parts = divide(b"a large entry", 7, 2, 5)
    for part, blob in parts.items():
        await store.write_part("c.1.j2", part, blob)
    await store.append("c.1.j2", Append(7, 2, 1, tuple(parts), small))
    opened = await Opener(store, FenceJournal("c.1.j2", 8, (parent,)), retry, {}).open()
    assert [one.parent for one in opened.parents] == [parent]
    assert joined(opened.entries[0], 2, opened.parts, "here") == b"a large entry"


@pytest.mark.parametrize(("asked", "ago"), [(True, 0), (False, 0), (True, 21)])
async def test_a_move_that_was_asked_for_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, asked: bool, ago: int
) -> None:
    """Regression: each move by the balancer made the log warn of an interval that was "lost".

    One that is lost long after a move was given up is lost.
    """
    caplog.set_level("INFO", "millwheel.worker")
    one = worker(tmp_path)
    hosted(one, "c.1.j1", 4)
    host = one.hosts.hosted["c.1.j1"].host
    if asked:
        asking = asyncio.ensure_future(host.prepare_release())
        await asyncio.sleep(0)
        asking.cancel()
    host.handed_over_at -= ago
    moves = asked and not ago
    one.ownership.lost(host, "journal c.1.j1 is held by sequencer 5 at commit 9")
    (record,) = [one for one in caplog.records if "held by sequencer 5" in one.getMessage()]
    assert record.levelname == ("INFO" if moves else "WARNING")
    assert ("handed over" in record.getMessage()) is moves
    await one.ownership.drop_all()
