"""Writes a run's entries again, as bare appends: ``python -m bench.cluster.replay HOST:PORT KEYSPACE FILE NAME…``.

Each journal of the run gets a new journal. As in the run, the entries of one journal are appended one after the other,
and all journals at once. The process prints a line when it is ready, and starts after it has read a line. At the end it
prints its start and end times (monotonic).
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from pathlib import Path

import uvloop

from bench.cluster.recording import read_entries
from millwheel.model.incarnation import incarnation_of_journal
from millwheel.server.startup import settle_memory
from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.contract import Append

__all__ = ["by_journal", "main"]


def by_journal(file: Path, prefixes: tuple[str, ...]) -> dict[str, list[bytes]]:
    """The entries of these incarnations' journals, by journal and in their order."""
    found: dict[str, list[bytes]] = {}
    for one in read_entries(file):
        if incarnation_of_journal(one.journal) in prefixes:
            found.setdefault(one.journal, []).append(one.entry)
    return found


async def main(contact_point: str, keyspace: str, file: str, *prefixes: str) -> None:
    """Replay the entries of one process."""
    settle_memory()
    journals = by_journal(Path(file), prefixes)
    store = await CassandraStore.open(CassandraSettings((contact_point,), keyspace=keyspace))
    names = [f"bare.{uuid.uuid4().hex}" for _ in journals]
    for name in names:
        await store.create_journal(name)
        await store.fence(name, 1)

    async def write(name: str, entries: list[bytes]) -> None:
        for commit, entry in enumerate(entries, 1):
            await store.append(name, Append(1, commit, 0, (), entry, deflate=True))

    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.monotonic()
    await asyncio.gather(*(write(name, entries) for name, entries in zip(names, journals.values(), strict=True)))
    print(began, time.monotonic(), flush=True)
    for name in names:
        await store.drop_journal(name)
    await store.close()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
