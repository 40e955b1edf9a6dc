"""Reads a whole snapshot back, as a restore does."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.chunks import read_file
from millwheel.snapshots.files import RowItem, read_items
from millwheel.snapshots.location import SnapshotFolder
from millwheel.snapshots.manifest import all_files, read_manifest
from millwheel.snapshots.renaming import RenamedJournal
from millwheel.worker.names import RestoredNames

__all__ = ["SnapshotContent", "verify_snapshot"]


@dataclass(slots=True)
class SnapshotContent:
    """What was read."""

    manifest: wire.SnapshotManifest
    files: int = 0
    size_bytes: int = 0
    parts: int = 0
    entries: int = 0
    rows: int = 0


async def verify_snapshot(folder: SnapshotFolder) -> SnapshotContent:
    """Read each file, compare its checksum, and decode each journal as a takeover does.

    Raises:
        RequestError: Something is missing or damaged; the error names it.
    """
    manifest = await read_manifest(folder)
    found = SnapshotContent(manifest)
    for file in all_files(manifest):
        found.files += 1
        found.size_bytes += file.size_bytes
    names = RestoredNames({one.incarnation: one.incarnation for one in manifest.maps})
    logs = {log.incarnation for log in manifest.logs}
    for journal in manifest.journals:
        read = RenamedJournal(folder, journal, journal.incarnation in logs, names)
        async for _ in read.parts():
            found.parts += 1
        async for _ in read.entries(journal.sequencer):
            found.entries += 1
    for rows in manifest.rows:
        async for _ in read_items(folder, rows.files, RowItem):
            found.rows += 1
    for file in manifest.packages:
        digest = sha256(await read_file(folder, file)).hexdigest()
        if file.path != f"package-{digest}":
            raise RequestError(
                FailureCode.DATA_LOSS, f"{folder.where}: {file.path} is another package", reason="SNAPSHOT_DAMAGED"
            )
    return found
