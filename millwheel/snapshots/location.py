"""Where snapshots are kept: a directory, or a bucket of an object store (by obstore).

A snapshot is a folder of its location with a manifest. The manifest is written last, so a folder without one is not a
snapshot. The contents are chunks, which all snapshots of the location share (``chunks.py``).

obstore's calls run on threads of Python. Its own asynchronous calls wake the event loop from other threads. Such a
thread aborts the process if Python ends at that moment.

Invariant: nothing changes a location after the call for it has ended. A cancellation ends no thread, so a cancelled
write or removal is waited for. Otherwise it could go on without a claim (``claims.py``): put a file that was not synced
in the place of a later one that was, or delete that one.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from millwheel.config.locations import Place, parse_place
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.snapshots.allowed import ANYWHERE, AllowedPlaces
from millwheel.snapshots.file_systems import is_of_this_host

__all__ = ["MANIFEST", "SnapshotFolder", "SnapshotLocation"]

MANIFEST: Final = "manifest.json"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""A snapshot's name, and the name of a file in it: one component of a path."""


class SnapshotLocation:
    """A directory or a bucket with snapshots."""

    def __init__(self, text: str, allowed: AllowedPlaces = ANYWHERE) -> None:
        """
        Args:
            text: A path, or a URL: ``file:///backups``, ``s3://bucket/prefix``, ``gs://…``, ``az://…``.
            allowed: The places below which snapshots may be.

        Raises:
            RequestError: It is no location, or it is not allowed.
        """
        self.text = text
        self._allowed = allowed
        try:
            self._place = parse_place(text)
        except ValueError as error:
            raise _no_location(str(error)) from None
        allowed.resolve(self._place, f"location {text}")
        with _explained(text):
            self._store: ObjectStore = from_url(text) if self._place.directory is None else LocalStore("/")

    def folder(self, name: str) -> SnapshotFolder:
        """The folder of a snapshot. It may not exist.

        Raises:
            RequestError: A snapshot cannot have this name.
        """
        if not _NAME.fullmatch(name):
            raise RequestError(
                FailureCode.INVALID_ARGUMENT,
                f"{name!r} is no name of a snapshot",
                "begin with a letter or digit, and go on with those, '.', '_' and '-'",
            )
        return self._folder(name, f"{self.text}, snapshot {name}")

    def shared(self, name: str) -> SnapshotFolder:
        """A folder of the location itself. Its name begins with '_', as that of no snapshot does."""
        assert name.startswith("_")
        return self._folder(name, f"{self.text}, folder {name}")

    def _folder(self, name: str, where: str) -> SnapshotFolder:
        if self._place.directory is None:
            return SnapshotFolder(self, where, self._store, name, local=False)
        place = Place("file", "", (*self._place.parts, name))
        path = "/".join(self._allowed.resolve(place, where).parts)
        return SnapshotFolder(self, where, self._store, path, local=True)

    async def names(self) -> list[str]:
        """The names of all snapshots, sorted."""
        prefix = "" if self._place.directory is None else "/".join(self._place.parts)
        with _explained(self.text):
            listed = await asyncio.to_thread(obstore.list_with_delimiter, self._store, prefix or None)
        found = (one.rstrip("/").rpartition("/")[2] for one in sorted(listed["common_prefixes"]))
        return [name for name in found if _NAME.fullmatch(name) and await self.folder(name).exists()]


