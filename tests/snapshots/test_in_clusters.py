"""Snapshots in a cluster of daemons: bases on the way, intervals that move, and a restore where the original was."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millwheel.client.control import ControlClient
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import interval_pb2
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.server import worker
from millwheel.snapshots import creating
from millwheel.snapshots.claims import Claim
from millwheel.snapshots.copying import copy_rows
from millwheel.snapshots.cut import Positions
from millwheel.snapshots.location import MANIFEST, SnapshotLocation
from millwheel.snapshots.manifest import SNAPSHOT_FORMAT, encode_manifest, read_manifest
from millwheel.snapshots.owners import WorkerOwners
from millwheel.snapshots.verifying import verify_snapshot
from millwheel.worker.interval import IntervalSettings
from tests.daemons.together import Together, together
from tests.patience import patience, until
from tests.snapshots import shop
from tests.snapshots.loading import STEP, accounts, expected, expected_accounts, sell, totals
from tests.submitting import submit_copy

ORDERS = 2_000


@pytest.fixture
def short_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bases are due after a few commits. So truncation points move all the time, unless they are pinned."""
    monkeypatch.setattr(worker, "CoreSettings", partial(IntervalSettings, checkpoint_entries=16, flush_interval=1))


def flags_for(place: Path) -> dict[str, str]:
    """The masters may keep snapshots in a folder of the test."""
    return {"master.snapshot_locations": str(place / "backups")}


async def move_often(cluster: Together, until_set: asyncio.Event) -> None:
    """Move intervals from one worker to the other."""
    async with ControlClient(cluster.address, patience=patience(10)) as client:
        while not until_set.is_set():
            for status in await client.list_intervals("shop"):
                await client.move_interval(interval_pb2.IntervalName(journal=status.interval.journal))
                await asyncio.sleep(0.15)


