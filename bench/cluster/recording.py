"""A worker that keeps the journal entries that it writes, so that a replay can write the entries alone again.

It has windows by columns.
"""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from time import monotonic

import msgspec

from millwheel.cli.main import main as millwheel_main
from millwheel.store.cassandra import CassandraStore
from millwheel.store.contract import Append

__all__ = ["Written", "main", "read_entries", "worker_code"]


class Written(msgspec.Struct, array_like=True):
    """One append and its times, in seconds of the machine's monotonic clock."""

    journal: str
    began: float
    ended: float
    entry: bytes


def worker_code(folder: Path) -> str:
    """The program of a worker that writes its entries to ``folder`` when it ends."""
    return f"from bench.cluster.recording import main; main({str(folder)!r})"


def main(folder: str) -> None:
    """Run the command line, and record the store's appends.

    The entries are kept in memory until the end, so that the run writes nothing else.
    """
    written: list[Written] = []
    append_to_journal = CassandraStore.append

    async def append(self: CassandraStore, journal: str, append: Append) -> None:
        began = monotonic()
        await append_to_journal(self, journal, append)
        written.append(Written(journal, began, monotonic(), append.entry))

    CassandraStore.append = append  # type: ignore[method-assign]
    os.environ["MILLWHEEL_WORKER_COLUMNS"] = "true"
    atexit.register(_write, Path(folder), written)
    millwheel_main()


def _write(folder: Path, written: list[Written]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{os.getpid()}.entries").write_bytes(msgspec.msgpack.encode(written))


def read_entries(file: Path) -> list[Written]:
    """Read the entries that one process wrote."""
    return msgspec.msgpack.decode(file.read_bytes(), type=list[Written])
