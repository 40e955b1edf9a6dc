"""Claims on a location: snapshots are written, or some are deleted. Never both at a time.

A claim is a file in the location. Who claims writes it first, and then lists the others. If one of the other kind is
there, the claim is given up. The file names the process that claims.

Invariant: no chunk is deleted while a snapshot is written. Of two claims of different kinds, the later one to be
written sees the other, because a listing shows all files whose writing has ended. Both may see each other, and give up.

A process that dies leaves its claim. Such a claim must end. The claim of a process that is only paused must not: it may
wake up in the middle of a deletion. So two things end it.

- It is in a directory of this host, and its process is gone for sure (``holders.py``): then nothing more comes of it.
  Of an object store that is not known, because a request may still be on its way. Nor is it of a directory on a network
  file system, or on one of FUSE (``file_systems.py``): a claim there counts as that of a process of another host.
- It is a day old. Its work has ended after half a day at most. Who could break it: a process that is paused for half a
  day between two steps, or clocks of the place and of the processes that differ by hours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final
from uuid import uuid4

import msgspec

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.snapshots.holders import ClaimHolder, holder_of, this_process
from millwheel.snapshots.location import SnapshotFolder, SnapshotLocation

__all__ = ["CLAIMS", "Claim", "ClaimKind", "claim"]

CLAIMS: Final = "_claims"
COUNTS_FOR: Final = timedelta(hours=24)
_WORK: Final = timedelta(hours=12)


class ClaimKind(Enum):
    """What a claim is for. Many may write at a time, and many may delete."""

    WRITING = "writing"
    DELETING = "deleting"


class Claim:
    """A claim that holds."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._until = datetime.now(UTC) + _WORK

    def check(self) -> None:
        """Raise RequestError (ABORTED) if the work has taken so long that the claim may count no longer."""
        if datetime.now(UTC) > self._until:
            hours = _WORK // timedelta(hours=1)
            raise RequestError(
                FailureCode.ABORTED, f"{self._where}: this took more than {hours} hours", "use a faster location"
            )


@asynccontextmanager
async def claim(location: SnapshotLocation, kind: ClaimKind) -> AsyncIterator[Claim]:
    """Claim the location while the block runs.

    Raises:
        RequestError: Another process does the other kind of work there (ABORTED, LOCATION_IN_USE).
    """
    folder, name = location.shared(CLAIMS), f"{kind.value}-{uuid4().hex}"
    held = Claim(location.text)
    try:
        # It may be there also if this fails or is cancelled.
        await folder.write(name, msgspec.json.encode(this_process()))
        others = {one: at for one, (_, at) in (await folder.files()).items() if not one.startswith(kind.value)}
        for one, at in sorted(others.items()):
            if datetime.now(UTC) - at < COUNTS_FOR and (holder := await _holder(folder, one)) is not None:
                raise _in_use(location, one, at, holder)
            await folder.remove(one)
        yield held
    finally:
        # If this fails, the claim ends by its age.
        with suppress(RequestError):
            await folder.remove(name)


async def _holder(folder: SnapshotFolder, name: str) -> ClaimHolder | None:
    """The process that has another claim. None: the claim has ended, or its process has."""
    try:
        holder = holder_of(await folder.read(name))
    except RequestError as error:
        if error.code is not FailureCode.NOT_FOUND:
            raise
        return None
    ended = holder.is_gone() and await asyncio.to_thread(folder.is_of_this_host)
    return None if ended else holder


def _in_use(location: SnapshotLocation, name: str, at: datetime, holder: ClaimHolder) -> RequestError:
    doing = "written" if name.startswith(ClaimKind.WRITING.value) else "deleted"
    return RequestError(
        FailureCode.ABORTED,
        f"{location.text}: a snapshot is being {doing} there since {at:%Y-%m-%d %H:%M:%S} UTC, by {holder}",
        f"try again when that has ended. If the process is gone, delete the file {CLAIMS}/{name} of the location",
        reason="LOCATION_IN_USE",
    )
