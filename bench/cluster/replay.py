"""A run's entries, written again as bare appends: ``python -m bench.cluster.replay HOST:PORT KEYSPACE FILE NAME…``.

Each journal of the run gets a journal of its own, whose entries go one after the other, all journals at once: as the
run had them. Prints when it is ready; begins when it is told to, by a line; prints when it began and ended (monotonic).
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from pathlib import Path

import uvloop

from bench.cluster.recording import read_entries
from millwheel.cli.daemons.pieces import settle_memory
from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.contract import Append

__all__ = ["by_journal", "main"]


def by_journal(file: Path, prefixes: tuple[str, ...]) -> dict[str, list[bytes]]:
    """The entries of the journals of these incarnations, in their order."""
    found: dict[str, list[bytes]] = {}
    for one in read_entries(file):
        if one.journal.rpartition(".j")[0] in prefixes:
            found.setdefault(one.journal, []).append(one.entry)
    return found


async def main(contact_point: str, keyspace: str, file: str, *prefixes: str) -> None:
    """Replay one process's entries."""
    settle_memory()
    journals = by_journal(Path(file), prefixes)
    store = await CassandraStore.open(CassandraSettings((contact_point,), keyspace=keyspace))
    names = [f"bare.{uuid.uuid4().hex}" for _ in journals]
    for name in names:
        await store.create_journal(name)
        await store.fence(name, 1)

    async def write(name: str, entries: list[bytes]) -> None:
        for commit, entry in enumerate(entries, 1):
            await store.append(name, Append(1, commit, 0, (), entry))

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
