"""A topology with a sink is restored: a database that is ahead is noticed, and one that was set back goes on (G1)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system import counted
from tests.system.server import Server, run_cli
from tests.system.test_connected import all_rows

COUNT = "SELECT count(*) FROM numbers"


def copy_database(source: Path, target: Path) -> None:
    """Replace all that ``target`` has."""
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target, timeout=20)) as other:
        one.backup(other)


async def command(server: Server, *arguments: str) -> str:
    done = await run_cli(server.address, *arguments, timeout=patience(60))
    assert done.code == 0, done.err
    return done.out


@pytest.mark.timeout(300)
@pytest.mark.guarantee("G1", section="6.1")
async def test_a_database_ahead_of_a_snapshot_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, kept, place = tmp_path / "counted.db", tmp_path / "kept.db", str(tmp_path / "backups")
    monkeypatch.setenv("COUNTED_DB", str(path))
    # However quick the source is, it has more numbers after the snapshot.
    monkeypatch.setenv("COUNTED_ENDLESS", "1")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE numbers (split INTEGER, number INTEGER)")
        connection.execute("CREATE TABLE sums (split INTEGER, at INTEGER, numbers INTEGER)")

    async def written(more: int) -> None:
        least = more + (all_rows(kept, COUNT)[0][0] if kept.exists() else 0)
        await until(lambda: all_rows(path, COUNT)[0][0], patience(90), every=0.1, holds=least.__le__)

    async def complains() -> bool:
        return "was set back to an earlier time" in (await run_cli(server.address, "cluster", "health")).out

    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit_copy(server.address, counted.__file__, "counted", tmp_path)
        await written(500)
        await command(server, "topology", "pause", "counted")
        await command(server, "snapshot", "create", "counted", "--to", place, "--name", "s")
        copy_database(path, kept)
        await command(server, "topology", "resume", "counted")
        await written(500)
        await command(server, "topology", "cancel", "counted", "--yes")
        await command(server, "snapshot", "restore", place, "s")
        await until(complains, patience(60), every=0.5)
        await command(server, "topology", "cancel", "counted", "--yes")
        copy_database(kept, path)
        await command(server, "snapshot", "restore", place, "s")
        await written(500)
    for split in range(counted.SPLITS):
        own = all_rows(path, f"SELECT number FROM numbers WHERE split = {split} ORDER BY rowid")
        assert own == [(number,) for number in range(len(own))]
