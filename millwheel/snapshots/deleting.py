"""Deletes snapshots, and the chunks that no other snapshot names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.snapshots.chunks import CHUNKS
from millwheel.snapshots.claims import ClaimKind, claim
from millwheel.snapshots.location import MANIFEST, SnapshotLocation
from millwheel.snapshots.manifest import all_files, read_manifest, stored_chunks

__all__ = ["DeletedSnapshots", "delete_snapshots"]


@dataclass(frozen=True, slots=True)
class DeletedSnapshots:
    """What was deleted. Chunks of snapshots that failed are among it."""

    names: tuple[str, ...]
    chunks: int
    freed_bytes: int


async def delete_snapshots(location: SnapshotLocation, names: Sequence[str]) -> DeletedSnapshots:
    """Delete these snapshots of a location.

    A call that was cut off may have left chunks. The next call deletes them, also one without names.

    All manifests are read first: of a snapshot that this version cannot read, the chunks are not known.

    Raises:
        RequestError: There is no such snapshot, one cannot be read, or one is being written.
    """
    async with claim(location, ClaimKind.DELETING) as held:
        kept = {name: location.folder(name) for name in await location.names()}
        going = {name: location.folder(name) for name in names}
        if missing := sorted(going.keys() - kept.keys()):
            raise RequestError(
                FailureCode.NOT_FOUND,
                f"{location.text}: there is no snapshot {missing[0]!r}",
                "`millwheel snapshot list` shows the snapshots of a location",
            )
        needed = await stored_chunks([folder for name, folder in kept.items() if name not in going])
        for folder in going.values():
            # From here on it is no snapshot.
            manifest = await read_manifest(folder)
            await folder.remove(MANIFEST)
            for file in all_files(manifest):
                if not file.shared:
                    await folder.remove(file.path)
        chunks = location.shared(CHUNKS)
        count = freed = 0
        for chunk, (size, _) in sorted((await chunks.files()).items()):
            if chunk not in needed:
                held.check()
                await chunks.remove(chunk)
                count, freed = count + 1, freed + size
        return DeletedSnapshots(tuple(sorted(going)), count, freed)