@pytest.mark.guarantee("G12", section="6.1.2")
async def test_a_journal_that_was_truncated_meanwhile_fails_it(
    tmp_path: Path, short_journals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new owner does not know of the pin. Its truncation point moves, and rows that were read may be too old."""

    async def pinned_by_nobody(owners: WorkerOwners) -> Positions:
        return {one: wire.JournalPosition(journal=one, held=True) for one in owners.sequencers}

    async def copy_slowly(*arguments: Any) -> wire.SnapshotRows:
        rows = await copy_rows(*arguments)
        await asyncio.sleep(0.3)
        return rows

    monkeypatch.setattr(WorkerOwners, "pin", pinned_by_nobody)
    monkeypatch.setattr(creating, "copy_rows", copy_slowly)
    monkeypatch.setattr(creating, "MAX_ATTEMPTS", 3)
    async with together(tmp_path, flags_for(tmp_path)) as cluster:
        await submit_copy(cluster.address, shop.__file__, "shop", tmp_path)
        selling = asyncio.create_task(sell(cluster.address, 0, 100_000, lambda count: None))
        async with ControlClient(cluster.address, deadline=patience(60)) as client:
            with pytest.raises(RequestError, match="was truncated while its states were read") as failed:
                await client.create_snapshot("shop", str(tmp_path / "backups"))
            assert failed.value.reason == "SNAPSHOT_FAILED"
            assert await SnapshotLocation(str(tmp_path / "backups")).names() == []
        selling.cancel()
        await asyncio.gather(selling, return_exceptions=True)


async def test_a_paused_topology_has_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, half = str(tmp_path / "backups"), ORDERS // 2
    async with together(tmp_path, flags_for(tmp_path)) as cluster:
        await submit_copy(cluster.address, shop.__file__, "shop", tmp_path)
        sent: list[int] = []
        selling = asyncio.create_task(sell(cluster.address, 0, ORDERS, sent.append))
        await until(lambda: sent and sent[-1] >= half, patience(60))
        async with ControlClient(cluster.address, deadline=patience(60)) as client:
            await client.pause("shop")
            taken, joined = await asyncio.gather(
                *(client.create_snapshot("shop", place, "s", request_id="r") for _ in range(2))
            )
            assert taken.attempts == 1
            assert joined == taken
            again = await client.create_snapshot("shop", place, "s", request_id="r")
            assert (again.manifest, again.attempts) == (taken.manifest, 0), "a late retry takes no second one"
            with pytest.raises(RequestError, match="it exists already"):
                await client.create_snapshot("shop", place, "s")
            late = tmp_path / "backups" / "late" / MANIFEST

            def overtaken(claim: Claim) -> None:
                """Another snapshot is complete before this one writes its manifest."""
                late.parent.mkdir()
                late.write_bytes(encode_manifest(wire.SnapshotManifest(format=SNAPSHOT_FORMAT, taken_at_us=7)))

            monkeypatch.setattr(Claim, "check", overtaken)
            with pytest.raises(RequestError, match="it exists already"):
                await client.create_snapshot("shop", place, "late")
            assert (await read_manifest(SnapshotLocation(place).folder("late"))).taken_at_us == 7, "it is left alone"
            selling.cancel()
            await asyncio.gather(selling, return_exceptions=True)
            await client.cancel("shop")
            await client.restore_snapshot(place, "s")
        await sell(cluster.address, half - STEP, ORDERS, lambda count: None)
        assert Counter(await totals(cluster.address, "all")) == expected(ORDERS)


async def test_what_has_no_snapshot_is_refused_with_the_reason(tmp_path: Path) -> None:
    place = str(tmp_path / "backups")

    async def reason(client: ControlClient, topology: str) -> str:
        with pytest.raises(RequestError) as refused:
            await client.create_snapshot(topology, place)
        return refused.value.message

    async with together(tmp_path, flags_for(tmp_path)) as cluster:
        await submit_copy(cluster.address, shop.__file__, "weak", tmp_path)
        async with ControlClient(cluster.address, deadline=patience(60), patience=patience(5)) as client:
            assert "no topology 'other'" in await reason(client, "other")
            assert "computation 'windows' has weak productions" in await reason(client, "weak")
            await client.cancel("weak")
            assert "it is cancelled" in await reason(client, "weak")
            with pytest.raises(RequestError, match="no name of a snapshot"):
                await client.restore_snapshot(place, "../x")
            with pytest.raises(RequestError, match="not found"):
                await client.restore_snapshot(place, "x")


@pytest.mark.guarantee("G1", section="6.1")
@pytest.mark.timeout(240)
async def test_a_snapshot_replaces_the_topology_it_came_from(tmp_path: Path, short_journals: None) -> None:
    flags = {**flags_for(tmp_path), "master.intervals_per_computation": "3", "master.balance": "false"}
    sent, settled = [0], asyncio.Event()
    place = str(tmp_path / "backups")
    async with together(tmp_path, flags) as cluster:
        await submit_copy(cluster.address, shop.__file__, "shop", tmp_path)
        selling = asyncio.create_task(sell(cluster.address, 0, ORDERS, lambda n: sent.__setitem__(0, n), 0.01))
        moving = asyncio.create_task(move_often(cluster, settled))
        await until(lambda: sent[0] > ORDERS // 3, patience(60))
        checkpoint = sent[0] // STEP * STEP
        async with ControlClient(cluster.address, deadline=patience(60)) as client:
            taken = await client.create_snapshot("shop", place, "s")
            settled.set()
            assert any(journal.truncation_point for journal in taken.manifest.journals), "bases are in it"
            await asyncio.gather(moving, selling)
            found = await verify_snapshot(SnapshotLocation(place).folder("s"))
            assert found.parts > 0
            print(f"{checkpoint=} {taken.stall_us=} {taken.attempts=} {found.parts=} {found.entries=} {found.rows=}")
            with pytest.raises(RequestError) as refused:
                await client.restore_snapshot(place, "s")
            assert (refused.value.code, refused.value.reason) == (FailureCode.ALREADY_EXISTS, "NAME_TAKEN")
            assert Counter(await totals(cluster.address, "all")) == expected(ORDERS)
            await client.cancel("shop")
            restored = await client.restore_snapshot(place, "s", paused=True)
            assert restored.topology.incarnations != taken.manifest.topology.incarnations
            await client.resume("shop")
        await sell(cluster.address, checkpoint, ORDERS, lambda count: None)
        assert Counter(await totals(cluster.address, "all")) == expected(ORDERS)
        found_accounts = await accounts(cluster.address)
        assert len(found_accounts) == 2
        assert set(found_accounts) == expected_accounts(ORDERS)
