"""A server reads, counts and writes to a database by itself, and is killed and reshaped meanwhile (G1, G7, G15)."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from millwheel.client.control import ControlClient
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import interval_pb2 as wire
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system import counted
from tests.system.server import Server, run_cli

KILLS = 4
COMPUTATIONS = ("numbers-reader", "numbers-splits", "numbers-table", "numbers-table-batches", "sums-table")


async def reshape(address: str, chance: random.Random) -> None:
    """Split and merge intervals of the source and of the sinks, again and again. What cannot be done is left."""
    async with ControlClient(address, patience=patience(30)) as client:
        while True:
            await asyncio.sleep(0.2)
            computation, at = chance.choice(COMPUTATIONS), bytes([chance.choice(b"12345678abc")])
            place = wire.IntervalName(topology="counted", computation=computation, key=at)
            with suppress(RequestError):
                if chance.random() < 0.6:
                    await client.split_interval(place, at)
                else:
                    await client.merge_intervals(place)


def all_rows(path: Path, statement: str) -> list[tuple[int, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


@pytest.mark.timeout(300)
@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.guarantee("G15")
async def test_each_number_is_in_the_database_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "counted.db"
    monkeypatch.setenv("COUNTED_DB", str(path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE numbers (split INTEGER, number INTEGER)")
        connection.execute("CREATE TABLE sums (split INTEGER, at INTEGER, numbers INTEGER)")
    windows = counted.NUMBERS * counted.STEP // int(counted.WINDOW)
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit_copy(server.address, counted.__file__, "counted", tmp_path)
        reshaping = asyncio.create_task(reshape(server.address, random.Random(3)))
        try:
            for _ in range(KILLS):
                await asyncio.sleep(1.5)
                await server.kill()
                await server.start()
            count = "SELECT count(*) FROM sums"
            await until(lambda: all_rows(path, count)[0][0] >= counted.SPLITS * windows, patience(120), every=0.2)
        finally:
            reshaping.cancel()
            await asyncio.gather(reshaping, return_exceptions=True)
        await until(
            lambda: all_rows(path, "SELECT count(*) FROM numbers")[0][0] >= counted.SPLITS * counted.NUMBERS,
            patience(60),
            every=0.2,
        )
        shown = await run_cli(server.address, "key", "inspect", "counted/numbers-reader", "00")
        assert '"position":600' in shown.out, shown.out
    for split in range(counted.SPLITS):
        own = all_rows(path, f"SELECT number FROM numbers WHERE split = {split} ORDER BY rowid")
        assert own == [(number,) for number in range(counted.NUMBERS)]
    assert sorted(all_rows(path, "SELECT split, at, numbers FROM sums")) == [
        (split, counted.BEGIN + window * int(counted.WINDOW), int(counted.WINDOW) // counted.STEP)
        for split in range(counted.SPLITS)
        for window in range(windows)
    ]


@pytest.mark.timeout(240)
@pytest.mark.guarantee("G8", section="4.1")
async def test_a_drain_stops_a_source_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "counted.db"
    monkeypatch.setenv("COUNTED_DB", str(path))
    monkeypatch.setenv("COUNTED_ENDLESS", "1")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE numbers (split INTEGER, number INTEGER)")
        connection.execute("CREATE TABLE sums (split INTEGER, at INTEGER, numbers INTEGER)")
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit_copy(server.address, counted.__file__, "counted", tmp_path)
        await until(lambda: all_rows(path, "SELECT count(*) FROM numbers")[0][0] > 100, patience(60), every=0.2)
        drained = await run_cli(server.address, "topology", "drain", "counted", "--yes", "--wait", "120")
        assert drained.code == 0, drained
        written = all_rows(path, "SELECT split, number FROM numbers ORDER BY split, number")
        for split in range(counted.SPLITS):
            own = [number for one, number in written if one == split]
            assert own == list(range(len(own)))
        await asyncio.sleep(1)
        assert all_rows(path, "SELECT split, number FROM numbers ORDER BY split, number") == written
