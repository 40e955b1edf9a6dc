"""Copies journals and state rows from the store into a snapshot's files, a bounded piece at a time."""

from __future__ import annotations

from typing import Final

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.files import FileSeries, PartItem, RowItem
from millwheel.snapshots.location import SnapshotFolder
from millwheel.store.contract import JournalHead, StateStore
from millwheel.worker.interval.commits.divided import is_entry_part

__all__ = ["copy_journal", "copy_rows"]

_KEYS: Final = 200
"""Rows of one read. A row has at most some megabytes."""
_ENTRIES: Final = 16
"""Entries of one read."""


async def copy_rows(
    store: StateStore, incarnation: IncarnationId, folder: SnapshotFolder, path: str
) -> wire.SnapshotRows:
    """Copy the rows of an incarnation. Rows may change meanwhile: each is as it was at some moment."""
    series = FileSeries(folder, path)
    start = b""
    while keys := await store.list_states(incarnation, start, None, _KEYS):
        for row in await store.read_states(incarnation, keys):
            if row is not None:
                await series.add(RowItem(row.key, row.commit, row.blob), len(row.key) + len(row.blob))
        start = keys[-1] + b"\0"
    await series.close()
    return wire.SnapshotRows(incarnation=incarnation, files=series.files)


async def copy_journal(
    store: StateStore, journal: str, head: JournalHead, commit: int, folder: SnapshotFolder, path: str
) -> wire.SnapshotJournal:
    """Copy what a takeover at ``commit`` would have read, and id segments.

    Args:
        store: The store.
        journal: The journal's name.
        head: Its head at ``commit`` or later, with the truncation point of ``commit``.
        commit: The last commit of the snapshot.
        folder: The snapshot's folder.
        path: The beginning of the files' names.

    Raises:
        CorruptValueError: A value is missing: the journal was truncated meanwhile.
    """
    copied = wire.SnapshotJournal(
        journal=journal, sequencer=head.sequencer, commit=commit, truncation_point=head.truncation_point
    )
    parts = FileSeries(folder, f"{path}-parts")
    for part in head.parts:
        if is_entry_part(part) and part.commit > commit:
            continue
        (blob,) = await store.read_parts(journal, [part])
        await parts.add(PartItem(part.name, part.sequencer, part.commit, blob), len(blob))
    await parts.close()
    entries = FileSeries(folder, f"{path}-entries")
    for first in range(head.truncation_point + 1, commit + 1, _ENTRIES):
        for blob in await store.read_entries(journal, first, min(first + _ENTRIES - 1, commit)):
            await entries.add(blob, len(blob))
    await entries.close()
    copied.parts.extend(parts.files)
    copied.entries.extend(entries.files)
    return copied
