"""A loss of power can leave a hole at a log's end. The log opens with everything that was synced (G1)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millwheel.store.contract import StoreError
from millwheel.store.directory import DatabaseDirectory
from millwheel.store.power_loss import SyncedMark
from millwheel.store.rocks import Rocks, RowBatch

SIZE = 16_384
"""Bytes of each value: records of several blocks of the disk."""


def key(number: int) -> bytes:
    return b"%04d" % number


def write(path: Path, copy: Path, *, synced: int, unsynced: int) -> None:
    """Write records one by one. Copy the open directory, as a loss of power would leave it."""
    directory = DatabaseDirectory(path)
    rocks = Rocks(directory)
    try:
        for number in range(synced + unsynced):
            batch = RowBatch(rocks)
            batch.put(key(number), bytes((number,)) * SIZE)
            rocks.write(batch)
            if number < synced:
                rocks.sync()
        shutil.copytree(path, copy)
    finally:
        rocks.close()
        directory.release()


def punch(path: Path, number: int) -> None:
    """Put a hole into the log, within the record of that number: blocks that the disk has not written."""
    (log,) = (one for one in (path / "data").glob("*.log") if one.stat().st_size)
    blob = bytearray(log.read_bytes())
    place = blob.index(bytes((number,)) * 1_000) + 4_096
    blob[place : place + 4_096] = bytes(4_096)
    log.write_bytes(blob)


def numbers(path: Path) -> list[int]:
    """The records that the database has when it is opened again, twice."""
    found = []
    for _ in range(2):
        directory = DatabaseDirectory(path)
        try:
            rocks = Rocks(directory)
            found.append([int(one) for one in rocks.keys(b"", b"~")])
            rocks.close()
        finally:
            directory.release()
    assert found[0] == found[1]
    assert not (path / "recovery-trial").exists()
    return found[0]


@pytest.mark.guarantee("G1", section="6.1.2")
@pytest.mark.parametrize("hole", [8, 9, 11])
def test_a_hole_behind_what_was_synced_is_cut_off(tmp_path: Path, hole: int) -> None:
    write(tmp_path / "db", tmp_path / "copy", synced=8, unsynced=4)
    punch(tmp_path / "copy", hole)
    assert numbers(tmp_path / "copy") == list(range(hole))


@pytest.mark.guarantee("G1", section="6.1.2")
def test_damage_to_synced_bytes_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "db", tmp_path / "copy", synced=8, unsynced=4)
    punch(tmp_path / "copy", 7)
    before = {one.name: one.read_bytes() for one in (tmp_path / "copy" / "data").glob("*.log")}
    with pytest.raises(StoreError, match="damaged: Corruption"):
        numbers(tmp_path / "copy")
    assert {one.name: one.read_bytes() for one in (tmp_path / "copy" / "data").glob("*.log")} == before


@pytest.mark.guarantee("G1", section="6.1.2")
@pytest.mark.parametrize("note", [None, b"", b"\1" * 12])
def test_without_a_note_nothing_is_cut_off(tmp_path: Path, note: bytes | None) -> None:
    write(tmp_path / "db", tmp_path / "copy", synced=8, unsynced=4)
    punch(tmp_path / "copy", 11)
    place = tmp_path / "copy" / "MILLWHEEL.synced"
    place.unlink()
    if note is not None:
        place.write_bytes(note)
    with pytest.raises(StoreError, match="damaged: Corruption"):
        numbers(tmp_path / "copy")


def test_the_last_note_is_read(tmp_path: Path) -> None:
    mark = SyncedMark(tmp_path / "synced")
    assert mark.read() is None
    for number in (1, 1 << 40, 7):
        mark.note(number)
        assert SyncedMark(tmp_path / "synced").read() == number
    mark.close()
