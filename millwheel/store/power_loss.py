"""What a loss of power may leave at the end of RocksDB's log, and when it is safe to cut it off.

A disk may write the blocks of an unsynced record in any order, so the last record may have a hole. RocksDB then reports
corruption, as it does for damage in the middle of the log. The two cases differ in one thing: a hole at the end lies
behind everything that was synced.

Invariant: the log is cut off only where all writes up to the last noted sync stay. The note is not synced itself: after
a loss of power it may be older than the last sync, by the time for which the system keeps written pages, usually half a
minute. Damage to that part of the log passes for a hole.
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
"""A sequence number of RocksDB, and the checksum of its bytes."""


class SyncedMark:
    """The sequence number that the last sync made durable, in a file of its own. One thread writes it."""

    def __init__(self, path: Path) -> None:
        """Use the file ``path``, which is made with the first note."""
        self._path = path
        self._file: int | None = None

    def note(self, number: int) -> None:
        """Remember that all writes up to ``number`` are synced. OSError if the file takes no writes."""
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        plain = number.to_bytes(8, "little")
        os.pwrite(self._file, _NOTE.pack(number, zlib.crc32(plain)), 0)

    def read(self) -> int | None:
        """The number that was noted last; None if there is none, or it cannot be read."""
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
    """Whether the database in ``data`` has everything that was synced if its log ends before the first damage.

    It is tried on a copy, so nothing in ``data`` changes.

    Args:
        data: the directory of the database, which is closed.
        trial: where the copy is made. What is there is removed, before and afterwards.
        mark: what was synced.
        open_cut: opens the database in a directory, up to the first damage of its log.

    Returns:
        False, too, where nothing was noted, or the copy cannot be opened.
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
            raise  # RocksDB's failures are plain Exceptions
        return False
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    return reached >= synced


def _copy(data: Path, trial: Path) -> None:
    """Tables never change, so links will do for them; opening writes the other files."""
    trial.mkdir()
    for one in data.iterdir():
        if one.suffix == ".sst":
            os.link(one, trial / one.name)
        elif one.is_file():
            shutil.copyfile(one, trial / one.name)
