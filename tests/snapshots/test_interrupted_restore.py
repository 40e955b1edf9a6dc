"""A master that dies during a restore leaves nothing in the store, and a retried call restores once (6.2; G1).

The master's calls to the store and the coordinator are numbered. It dies at one of them: before or after the call has
taken effect, and from then on no call of it has an effect or an answer.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import Mock

import pytest

from millwheel.client.control import ControlClient
from millwheel.config import ClusterSection
from millwheel.coordination.contract import CoordinatorUnavailableError
from millwheel.master.messages import CancelTopology
from millwheel.master.replica import MasterReplica
from millwheel.model import catalog_keys as keys
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.server.cluster_settings import ensure_cluster_settings
from millwheel.snapshots import creating
from millwheel.snapshots.allowed import ANYWHERE
from millwheel.snapshots.joined_calls import JoinedCalls
from millwheel.snapshots.location import SnapshotFolder, SnapshotLocation
from millwheel.snapshots.restoring import restore_snapshot
from millwheel.snapshots.service import SnapshotServicer
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator
from tests.daemons.together import together
from tests.master.replica import authority
from tests.patience import patience, until
from tests.snapshots import shop
from tests.snapshots.loading import sell
from tests.submitting import submit_copy

STEPS: Final = frozenset(
    ("transact", "create_journal", "fence", "append", "write_part", "write_states", "delete_entries", "delete_parts")
)


class Life:
    """What a master may still do: ``calls`` more calls that change something."""

    def __init__(self, calls: int, effect: bool) -> None:
        """``effect``: whether the call at which it dies takes effect."""
        self.calls = calls
        self.effect = effect
        self.died = asyncio.Event()
        self._buried: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def call(self, name: str, real: Callable[..., Awaitable[Any]], *arguments: Any, **named: Any) -> Any:
        """Make a call, or die at it."""
        if self.died.is_set():
            return await asyncio.shield(self._buried)
        if name in STEPS:
            self.calls -= 1
            if self.calls < 0:
                if self.effect:
                    await real(*arguments, **named)
                self.died.set()
                return await asyncio.shield(self._buried)
        return await real(*arguments, **named)

    async def watch(self, real: Callable[..., AsyncIterator[Any]], *arguments: Any) -> AsyncIterator[Any]:
        """Follow the coordinator while it lives."""
        async for one in real(*arguments):
            if self.died.is_set():
                await asyncio.shield(self._buried)
            yield one

    def bury(self) -> None:
        """All calls that wait end, and all later ones fail."""
        self.died.set()
        self._buried.set_exception(CoordinatorUnavailableError("dead"))
        self._buried.exception()


class Mortal:
    """A store or a coordinator, as a master with such a life uses it."""

    def __init__(self, real: Any, life: Life) -> None:
        self._real = real
        self._life = life

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name == "watch":
            return partial(self._life.watch, real)
        return partial(self._life.call, name, real) if inspect.iscoroutinefunction(real) else real


@asynccontextmanager
async def leading(coordinator: Any, store: Any, name: str, life: Life | None = None) -> AsyncIterator[MasterReplica]:
    """A master that leads. With a ``life`` it may die, and then its lease ends only by the test."""
    if life is not None:
        coordinator, store = Mortal(coordinator, life), Mortal(store, life)
    master = MasterReplica(coordinator, store, name, ttl=60)
    running = asyncio.create_task(master.run())
    await master.leading()
    try:
        yield master
    finally:
        if life is not None:
            life.bury()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def names(store: MemoryStore) -> set[str]:
    """What the store has, apart from what each cluster has: the counter and the code packages."""
    return (store.journals.keys() | store.states.keys()) - {"cluster.drawn", "packages"}


@pytest.fixture
async def taken(tmp_path: Path) -> SnapshotFolder:
    """A snapshot of a topology with states, timers and a log."""
    place = str(tmp_path / "backups")
    flags = {"master.snapshot_locations": place, "master.intervals_per_computation": "1", "master.balance": "false"}
    async with together(tmp_path, flags) as cluster:
        await submit_copy(cluster.address, shop.__file__, "shop", tmp_path)
        await sell(cluster.address, 0, 60, lambda count: None)
        async with ControlClient(cluster.address, deadline=patience(60)) as client:
            await client.create_snapshot("shop", place, "s")
    return SnapshotLocation(place).folder("s")


@pytest.mark.guarantee("G1", section="6.2")
@pytest.mark.timeout(300)
async def test_a_master_may_die_at_each_step_of_a_restore(taken: SnapshotFolder) -> None:
    coordinator, store = MemoryCoordinator(), MemoryStore()
    outcomes: list[bool] = []
    await ensure_cluster_settings(coordinator, ClusterSection(authority_shards=1))
    async with authority(coordinator):
        for step in range(1_000):
            life = Life(step // 2, effect=step % 2 == 1)
            if not await _dies_during(life, coordinator, store, taken, f"r{step}", outcomes):
                break
        else:
            pytest.fail("the restore never ends")
    assert outcomes.count(True) > 0, "it dies after the last transaction, too"
    assert outcomes.count(False) > 20, "it dies at each call"
    await coordinator.close()


async def _dies_during(
    life: Life, coordinator: MemoryCoordinator, store: MemoryStore, folder: SnapshotFolder, ident: str, made: list[bool]
) -> bool:
    """Restore, die, and look what a successor makes of it. Returns whether the master died before its answer."""
    calls, life.calls = life.calls, 1_000_000
    async with leading(coordinator, store, f"dying-{ident}", life) as master:
        life.calls = calls
        restoring = asyncio.create_task(restore_snapshot(master, folder, True, ident))
        died = asyncio.create_task(life.died.wait())
        await asyncio.wait({restoring, died}, return_when=asyncio.FIRST_COMPLETED, timeout=patience(20))
        dead = not restoring.done()
        if not dead:
            restoring.result()
            assert not (await master.term()).catalog.restores
        life.died.set()
        await coordinator.transact((), (), (keys.LEADERSHIP,))
        async with leading(coordinator, store, f"next-{ident}") as successor:
            await _check(successor, store, folder, ident, made)
            await _clear(successor, store, ident)
        died.cancel()
    restoring.cancel()
    with suppress(asyncio.CancelledError, RequestError, CoordinatorUnavailableError):
        await restoring
    return dead


async def _check(
    successor: MasterReplica, store: MemoryStore, folder: SnapshotFolder, ident: str, made: list[bool]
) -> None:
    """The successor has the whole topology, or nothing of it. A retried call has one topology in each case."""
    known = (await successor.term()).catalog
    await until(lambda: not known.restores, patience(20), every=0.01)
    before = known.topologies.get("shop")
    exists = before is not None and before.state == catalog.TOPOLOGY_STATE_PAUSED
    made.append(exists)
    if not exists:
        assert not names(store), "nothing is left"
    record = await restore_snapshot(successor, folder, True, ident)
    if exists:
        assert record == before, "the retry restores nothing"
    here = {*record.incarnations.values(), *(log.incarnation for log in known.logs.values())}
    journals = {one.journal for incarnation in here for one in known.maps[incarnation]}
    assert journals == store.journals.keys() - {"cluster.drawn", "packages"}
    assert store.states.keys() - {"packages"} <= here


async def _clear(successor: MasterReplica, store: MemoryStore, ident: str) -> None:
    """End the topology, for the next step."""
    await successor.ask(CancelTopology("shop", ident))
    await until(lambda: not names(store), patience(20), every=0.01)


async def test_calls_with_one_id_share_the_work() -> None:
    begun, gate, cancelled = [0], asyncio.Event(), [0]

    async def work() -> int:
        begun[0] += 1
        try:
            await gate.wait()
        except asyncio.CancelledError:
            cancelled[0] += 1
            raise
        return begun[0]

    calls: JoinedCalls[int] = JoinedCalls()
    first, second, other = (asyncio.create_task(calls.call(ident, work)) for ident in ("a", "a", ""))
    await until(lambda: begun == [2], patience(5), every=0.001)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert cancelled == [0], "the second call still waits"
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert cancelled == [1]
    again = asyncio.create_task(calls.call("a", work))
    await until(lambda: begun == [3], patience(5), every=0.001)
    gate.set()
    assert (await again, await other) == (3, 3)


async def test_another_request_with_an_id_is_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, begun = asyncio.Event(), list[str]()
    servicer = SnapshotServicer(cast("Any", None), ANYWHERE)

    async def create(*arguments: Any) -> wire.CreateSnapshotResponse:
        request = arguments[-1]
        begun.append(request.topology)
        await gate.wait()
        return wire.CreateSnapshotResponse(manifest=wire.SnapshotManifest(name=request.topology))

    monkeypatch.setattr(creating, "create_snapshot", create)
    calls = [
        asyncio.create_task(servicer.CreateSnapshot(request, Mock()))
        for one in ("shop", "shop", "bank")
        for request in [wire.CreateSnapshotRequest(topology=one, location=str(tmp_path), request_id="r")]
    ]
    await until(lambda: len(begun) >= 2, patience(5), every=0.001)
    gate.set()
    assert [one.manifest.name for one in await asyncio.gather(*calls)] == ["shop", "shop", "bank"]
    assert begun == ["shop", "bank"]
