"""The states in a snapshot are those that the running topology had, without a cluster or code (4.4, 6.2)."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import msgspec
import pyarrow.parquet as pq

import millwheel as mw
from millwheel.client.arrow import read_state
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.model.incarnation import name_of_incarnation
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.envelopes import envelope
from millwheel.server import dev_server
from millwheel.server.dev_server import DevServer, DevSettings, running
from millwheel.snapshots.location import SnapshotLocation
from millwheel.snapshots.manifest import read_manifest
from millwheel.snapshots.states import StateForm
from millwheel.snapshots.tables import read_snapshot_state, write_snapshot_state
from millwheel.worker.interval import IntervalSettings
from tests.snapshots import ledger
from tests.snapshots.ledger import Sale
from tests.submitting import submit_copy
from tests.system.server import run_cli

START = 1_700_000_000_000_000
COMPUTATIONS = ("sums", "keep", "remind")


async def sell(server: DevServer, first: int, last: int, together: int) -> None:
    """Sell in 60 shops, some of them twice. ``together``: how many sales are committed at a time, about."""
    async with Injector("ledger/sales", address=server.address, process="p", topology=ledger.ledger) as injector:
        for begin in range(first, last, together):
            numbers = range(begin, min(begin + together, last))
            sales = [Sale(f"{'xyz'[number % 3]}-{number % 60:02}", number) for number in numbers]
            stamps = [START + number * mw.minutes(1) for number in numbers]
            await injector.send_many(sales, stamps, positions=numbers)
            await injector.flush()
        await injector.advance(mw.Timestamp(START + (last - 30) * mw.minutes(1)))


async def of_cluster(server: DevServer) -> dict[str, list[dict[str, Any]]]:
    read = {one: asyncio.to_thread(read_state, f"ledger/{one}", address=server.address) for one in COMPUTATIONS}
    return {one: (await found).to_pylist() for one, found in read.items()}


async def of_snapshot(place: Path, name: str) -> dict[str, list[dict[str, Any]]]:
    read = {one: asyncio.to_thread(read_snapshot_state, str(place), name, f"ledger/{one}") for one in COMPUTATIONS}
    return {one: (await found).to_pylist() for one, found in read.items()}


async def take(server: DevServer, place: Path, name: str) -> None:
    async with ControlClient(server.address) as client:
        await client.create_snapshot("ledger", str(place), name)


async def settled(server: DevServer) -> dict[str, list[dict[str, Any]]]:
    """What the cluster shows when nothing changes any more: windows that are complete go."""
    before = await of_cluster(server)
    while True:
        await asyncio.sleep(0.5)
        if (after := await of_cluster(server)) == before:
            return after
        before = after


@pytest.mark.guarantee("G12", section="6.2")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("columns", [False, True], ids=["hooks", "columns"])
async def test_a_snapshot_has_the_states_of_its_moment(
    tmp_path: Path, columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First from entries alone, and then from rows and bases, too."""
    place, settings = tmp_path / "backups", DevSettings(tmp_path / "db", port=0, intervals=3, columns=columns)
    async with running(settings) as server:
        await submit_copy(server.address, ledger.__file__, "ledger", tmp_path)
        await sell(server, 0, 100, together=100)
        first = await settled(server)
        await take(server, place, "first")
    monkeypatch.setattr(dev_server, "IntervalSettings", partial(IntervalSettings, checkpoint_entries=8))
    async with running(settings) as server:
        await sell(server, 100, 250, together=5)
        await sell(server, 250, 400, together=150)
        second = await settled(server)
        await take(server, place, "second")
        await sell(server, 400, 420, together=20)
    journals = (await read_manifest(SnapshotLocation(str(place)).folder("second"))).journals
    based = {name_of_incarnation(one.incarnation) for one in journals if one.truncation_point}
    assert based >= {*COMPUTATIONS}, "bases and rows are needed"
    assert await of_snapshot(place, "first") == first
    found = await of_snapshot(place, "second")
    assert found == second
    assert found["sums"] != first["sums"]
    assert all(row["state"] is None for row in found["remind"])
    assert {len(row["timers"]) for row in found["remind"]} == {2}


@pytest.mark.timeout(240)
async def test_states_of_a_snapshot_are_written_to_parquet(tmp_path: Path) -> None:
    place, file = tmp_path / "backups", tmp_path / "states.parquet"
    async with running(DevSettings(tmp_path / "db", port=0)) as server:
        await submit_copy(server.address, ledger.__file__, "ledger", tmp_path)
        await sell(server, 0, 20, together=20)
        await take(server, place, "s")
    done = await run_cli("", "snapshot", "states", str(place), "s", "ledger/keep", "--to", str(file))
    assert (done.code, done.err) == (0, "")
    assert f"{file} has the states of ledger/keep in snapshot s: 20 keys" in done.out
    rows = pq.read_table(file).to_pylist()
    assert rows == await asyncio.to_thread(lambda: read_snapshot_state(str(place), "s", "keep").to_pylist())
    assert [row["key"] for row in rows] == sorted(f"{'xyz'[number % 3]}-{number:02}" for number in range(20))
    done = await run_cli("", "snapshot", "states", str(place), "s", "ledger/kept", "--to", str(file))
    assert done.code != 0
    assert "it has no computation 'ledger/kept'" in done.err
    assert "topology 'ledger' has keep, remind, sums" in done.err


def test_a_damaged_snapshot_leaves_the_former_file(tmp_path: Path) -> None:
    place, file = tmp_path / "backups", tmp_path / "states.parquet"

    async def make() -> None:
        async with running(DevSettings(tmp_path / "db", port=0)) as server:
            await submit_copy(server.address, ledger.__file__, "ledger", tmp_path)
            await sell(server, 0, 20, together=20)
            await take(server, place, "s")

    asyncio.run(make())
    file.write_bytes(b"former")
    for chunk in (place / "_chunks").iterdir():
        chunk.write_bytes(b"nothing")
    with pytest.raises(RequestError, match="is damaged"):
        write_snapshot_state(str(place), "s", "ledger/keep", file)
    assert file.read_bytes() == b"former"
    assert not (tmp_path / ".states.parquet.part").exists()


def test_a_state_of_another_version_is_named() -> None:
    """Only the user's code converts it."""
    spec = specs.ComputationSpec(name="model", state=specs.StateSchema(version=2))
    form, state = StateForm(spec, "snapshot s"), msgspec.msgpack.encode({"n": 1})
    assert form.shown(b"k", envelope(2) + state, {}) == state
    assert form.shown(b"k", b"", {}) == b""
    with pytest.raises(RequestError, match=r"snapshot s, computation model, key 'k': the state is of version 1") as old:
        form.shown(b"k", state, {})
    assert old.value.reason == "STATE_OF_EARLIER_VERSION"
    with pytest.raises(RequestError, match="key 'k'"):
        form.shown(b"k", envelope(2)[:1], {})
