"""Decides whether RocksDB's log may be cut at its first damage after a loss of power.

A disk may write the blocks of an unsynced record in any order, so the last record may have a hole. RocksDB reports the
hole as corruption, in the same way as damage in the middle of the log. The difference: a hole at the end comes after
every synced write.

Invariant: the log is cut only if all writes up to the last noted sync stay. The note itself is not synced. After a loss
of power it may be older than the last sync. The difference is the time for which the system delays writes (usually half
a minute). Damage to that part of the log is treated as a hole.
"""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rocksdict import Rdict

__all__ = ["SyncedMark", "keeps_what_was_synced"]

_NOTE: Final = struct.Struct("<QI")
"""A sequence number of RocksDB, and the checksum of its eight bytes."""


class SyncedMark:
    """A file with the sequence number that the last sync made durable. One thread writes it."""

    def __init__(self, path: Path) -> None:
        """Use the file ``path``. The first note creates it."""
        self._path = path
        self._file: int | None = None

    def note(self, number: int) -> None:
        """Record that all writes up to ``number`` are synced. OSError if the file cannot be written."""
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        plain = number.to_bytes(8, "little")
        os.pwrite(self._file, _NOTE.pack(number, zlib.crc32(plain)), 0)

    def read(self) -> int | None:
        """Return the last noted number; None if there is none, or it cannot be read."""
        try:
            number, checksum = _NOTE.unpack(self._path.read_bytes())
        except (OSError, struct.error):
            return None
        return int(number) if zlib.crc32(number.to_bytes(8, "little")) == checksum else None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def keeps_what_was_synced(data: Path, trial: Path, mark: SyncedMark, open_cut: Callable[[Path], Rdict]) -> bool:
    """Return whether the database in ``data`` keeps every synced write if its log ends before the first damage.

    The function tries this on a copy, so ``data`` does not change.

    Args:
        data: the directory of the database, which is closed.
        trial: the directory for the copy. It is deleted before and afterwards.
        mark: the last noted sync.
        open_cut: opens the database of a directory, up to the first damage of its log.

    Returns:
        False also if no sync was noted, or if the copy cannot be opened.
    """
    synced = mark.read()
    if synced is None:
        return False
    shutil.rmtree(trial, ignore_errors=True)
    try:
        _copy(data, trial)
        database = open_cut(trial)
        reached = database.latest_sequence_number()
        database.close()
    except Exception as error:
        if type(error) is not Exception and not isinstance(error, OSError):
            raise  # RocksDB's failures are plain Exceptions; anything else is a fault of this program
        return False
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    return reached >= synced


def _copy(data: Path, trial: Path) -> None:
    """Copy a database. Table files never change, so hard links are enough for them; opening writes the other files."""
    trial.mkdir()
    for one in data.iterdir():
        if one.suffix == ".sst":
            os.link(one, trial / one.name)
        elif one.is_file():
            shutil.copyfile(one, trial / one.name)
