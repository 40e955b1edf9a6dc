"""A directory is opened only if it is a database of our format and no other process has it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from millwheel.embedded.database import EmbeddedDatabase
from millwheel.store.contract import JournalExistsError, StoreError
from tests.patience import patience

HOLDER = """
import asyncio, sys
from millwheel.embedded.database import EmbeddedDatabase
async def main():
    async with await EmbeddedDatabase.open(sys.argv[1]):
        print("open", flush=True)
        sys.stdin.readline()
asyncio.run(main())
"""


async def create(path: Path) -> None:
    async with await EmbeddedDatabase.open(path) as database:
        await database.store.create_journal("j")


async def refusal(path: Path) -> str:
    before = contents(path)
    with pytest.raises(StoreError) as error:
        await EmbeddedDatabase.open(path)
    assert contents(path) == before
    assert str(path) in str(error.value)
    return str(error.value)


def contents(path: Path) -> dict[str, bytes]:
    """The content of a directory without our lock."""
    if path.is_file():
        return {"": path.read_bytes()}
    files = (file for file in path.rglob("*") if file.is_file() and file.name != "MILLWHEEL.lock")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


async def test_a_new_directory_is_created_with_its_parents(tmp_path: Path) -> None:
    await create(tmp_path / "a" / "b")
    async with await EmbeddedDatabase.open(tmp_path / "a" / "b") as database:
        with pytest.raises(JournalExistsError):
            await database.store.create_journal("j")


async def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    await create(tmp_path)
    assert (tmp_path / "MILLWHEEL.json").exists()


async def test_a_database_held_by_another_process_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs here
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match=f"in use by process {holder.pid} on host .* stop that one"):
            await EmbeddedDatabase.open(path)
        holder.stdin.write("\n")
        holder.stdin.close()
        assert holder.wait(patience(20)) == 0
    await create(path)


async def test_a_database_is_opened_once_in_a_process(tmp_path: Path) -> None:
    async with await EmbeddedDatabase.open(tmp_path):
        with pytest.raises(StoreError, match="in use by process"):
            await EmbeddedDatabase.open(tmp_path)
    await create(tmp_path)


async def test_a_directory_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "thesis.tex" in await refusal(tmp_path)


async def test_a_rocksdb_of_something_else_is_left_alone(tmp_path: Path) -> None:
    other = Rdict(str(tmp_path), options=Options(raw_mode=True))
    other[b"k"] = b"v"
    other.close()
    assert "RocksDB database of something else" in await refusal(tmp_path)


async def test_a_file_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    assert "is a file" in await refusal(path)


async def test_another_directory_format_is_refused_by_its_number(tmp_path: Path) -> None:
    await create(tmp_path)
    marker = tmp_path / "MILLWHEEL.json"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"format": 7}))
    assert "format 7" in await refusal(tmp_path)


async def test_a_damaged_or_foreign_marker_is_refused(tmp_path: Path) -> None:
    await create(tmp_path)
    (tmp_path / "MILLWHEEL.json").write_text("{")
    assert "damaged" in await refusal(tmp_path)
    (tmp_path / "MILLWHEEL.json").write_text("[]")
    assert "not written by MillWheel" in await refusal(tmp_path)


async def test_a_database_with_missing_files_is_never_created_again(tmp_path: Path) -> None:
    await create(tmp_path)
    (tmp_path / "data").rename(tmp_path.parent / f"{tmp_path.name}-moved")
    assert "its files were removed" in await refusal(tmp_path)


async def test_a_creation_that_was_interrupted_is_completed(tmp_path: Path) -> None:
    await create(tmp_path)
    marker = tmp_path / "MILLWHEEL.json"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"state": "creating"}))
    (tmp_path / "data" / "CURRENT").unlink()
    await create(tmp_path)
    assert json.loads(marker.read_text())["state"] == "ready"


async def test_a_log_damaged_before_its_end_is_refused_not_cut_short(tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"
    async with await EmbeddedDatabase.open(tmp_path / "db") as database:
        for number in range(200):
            await database.store.create_journal(f"journal-{number}")
        shutil.copytree(tmp_path / "db", crashed)
    log = max((crashed / "data").glob("*.log"), key=lambda path: path.stat().st_size)
    whole = log.read_bytes()
    content = bytearray(whole)
    assert len(content) > 5000
    content[len(content) // 2] ^= 0xFF
    log.write_bytes(bytes(content))
    with pytest.raises(StoreError, match=r"damaged.*restore it from a snapshot"):
        await EmbeddedDatabase.open(crashed)
    log.write_bytes(whole[:-3])
    async with await EmbeddedDatabase.open(crashed) as database:
        assert (await database.store.read_head("journal-198")).commit == 0
