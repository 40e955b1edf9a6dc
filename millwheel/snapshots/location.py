"""Where snapshots are kept: a directory, or a bucket of an object store (by obstore).

A snapshot is a folder of its location. Its manifest is written last, so a folder without one is not a snapshot.

obstore's calls run on threads of Python. Its own asynchronous calls wake the event loop from other threads. Such a
thread aborts the process if Python ends at that moment.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["MANIFEST", "SnapshotFolder", "SnapshotLocation"]

MANIFEST: Final = "manifest.json"

_SCHEMES: Final = frozenset(("file", "memory", "s3", "gs", "az"))
"""Others of obstore are no places for snapshots. The master would ask any web server, for example."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class SnapshotLocation:
    """A directory or a bucket with snapshots."""

    def __init__(self, text: str) -> None:
        """
        Args:
            text: A path, or a URL: ``file:///backups``, ``s3://bucket/prefix``, ``gs://…``, ``az://…``.

        Raises:
            RequestError: It is no location.
        """
        self.text = text
        self._directory = _directory_of(text)
        with _explained(text):
            self._store: ObjectStore = from_url(text) if self._directory is None else LocalStore("/")

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
        return SnapshotFolder(
            f"{self.text}, snapshot {name}", self._store, self._path(name), self._directory is not None
        )

    async def names(self) -> list[str]:
        """The names of all snapshots, sorted."""
        prefix = self._path("")
        with _explained(self.text):
            listed = await asyncio.to_thread(obstore.list_with_delimiter, self._store, prefix or None)
        found = (one.rstrip("/").rpartition("/")[2] for one in sorted(listed["common_prefixes"]))
        return [name for name in found if _NAME.fullmatch(name) and await self.folder(name).exists()]

    def _path(self, name: str) -> str:
        return name if self._directory is None else f"{str(self._directory).lstrip('/')}/{name}".rstrip("/")


class SnapshotFolder:
    """The files of one snapshot."""

    def __init__(self, where: str, store: ObjectStore, path: str, local: bool) -> None:
        self.where = where
        self._store = store
        self._path = path
        self._local = local

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
        """Write a file. In a directory it is on the disk when this returns."""
        with _explained(f"{self.where}, file {path}"):
            await asyncio.to_thread(obstore.put, self._store, f"{self._path}/{path}", content)
            if self._local:
                await asyncio.to_thread(_sync, Path("/", self._path, path))

    async def read(self, path: str) -> bytes:
        """The content of a file; RequestError (NOT_FOUND) if there is none."""
        with _explained(f"{self.where}, file {path}"):
            return await asyncio.to_thread(self._get, f"{self._path}/{path}")

    def _get(self, path: str) -> bytes:
        return bytes(obstore.get(self._store, path).bytes())


def _directory_of(text: str) -> Path | None:
    """The directory that a location names. None: it is in an object store."""
    if "://" not in text:
        if not text:
            raise RequestError(
                FailureCode.INVALID_ARGUMENT, "the snapshots' location is empty", "name a directory or a URL"
            )
        return Path(os.path.abspath(text))  # noqa: PTH100  # without links resolved: the server may have other ones
    try:
        url = urlsplit(text)
    except ValueError:
        raise _no_location("the snapshots' location is no URL") from None
    if url.scheme not in _SCHEMES:
        raise _no_location(f"a snapshots' location cannot begin with {url.scheme}://")
    if url.username is not None or url.query or url.fragment:
        # The text is not repeated: it may have a secret.
        raise _no_location("the URL of the snapshots' location has more than a host and a path")
    return Path(os.path.abspath(unquote(url.path))) if url.scheme == "file" else None  # noqa: PTH100


def _no_location(what: str) -> RequestError:
    return RequestError(
        FailureCode.INVALID_ARGUMENT,
        what,
        "name a directory, or file://, s3://, gs:// or az://; credentials come from the environment of the process",
        reason="LOCATION_INVALID",
    )


def _sync(file: Path) -> None:
    for path in (file, file.parent):
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
