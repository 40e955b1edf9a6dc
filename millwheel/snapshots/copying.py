"""Copies journals and state rows from the store into a snapshot's files, a bounded piece at a time."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.chunks import ChunkWriter
from millwheel.snapshots.files import FileSeries, PartItem, RowItem
from millwheel.store.contract import JournalHead, StateStore
from millwheel.worker.interval.commits.divided import is_entry_part

__all__ = ["copy_journal", "copy_rows"]

_KEYS: Final = 500
"""Keys that are listed at once. Cassandra asks all its buckets for each list."""
_READ_BYTES: Final = 128 << 10
"""About the size of one read. The process has other work between two reads."""
_MAX_READ: Final = 500
"""Maximum rows or entries of one read."""


class _Pace:
    """How much is read at once, and how long the reader rests: as long as the read took.

    Reads are work for the store and for this process, which may also be the workers' process. Files are written
    meanwhile, by threads and the disk. If the reader waits for them, it has rested.
    """

    def __init__(self) -> None:
        self.count = 8
        """Items of the next read."""
        self._began = self._ended = 0.0

    def begin(self) -> None:
        """A read begins."""
        self._began = time.monotonic()

    def end(self, size: int) -> None:
        """The read of ``count`` items has returned ``size`` bytes, and they are passed on."""
        self._ended = time.monotonic()
        fitting = self.count * _READ_BYTES // max(size, 1)
        self.count = min(max(fitting, 1), self.count * 2, _MAX_READ)

    async def rest(self) -> None:
        """Rest until as much time has passed since the read as it took."""
        await asyncio.sleep(max(0.0, 2 * self._ended - self._began - time.monotonic()))


async def copy_rows(store: StateStore, incarnation: IncarnationId, writer: ChunkWriter, path: str) -> wire.SnapshotRows:
    """Copy the rows of an incarnation. Rows may change meanwhile: each is as it was at some moment."""
    start, pace = b"", _Pace()
    async with FileSeries(writer, path) as series:
        while keys := await store.list_states(incarnation, start, None, _KEYS):
            start = keys[-1] + b"\0"
            while keys:
                pace.begin()
                some, keys = keys[: pace.count], keys[pace.count :]
                size = 0
                for row in await store.read_states(incarnation, some):
                    if row is not None:
                        size += len(row.key) + len(row.blob)
                        series.add(RowItem(row.key, row.commit, row.blob), len(row.key) + len(row.blob), row.key)
                pace.end(size)
                await series.write()
                await pace.rest()
    return wire.SnapshotRows(incarnation=incarnation, files=series.files)


async def copy_journal(
    store: StateStore, journal: str, head: JournalHead, commit: int, writer: ChunkWriter, path: str
) -> wire.SnapshotJournal:
    """Copy what a takeover at ``commit`` would have read, and id segments.

    Args:
        store: The store.
        journal: The journal's name.
        head: Its head at ``commit`` or later, with the truncation point of ``commit``.
        commit: The last commit of the snapshot.
        writer: Writes the snapshot's files.
        path: The beginning of the files' names.

    Raises:
        CorruptValueError: A value is missing: the journal was truncated meanwhile.
    """
    copied = wire.SnapshotJournal(
        journal=journal, sequencer=head.sequencer, commit=commit, truncation_point=head.truncation_point
    )
    pace = _Pace()
    async with FileSeries(writer, f"{path}-parts") as parts:
        for part in head.parts:
            if is_entry_part(part) and part.commit > commit:
                continue
            pace.begin()
            (blob,) = await store.read_parts(journal, [part])
            parts.add(PartItem(part.name, part.sequencer, part.commit, blob), len(blob), part.name.encode())
            pace.end(len(blob))
            await parts.write()
            await pace.rest()
    first, pace = head.truncation_point + 1, _Pace()
    async with FileSeries(writer, f"{path}-entries") as entries:
        while first <= commit:
            pace.begin()
            read = await store.read_entries(journal, first, min(first + pace.count - 1, commit))
            for blob in read:
                entries.add(blob, len(blob), b"%d" % first)
                first += 1
            pace.end(sum(map(len, read)))
            await entries.write()
            await pace.rest()
    copied.parts.extend(parts.files)
    copied.entries.extend(entries.files)
    return copied
