"""Acknowledged writes survive a killed process and a full disk (G1)."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millwheel.embedded.database import EmbeddedDatabase
from millwheel.model.incarnation import IncarnationId
from millwheel.store.contract import StoreUnavailableError
from tests import disks
from tests.patience import patience

APPENDER = """
import asyncio, sys
from millwheel.coordination.contract import Put
from millwheel.store.contract import Append, StateRow
from millwheel.embedded.database import EmbeddedDatabase
path, sequencer = sys.argv[1], int(sys.argv[2])
async def main():
    database = await EmbeddedDatabase.open(path)
    store = database.store
    commit = (await store.fence("j", sequencer)).commit
    while True:
        commit += 1
        await store.append("j", Append(sequencer, commit, 0, (), b"%d" % commit, sync=bool(commit % 3)))
        await database.coordinator.transact([], [Put("commit", b"%d" % commit)])
        await store.write_states("c", "j", sequencer, [StateRow(b"k", commit, b"%d" % commit)])
        print(commit, flush=True)
asyncio.run(main())
"""


def append_until_killed(path: Path, sequencer: int, seconds: float) -> int:
    """The last acknowledged commit of a process that was killed after ``seconds`` of appending."""
    command = [sys.executable, "-c", APPENDER, str(path), str(sequencer)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = int(process.stdout.readline())
        time.sleep(seconds)
        process.kill()
        for line in process.stdout:
            last = int(line) if line.endswith("\n") else last
    return last


@pytest.mark.guarantee("G1")
async def test_every_acknowledged_append_survives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "db"
    async with await EmbeddedDatabase.open(path) as database:
        await database.store.create_journal("j")
    chance = random.Random(7)
    acknowledged = 0
    for sequencer in range(1, 11):
        last = append_until_killed(path, sequencer, chance.uniform(0.0, 0.1))
        assert last > acknowledged
        acknowledged = last
        async with await EmbeddedDatabase.open(path) as database:
            head = await database.store.read_head("j")
            assert head.sequencer == sequencer
            assert head.commit in (last, last + 1)
            entries = await database.store.read_entries("j", 1, head.commit)
            assert entries == [b"%d" % commit for commit in range(1, head.commit + 1)]
            (row,) = await database.store.read_states(IncarnationId("c"), [b"k"])
            assert row is not None
            assert row.commit in (last, last + 1)
            entry = await database.coordinator.get("commit")
            assert entry is not None
            assert int(entry.value) in (last, last + 1)


FILLER = """
import asyncio, os, resource, sys
from millwheel.coordination.contract import CoordinatorUnavailableError, Put
from millwheel.store.contract import Append, StateRow, StoreUnavailableError
from millwheel.embedded.database import EmbeddedDatabase
path, fill, free = sys.argv[1:]
async def main():
    database = await EmbeddedDatabase.open(path)
    store = database.store
    await store.create_journal("j")
    await store.fence("j", 1)
    exec(fill)
    commit = 0
    while True:
        try:
            await store.append("j", Append(1, commit + 1, 0, (), b"%d" % (commit + 1) + bytes(50_000)))
        except StoreUnavailableError as error:
            print(error)
            break
        commit += 1
        await store.write_states("c", "j", 1, [StateRow(b"%d" % commit, commit, bytes(1000))])
    refused = 0
    for call in (
        store.append("j", Append(1, commit + 1, 0, (), b"again")),
        store.fence("j", 2),
        store.write_states("c", "j", 1, [StateRow(b"k", 1, bytes(100_000))]),
        database.coordinator.transact([], [Put("a", b"")]),
        database.coordinator.get("a"),
    ):
        try:
            await call
        except (StoreUnavailableError, CoordinatorUnavailableError):
            refused += 1
    exec(free)
    assert (await database.coordinator.get("a")) is None
    head = await store.read_head("j")
    assert head.commit in (commit, commit + 1), (head, commit)
    entries = await store.read_entries("j", 1, commit)
    assert entries == [b"%d" % n + bytes(50_000) for n in range(1, commit + 1)]
    commit = head.commit
    for _ in range(20):
        commit += 1
        await store.append("j", Append(1, commit, 0, (), bytes(50_000)))
    assert (await database.coordinator.transact([], [Put("a", b"")])).committed
    await database.close()
    database = await EmbeddedDatabase.open(path)
    assert (await database.store.read_head("j")).commit == commit
    await database.close()
    print("refused", refused)
asyncio.run(main())
"""


def fill_and_free(path: Path, fill: str, free: str) -> str:
    command = [sys.executable, "-c", FILLER, str(path), fill, free]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(50), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_store_works_again_when_a_file_size_limit_is_lifted(tmp_path: Path) -> None:
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, ({}, resource.RLIM_INFINITY))"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    output = fill_and_free(tmp_path / "db", limit.format(60_000), limit.format("resource.RLIM_INFINITY"))
    assert "takes no writes" in output
    assert "File too large" in output
    assert "Free space" in output
    assert "refused 5" in output


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disks.small_disk(tmp_path / "disk", "12m") as place:
        if place is None:
            pytest.skip("mounting a small file system needs root")
        yield place


def test_a_store_works_again_when_a_full_disk_has_space(small_disk: Path) -> None:
    grow = f"import subprocess; subprocess.run(['mount', '-o', 'remount,size=200m', {str(small_disk)!r}], check=True)"
    output = fill_and_free(small_disk / "db", "pass", grow)
    assert "No space left on device" in output
    assert "Free space" in output
    assert "refused 5" in output


async def test_a_full_disk_at_the_start_is_reported(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(13 << 20))
    with pytest.raises(StoreUnavailableError, match="free space"):
        await EmbeddedDatabase.open(small_disk / "db")
    ballast.unlink()
    async with await EmbeddedDatabase.open(small_disk / "db") as database:
        await database.store.create_journal("j")
