"""The contents of snapshots: chunks that are named by their checksums and shared by a location's snapshots.

A snapshot writes only the chunks that no complete snapshot of the location names, or that are lost. Chunks of
incomplete ones are written again: they may not be on the disk.

Invariant: every chunk that a manifest names is in the location. A snapshot's manifest is written after its chunks, and
chunks are deleted only by ``deleting.py``, which runs while no snapshot is written (``claims.py``).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Final

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.location import SnapshotFolder, SnapshotLocation

__all__ = ["CHUNKS", "ChunkWriter", "read_file"]

CHUNKS: Final = "_chunks"


class ChunkWriter:
    """Writes the contents of one snapshot."""

    def __init__(self, location: SnapshotLocation, stored: Iterable[str] = ()) -> None:
        """``stored``: the checksums of chunks that complete snapshots name."""
        self.written_bytes = 0
        self._chunks = location.shared(CHUNKS)
        self._stored = set(stored)

    async def write(self, path: str, content: bytes) -> wire.SnapshotFile:
        """Write a content unless it is there. Returns its entry in the manifest. ``path``: its name in messages."""
        name = await _checksum(content)
        if name not in self._stored:
            await self._chunks.write(name, content)
            self._stored.add(name)
            self.written_bytes += len(content)
        return wire.SnapshotFile(path=path, size_bytes=len(content), sha256=name, shared=True)


async def read_file(folder: SnapshotFolder, file: wire.SnapshotFile) -> bytes:
    """The content of a file of a snapshot; RequestError (DATA_LOSS) if it is not the one that was written."""
    place = folder.location.shared(CHUNKS) if file.shared else folder
    name = file.sha256 if file.shared else file.path
    try:
        content = await place.read(name)
    except RequestError as error:
        if error.code is not FailureCode.NOT_FOUND:
            raise
        raise RequestError(
            error.code, f"{folder.where}, file {file.path}: {name} is missing", "use another snapshot"
        ) from error
    if len(content) != file.size_bytes or await _checksum(content) != file.sha256:
        raise RequestError(
            FailureCode.DATA_LOSS,
            f"{folder.where}, file {file.path}: {name} is damaged: {len(content)} bytes with another checksum",
            "use another snapshot, or another copy of this one. `millwheel snapshot create --full` writes its chunks "
            "again, as far as the topology still has them",
            reason="SNAPSHOT_DAMAGED",
        )
    return content


async def _checksum(content: bytes) -> str:
    """SHA-256, on a thread: the server's event loop has other work."""
    return (await asyncio.to_thread(hashlib.sha256, content)).hexdigest()