class SnapshotFolder:
    """The files of one snapshot, or those that a location's snapshots share."""

    def __init__(self, location: SnapshotLocation, where: str, store: ObjectStore, path: str, local: bool) -> None:
        self.location = location
        self.where = where
        self._store = store
        self._path = path
        self.is_local = local
        """Whether it is a directory, on any file system."""

    def is_of_this_host(self) -> bool:
        """Whether it is a directory of a file system of this host alone."""
        return self.is_local and is_of_this_host(Path("/", self._path))

    async def exists(self) -> bool:
        """Whether the snapshot is complete: its manifest is there."""
        try:
            await asyncio.to_thread(obstore.head, self._store, f"{self._path}/{MANIFEST}")
        except FileNotFoundError:
            return False
        except (BaseError, OSError) as error:
            raise _refused(self.where, error) from error
        return True

    async def write(self, path: str, content: bytes) -> None:
        """Write a file. In a directory it is on the disk when this returns. If cancelled, this ends after the write."""
        with _explained(f"{self.where}, file {path}"):
            self._check(path)
            await _to_the_end(lambda: self._put(path, content))

    async def read(self, path: str) -> bytes:
        """The content of a file; RequestError (NOT_FOUND) if there is none."""
        with _explained(f"{self.where}, file {path}"):
            self._check(path)
            return await asyncio.to_thread(self._get, f"{self._path}/{path}")

    async def files(self) -> dict[str, tuple[int, datetime]]:
        """The files: their sizes in bytes, and when they were written, by the clock of the place."""
        with _explained(self.where):
            return await asyncio.to_thread(self._list)

    def _list(self) -> dict[str, tuple[int, datetime]]:
        listed = (one for some in obstore.list(self._store, self._path) for one in some)
        return {one["path"].rpartition("/")[2]: (one["size"], one["last_modified"]) for one in listed}

    async def remove(self, path: str) -> None:
        """Delete a file. Idempotent. In a directory the deletion is on the disk when this returns.

        If cancelled, this ends after the deletion.
        """
        with _explained(f"{self.where}, file {path}"):
            self._check(path)
            await _to_the_end(lambda: self._delete(path))

    def _check(self, path: str) -> None:
        """Refuse a file that is elsewhere. A manifest, which anybody may have written, names the files."""
        if not _NAME.fullmatch(path):
            raise RequestError(
                FailureCode.DATA_LOSS,
                f"{self.where}: its manifest names a file {path!r}, and no file of a snapshot has such a name",
                "use another snapshot",
                reason="SNAPSHOT_DAMAGED",
            )
        if self.is_local and Path("/", self._path, path).is_symlink():
            raise PermissionError("it is a symbolic link, and a snapshot has none")

    def _put(self, path: str, content: bytes) -> None:
        obstore.put(self._store, f"{self._path}/{path}", content)
        if self.is_local:
            written = Path("/", self._path, path)
            _sync(written, *written.parents[:2])

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            obstore.delete(self._store, f"{self._path}/{path}")
        if self.is_local:
            _sync(Path("/", self._path))

    def _get(self, path: str) -> bytes:
        return bytes(obstore.get(self._store, path).bytes())


def _no_location(what: str) -> RequestError:
    return RequestError(
        FailureCode.INVALID_ARGUMENT,
        what,
        "name a directory, or file://, s3://, gs:// or az://; credentials come from the environment of the process",
        reason="LOCATION_INVALID",
    )


async def _to_the_end(change: Callable[[], None]) -> None:
    """Run a call in a thread until it has ended, also if this is cancelled.

    obstore bounds the time that it takes in an object store.
    """
    changing = asyncio.get_running_loop().run_in_executor(None, change)
    cancelled: asyncio.CancelledError | None = None
    while not changing.done():
        try:
            await asyncio.wait([changing])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        changing.exception()  # this ends with the cancellation
        raise cancelled
    changing.result()


def _sync(*paths: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _explained(where: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        raise _refused(where, error) from error


def _refused(where: str, error: Exception) -> RequestError:
    why = str(error).partition("\n")[0]
    if isinstance(error, FileNotFoundError):
        return RequestError(
            FailureCode.NOT_FOUND, f"{where}: not found", "`millwheel snapshot list` shows the snapshots of a location"
        )
    denied = isinstance(error, PermissionError)
    code = FailureCode.PERMISSION_DENIED if denied else FailureCode.UNAVAILABLE
    return RequestError(code, f"{where}: {why}", "see that the process that reports this can reach it")
