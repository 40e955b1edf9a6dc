"""A snapshot of a topology that is updated meanwhile, while the catalog of the master is behind (G1, G6)."""

from __future__ import annotations

from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millwheel.coordination.contract import Put
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import CLUSTER_SETTINGS, topology_key
from millwheel.model.formats import COLUMNS, NEWEST_FORMAT, OLDEST_FORMAT, POSITION_RANGES
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots import creating
from millwheel.snapshots.location import MANIFEST, SnapshotLocation
from millwheel.snapshots.manifest import SNAPSHOT_FORMAT, encode_manifest, read_manifest
from millwheel.snapshots.restoring import refuse_older_cluster
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator, read_catalog


async def create(coordinator: MemoryCoordinator, known: Any, folder: Path) -> wire.CreateSnapshotResponse:
    """Take a snapshot by the catalog ``known``. The topology has no computation, so no owner is asked."""

    async def term() -> Any:
        return SimpleNamespace(catalog=known)

    async def packages() -> Any:
        return None

    replica = SimpleNamespace(
        term=term,
        packages=packages,
        coordinator=coordinator,
        store=MemoryStore(),
        observer=SimpleNamespace(channel=None),
    )
    place = SnapshotLocation(str(folder)).folder("s")
    return await creating.create_snapshot(
        cast("Any", replica), "1", place, wire.CreateSnapshotRequest(topology="t", name="s")
    )


@pytest.mark.parametrize("number", [OLDEST_FORMAT, NEWEST_FORMAT])
async def test_a_snapshot_has_the_format_of_its_cluster(tmp_path: Path, number: int) -> None:
    """A version that the cluster may go back to reads it."""
    coordinator = MemoryCoordinator()
    record = catalog.TopologyRecord(state=catalog.TOPOLOGY_STATE_RUNNING, version=1)
    record.spec.name = "t"
    settings = catalog.ClusterSettingsRecord(authority_shards=1, format=number)
    await coordinator.transact(
        (), (Put(topology_key("t"), record.SerializeToString()), Put(CLUSTER_SETTINGS, settings.SerializeToString()))
    )
    taken = await create(coordinator, await read_catalog(coordinator), tmp_path / "a")
    assert taken.manifest.cluster_format == number


@pytest.mark.guarantee("G12", section="6.2")
async def test_a_snapshot_has_the_format_that_has_risen(tmp_path: Path) -> None:
    """Owners may have written newer entries before the cut, which this master's catalog does not know yet."""
    coordinator = MemoryCoordinator()
    record = catalog.TopologyRecord(state=catalog.TOPOLOGY_STATE_RUNNING, version=1)
    record.spec.name = "t"
    settings = catalog.ClusterSettingsRecord(authority_shards=1, format=COLUMNS)
    before = Put(topology_key("t"), record.SerializeToString()), Put(CLUSTER_SETTINGS, settings.SerializeToString())
    await coordinator.transact((), before)
    known = await read_catalog(coordinator)
    settings.format = POSITION_RANGES
    await coordinator.transact((), (Put(CLUSTER_SETTINGS, settings.SerializeToString()),))
    assert (await create(coordinator, known, tmp_path / "a")).manifest.cluster_format == POSITION_RANGES


@pytest.mark.guarantee("G12", section="6.2")
@pytest.mark.parametrize(
    ("taken", "number", "refused"),
    [
        (COLUMNS, COLUMNS - 1, True),
        (COLUMNS, COLUMNS, False),
        (COLUMNS - 1, 1, False),
        (POSITION_RANGES, COLUMNS, True),
    ],
)
def test_an_older_cluster_gets_no_newer_entries(taken: int, number: int, refused: bool) -> None:
    """Its workers of an earlier version could not read them."""
    known = Catalog()
    known.format = number
    manifest = wire.SnapshotManifest(cluster_format=taken)
    if not refused:
        refuse_older_cluster(known, manifest)
        return
    with pytest.raises(RequestError, match=f"--cluster-format {taken}") as error:
        refuse_older_cluster(known, manifest)
    assert error.value.reason == "FORMAT_TOO_OLD"


async def test_a_snapshot_that_was_written_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: it was replaced if it came while this one's manifest was made, which takes 50 ms for 1 GiB.

    A thread makes it: the event loop has other work.
    """
    coordinator = MemoryCoordinator()
    record = catalog.TopologyRecord(state=catalog.TOPOLOGY_STATE_RUNNING, version=1)
    record.spec.name = "t"
    await coordinator.transact((), (Put(topology_key("t"), record.SerializeToString()),))
    other = wire.SnapshotManifest(format=SNAPSHOT_FORMAT, name="s", taken_at_us=7)
    threads: list[int] = []

    def overtaken(manifest: wire.SnapshotManifest) -> bytes:
        threads.append(get_ident())
        (tmp_path / "s").mkdir()
        (tmp_path / "s" / MANIFEST).write_bytes(encode_manifest(other))
        return encode_manifest(manifest)

    monkeypatch.setattr(creating, "encode_manifest", overtaken)
    with pytest.raises(RequestError, match="it exists already"):
        await create(coordinator, await read_catalog(coordinator), tmp_path)
    assert await read_manifest(SnapshotLocation(str(tmp_path)).folder("s")) == other
    assert len(threads) == 1
    assert get_ident() not in threads


@pytest.mark.guarantee("G1", section="6.1")
async def test_an_update_that_the_master_has_not_seen_fails_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that knows the update sends nothing to what it removes. The snapshot would have that, without it."""
    monkeypatch.setattr(creating, "MAX_ATTEMPTS", 1)
    coordinator = MemoryCoordinator()
    record = catalog.TopologyRecord(state=catalog.TOPOLOGY_STATE_RUNNING, version=1)
    record.spec.name = "t"
    await coordinator.transact((), (Put(topology_key("t"), record.SerializeToString()),))
    known = await read_catalog(coordinator)
    taken = await create(coordinator, known, tmp_path / "a")
    assert (await read_manifest(SnapshotLocation(str(tmp_path / "a")).folder("s"))) == taken.manifest
    record.version = 2
    await coordinator.transact((), (Put(topology_key("t"), record.SerializeToString()),))
    with pytest.raises(RequestError, match="was changed meanwhile"):
        await create(coordinator, known, tmp_path / "b")
