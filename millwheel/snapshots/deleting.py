"""Deletes snapshots, and the chunks that no other snapshot names."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.snapshots.chunks import CHUNKS
from millwheel.snapshots.claims import ClaimKind, claim
from millwheel.snapshots.location import MANIFEST, SnapshotFolder, SnapshotLocation
from millwheel.snapshots.manifest import all_files, read_manifest, stored_chunks

__all__ = ["DeletedSnapshots", "delete_snapshots"]

_UNREADABLE: Final = (FailureCode.DATA_LOSS, FailureCode.FAILED_PRECONDITION)
"""The failures of a manifest that is damaged, or that another version wrote. Others are of the place."""


@dataclass(frozen=True, slots=True)
class DeletedSnapshots:
    """What was deleted. Chunks of snapshots that failed are among it."""

    names: tuple[str, ...]
    chunks: int
    freed_bytes: int


async def delete_snapshots(
    location: SnapshotLocation, names: Sequence[str], *, unreadable: bool = False
) -> DeletedSnapshots:
    """Delete these snapshots of a location.

    A call that was cut off may have left chunks. The next call deletes them, also one without names.

    All manifests are read first. Which chunks a snapshot needs is not known if this version cannot read its manifest.
    So nothing is deleted beside such a snapshot, but it can be deleted itself.

    Args:
        location: Where they are.
        names: The snapshots.
        unreadable: Whether to delete also those of them whose manifests cannot be read.

    Raises:
        RequestError: There is no such snapshot, one cannot be read, or one is being written.
    """
    where = location.text
    async with claim(location, ClaimKind.DELETING) as held:
        kept = {name: location.folder(name) for name in await location.names()}
        going = {name: location.folder(name) for name in names}
        if missing := sorted(going.keys() - kept.keys()):
            raise RequestError(
                FailureCode.NOT_FOUND,
                f"{location.text}: there is no snapshot {missing[0]!r}",
                "`millwheel snapshot list` shows the snapshots of a location",
            )
        needed = set[str]()
        for name, folder in kept.items():
            if name not in going:
                needed |= await _chunks_of(where, name, folder)
        own = {name: await _own_files(where, name, folder, unreadable=unreadable) for name, folder in going.items()}
        for name, folder in going.items():
            # From here on it is no snapshot.
            await folder.remove(MANIFEST)
            for path in own[name]:
                await folder.remove(path)
        chunks = location.shared(CHUNKS)
        count = freed = 0
        for chunk, (size, _) in sorted((await chunks.files()).items()):
            if chunk not in needed:
                held.check()
                await chunks.remove(chunk)
                count, freed = count + 1, freed + size
        return DeletedSnapshots(tuple(sorted(going)), count, freed)


async def _chunks_of(where: str, name: str, folder: SnapshotFolder) -> set[str]:
    """The chunks that a snapshot needs."""
    try:
        return await stored_chunks([folder])
    except RequestError as error:
        if error.code not in _UNREADABLE:
            raise
        raise _blocked(where, name, error, "So nothing was deleted: which chunks it needs is not known") from error


async def _own_files(where: str, name: str, folder: SnapshotFolder, *, unreadable: bool) -> list[str]:
    """The files that a snapshot shares with no other one, without its manifest."""
    try:
        return [file.path for file in all_files(await read_manifest(folder)) if not file.shared]
    except RequestError as error:
        if error.code not in _UNREADABLE:
            raise
        if not unreadable:
            raise _blocked(where, name, error, "Nothing was deleted") from error
    return sorted((await folder.files()).keys() - {MANIFEST})


def _blocked(where: str, name: str, error: RequestError, what: str) -> RequestError:
    way = f"or delete it, too: `{shlex.join(('millwheel', 'snapshot', 'delete', where, name, '--unreadable'))}`"
    remedy = f"{error.remedy or 'put an undamaged copy of the file in its place'}; {way}"
    return RequestError(error.code, f"{error.message}. {what}", remedy, reason=error.reason)
