"""What a cluster settles when it starts for the first time, and which versions may take part in it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from millwheel.config import ClusterSection, Configuration, load
from millwheel.coordination.contract import Put
from millwheel.embedded.database import EmbeddedDatabase
from millwheel.model.catalog_keys import CLUSTER_SETTINGS, worker_key
from millwheel.model.formats import NEWEST_FORMAT, OLDEST_FORMAT
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1.catalog_pb2 import ClusterSettingsRecord
from millwheel.server import cluster_settings
from millwheel.server.backends import Backends, Notify
from millwheel.server.cluster_settings import ensure_cluster_settings, until_unknown_format
from millwheel.server.daemon import run_daemon
from millwheel.server.worker import WORKER
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator
from tests.daemons.process import DaemonProcess
from tests.daemons.test_processes import embedded
from tests.patience import patience, until

NEWER = NEWEST_FORMAT + 1
UNKNOWN_FIELD = b"\xba\x06\x03new"
"""Field 103, of three bytes."""


async def stored(coordinator: MemoryCoordinator) -> ClusterSettingsRecord:
    entry = await coordinator.get(CLUSTER_SETTINGS)
    assert entry is not None
    return ClusterSettingsRecord.FromString(entry.value)


async def store(coordinator: MemoryCoordinator, settings_format: int, more: bytes = b"") -> None:
    record = ClusterSettingsRecord(authority_shards=2, format=settings_format)
    await coordinator.transact([], [Put(CLUSTER_SETTINGS, record.SerializeToString() + more)])


async def test_the_shard_count_stays_and_other_settings_are_refused() -> None:
    coordinator = MemoryCoordinator()
    assert await ensure_cluster_settings(coordinator, ClusterSection(authority_shards=3)) == 3
    assert await ensure_cluster_settings(coordinator, ClusterSection(authority_shards=3)) == 3
    with pytest.raises(
        RequestError, match=r"cluster.authority_shards is 4, but this cluster was made with 3"
    ) as failure:
        await ensure_cluster_settings(coordinator, ClusterSection(authority_shards=4))
    assert failure.value.code is FailureCode.FAILED_PRECONDITION
    assert "set cluster.authority_shards = 3" in failure.value.remedy
    await coordinator.close()


async def test_a_new_cluster_has_the_newest_format() -> None:
    coordinator = MemoryCoordinator()
    await ensure_cluster_settings(coordinator, ClusterSection())
    assert (await stored(coordinator)).format == NEWEST_FORMAT
    await coordinator.close()


@pytest.mark.parametrize(
    ("settings_format", "reason"), [(NEWER, "CLUSTER_TOO_NEW"), (OLDEST_FORMAT - 1, "CLUSTER_TOO_OLD")]
)
async def test_a_cluster_of_a_format_that_is_unknown_is_refused(settings_format: int, reason: str) -> None:
    coordinator = MemoryCoordinator()
    await store(coordinator, settings_format)
    with pytest.raises(RequestError, match=f"this cluster is at format {settings_format}") as failure:
        await ensure_cluster_settings(coordinator, ClusterSection())
    assert failure.value.code is FailureCode.FAILED_PRECONDITION
    assert failure.value.reason == reason
    assert (await stored(coordinator)).format == settings_format
    await coordinator.close()


async def test_a_setting_raises_the_format_and_lowers_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test writes what a version with a newer format would write.

    Fields that a still newer version has stored stay.
    """
    coordinator = MemoryCoordinator()
    await store(coordinator, NEWEST_FORMAT, UNKNOWN_FIELD)
    monkeypatch.setattr(cluster_settings, "NEWEST_FORMAT", NEWER)
    await ensure_cluster_settings(coordinator, ClusterSection())
    assert (await stored(coordinator)).format == NEWEST_FORMAT
    await asyncio.gather(*(ensure_cluster_settings(coordinator, ClusterSection(format=NEWER)) for _ in range(3)))
    assert (await stored(coordinator)).format == NEWER
    await ensure_cluster_settings(coordinator, ClusterSection(format=NEWEST_FORMAT))
    assert (await stored(coordinator)).format == NEWER
    assert UNKNOWN_FIELD in (await stored(coordinator)).SerializeToString()
    await coordinator.close()


async def test_following_ends_when_the_format_leaves_it_behind() -> None:
    coordinator = MemoryCoordinator()
    await store(coordinator, NEWEST_FORMAT)
    following = asyncio.ensure_future(until_unknown_format(coordinator))
    await store(coordinator, NEWEST_FORMAT, UNKNOWN_FIELD)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not following.done()
    await store(coordinator, NEWER)
    with pytest.raises(RequestError, match=f"this cluster is at format {NEWER}"):
        await asyncio.wait_for(following, patience(10))
    await coordinator.close()


async def test_a_daemon_of_a_too_new_cluster_ends_with_code_six(tmp_path: Path) -> None:
    async with await EmbeddedDatabase.open(tmp_path / "db") as database:
        record = ClusterSettingsRecord(authority_shards=2, format=NEWER)
        await database.coordinator.transact([], [Put(CLUSTER_SETTINGS, record.SerializeToString())])
    async with DaemonProcess("master", tmp_path / "log", embedded(tmp_path)) as master:
        assert await master.ended() == 6
    assert f"this cluster is at format {NEWER}" in (tmp_path / "log").read_text()


async def test_a_serving_daemon_ends_when_the_format_leaves_it_behind(tmp_path: Path) -> None:
    coordinator, stop = MemoryCoordinator(), asyncio.Event()

    async def backends(configuration: Configuration, tell: Notify) -> Backends:
        return Backends(MemoryStore(), coordinator, AsyncExitStack())

    flags = {"coordinator.kind": "embedded", "coordinator.path": "-", "store.kind": "embedded", "store.path": "-"}
    flags |= {"rpc.listen": "127.0.0.1:0", "metrics.listen": "off", "worker.id": "w"}
    configuration = load(None, {}, {**flags, "worker.packages": str(tmp_path)})
    daemon = asyncio.create_task(run_daemon(WORKER, configuration, stop, open_with=backends))
    await until(lambda: coordinator.get(worker_key("w.0")))
    await store(coordinator, NEWER)
    with pytest.raises(RequestError, match=f"this cluster is at format {NEWER}"):
        await asyncio.wait_for(daemon, patience(20))
    assert await coordinator.get(worker_key("w.0")) is None
