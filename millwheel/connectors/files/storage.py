"""What can be done with files: in a directory, and in a bucket (by obstore). All calls block.

obstore is loaded when the first bucket is used.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millwheel.connectors.files.errors import FilesError
from millwheel.connectors.files.places import EVERY_DEPTH, Root, is_match, is_one_match

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from obstore.store import ObjectStore

__all__ = ["BucketStorage", "DirectoryStorage", "FileInfo", "RangeFile", "Storage", "Stored", "storage_of"]

_REFUSES: Final = re.compile(r"\b(401 Unauthorized|403 Forbidden)\b")
_REFUSED: Final = (
    "The store refuses the worker's account: correct what the worker's environment says of it, such as "
    "AWS_ACCESS_KEY_ID, or let the account read and write there"
)
_RETRIES: Final = timedelta(seconds=40)
"""How long a request to an object store is repeated. A call of a connector has a minute."""
_STALE_SECONDS: Final = 3_600.0
"""A part of a file that is so old was left by a process that is gone."""
_NOT_OURS: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL)
"""Errors of a sync of a folder that this process cannot have made."""
_PARTS: Final = "_millwheel/parts"
"""The folder of files that are being written."""


class FileInfo(NamedTuple):
    """A file as it is now.

    Attributes:
        path: Its path below the root.
        size: In bytes.
        version: Another one means that another file has its name. An append to a file of a directory leaves it.
        modified: When it was changed last, in microseconds.
    """

    path: str
    size: int
    version: str
    modified: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A small file that processes replace in turn. ``version``: what a bucket compares, by the names of obstore."""

    content: bytes
    version: Mapping[str, str] = field(default_factory=dict)


class Storage(ABC):
    """The files below a root. Paths are relative to it."""

    chunk: int
    """How many bytes are worth one call."""

    def __init__(self, root: Root) -> None:
        self.root = root

    @abstractmethod
    def find(self, parts: Sequence[str], since: int = 0) -> list[str]:
        """The files that match a pattern, sorted. FilesError if the root cannot be listed.

        ``since``: only those that were changed at this time or later, in microseconds.
        """

    @abstractmethod
    def stat(self, path: str) -> FileInfo:
        """FilesError if there is no such file."""

    @abstractmethod
    def read(self, info: FileInfo, start: int, length: int) -> bytes:
        """Bytes of a file, fewer at its end. FilesError if another file has its name by now."""

    @abstractmethod
    def write(self, path: str, content: bytes) -> None:
        """Write a file, or replace it. It is never seen in part, and it is durable when this returns."""

    @abstractmethod
    def load(self, path: str) -> Stored | None:
        """A small file. None: there is none."""

    @abstractmethod
    def replace(self, path: str, content: bytes, former: Stored | None) -> Stored:
        """Write a small file in place of ``former``. FilesError if another process has changed it."""

    def clean(self) -> None:  # noqa: B027  # a bucket has nothing to clean
        """Remove what processes that are gone have left."""

    def name(self, path: str) -> str:
        """A path for people."""
        return f"{str(self.root).rstrip('/')}/{path}"

    def changed(self, path: str) -> FilesError:
        """The error of :meth:`replace`."""
        return FilesError(
            f"{self.name(path)}: another process has changed it meanwhile. If this goes on, two topologies of one name "
            "write to this folder: end one of them"
        )


class DirectoryStorage(Storage):
    """A directory."""

    chunk = 64 << 10

    def __init__(self, root: Root) -> None:
        super().__init__(root)
        self._rooted = False
        """Whether the entry of the root is on the disk, and those of the folders above it."""

    def find(self, parts: Sequence[str], since: int = 0) -> list[str]:
        try:
            names = sorted(set(_walk(self._path(""), "", parts)))
            return names if since <= 0 else [name for name in names if _modified(self._path(name)) >= since]
        except OSError as error:
            raise FilesError(f"{error.filename}: {error.strerror}: the files of the pattern are below it") from error

    def stat(self, path: str) -> FileInfo:
        with self._explained(path), _gone(self.name(path)):
            return _info(path, self._path(path).stat())

    def read(self, info: FileInfo, start: int, length: int) -> bytes:
        path = self._path(info.path)
        with self._explained(info.path), _gone(self.name(info.path)), path.open("rb", buffering=0) as file:
            if _info(info.path, os.fstat(file.fileno())).version != info.version:
                raise FilesError(f"{self.name(info.path)} was replaced while it was read: it is looked at again")
            content = b""
            while len(content) < length and (more := os.pread(file.fileno(), length - len(content), start)):
                content += more
                start += len(more)
            return content

    def write(self, path: str, content: bytes) -> None:
        # The name is drawn: two processes may write the same file at one time.
        part, target = self._path(f"{_PARTS}/{secrets.token_hex(12)}"), self._path(path)
        with self._explained(path):
            for folder in (part.parent, target.parent):
                folder.mkdir(parents=True, exist_ok=True)
            try:
                with part.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(target)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            self._sync_above(target)

    def keep(self, paths: Sequence[str]) -> None:
        """Let files that a library has written be there after a loss of power. Those that are gone are left out."""
        targets = [target for path in paths if (target := self._path(path)).exists()]
        with self._explained(""):
            for target in targets:
                with suppress(FileNotFoundError):
                    _sync(target)
            self._sync_above(*targets)

    def _sync_above(self, *targets: Path) -> None:
        """Let files be found after a loss of power.

        Each folder is an entry of the one above it, and another process may have made it a moment ago.
        """
        root = self._path("")
        for folder in dict.fromkeys(folder for target in targets for folder in target.parents):
            if folder.is_relative_to(root):
                _sync(folder)
            elif not self._rooted:
                try:
                    _sync(folder)
                except OSError as error:
                    if error.errno not in _NOT_OURS:
                        raise
        self._rooted = True

    def load(self, path: str) -> Stored | None:
        with self._explained(path):
            try:
                return Stored(self._path(path).read_bytes())
            except FileNotFoundError:
                return None

    def replace(self, path: str, content: bytes, former: Stored | None) -> Stored:
        lock = self._path(f"{path}.lock")
        with self._explained(path):
            lock.parent.mkdir(parents=True, exist_ok=True)
            with lock.open("wb") as held:
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise FilesError(f"{self.name(path)}: another process is changing it: tried again") from error
                if self.load(path) != former:
                    raise self.changed(path)
                self.write(path, content)
        return Stored(content)

    def clean(self) -> None:
        now = time.time()
        with suppress(OSError):
            for part in self._path(_PARTS).iterdir():
                if now - part.stat().st_mtime > _STALE_SECONDS:
                    part.unlink(missing_ok=True)

    def _path(self, path: str) -> Path:
        return Path(self.root.path or "/", path)

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FilesError(f"{self.name(path)}: {error.strerror or error}") from error


class BucketStorage(Storage):
    """A prefix of a bucket."""

    chunk = 512 << 10

    def __init__(self, root: Root) -> None:
        super().__init__(root)
        self._store = _store_of(root.bucket)

    def find(self, parts: Sequence[str], since: int = 0) -> list[str]:
        import obstore

        prefix = f"{self.root.path}/" if self.root.path else ""
        with self._explained(""):
            listed = obstore.list(self._store, prefix or None, chunk_size=1_000)
            # An object without a byte may stand for a folder, and has no record in any case.
            found = [one for some in listed for one in some if one["size"]]
        paths = [one["path"] for one in found if since <= 0 or _microseconds(one["last_modified"]) >= since]
        names = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
        return sorted(name for name in names if is_match(parts, name.split("/")))

    def stat(self, path: str) -> FileInfo:
        import obstore

        with self._explained(path), _gone(self.name(path)):
            return self._info(path, obstore.head(self._store, self._key(path)))

    def read(self, info: FileInfo, start: int, length: int) -> bytes:
        import obstore

        length = min(length, info.size - start)
        if length <= 0:
            return b""
        with self._explained(info.path), _gone(self.name(info.path)):
            options: Any = {"range": (start, start + length)}
            got = obstore.get(self._store, self._key(info.path), options=options)
            if self._info(info.path, got.meta).version != info.version:
                raise FilesError(f"{self.name(info.path)} was replaced while it was read: it is looked at again")
            return bytes(got.bytes())

    def write(self, path: str, content: bytes) -> None:
        import obstore

        with self._explained(path):
            obstore.put(self._store, self._key(path), content, use_multipart=False)

    def load(self, path: str) -> Stored | None:
        import obstore

        with self._explained(path):
            try:
                got = obstore.get(self._store, self._key(path))
                return Stored(bytes(got.bytes()), self._versions(got.meta))
            except FileNotFoundError:
                return None

    def replace(self, path: str, content: bytes, former: Stored | None) -> Stored:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create" if former is None else dict(former.version)
        with self._explained(path):
            try:
                put = obstore.put(self._store, self._key(path), content, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError, FileNotFoundError) as error:
                # It may be the answer to an attempt whose first answer was lost.
                if (found := self.load(path)) is not None and found.content == content:
                    return found
                raise self.changed(path) from error
            return Stored(content, self._versions(put))

    def _key(self, path: str) -> str:
        return f"{self.root.path}/{path}".removeprefix("/")

    def _info(self, path: str, meta: Any) -> FileInfo:
        return FileInfo(path, meta["size"], self._version(meta), _microseconds(meta["last_modified"]))

    def _versions(self, meta: Any) -> dict[str, str]:
        # S3 and Azure compare the tag, and Google the version.
        return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}

    def _version(self, meta: Any) -> str:
        return meta["e_tag"] or meta["version"] or ""

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            # The rest repeats it, with the structures of the library.
            text = str(error).partition("\n")[0]
            refused = f". {_REFUSED}" if _REFUSES.search(text) else ""
            raise FilesError(f"{self.name(path)}: {text}{refused}") from error


class RangeFile(io.RawIOBase):
    """A file of a storage as one of Python. Nothing is open between two reads."""

    def __init__(self, storage: Storage, info: FileInfo) -> None:
        super().__init__()
        self._storage = storage
        self._info = info
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._info.size)[whence]
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        content = self._storage.read(self._info, self._at, len(view))
        view[: len(content)] = content
        self._at += len(content)
        return len(content)


def storage_of(root: Root) -> Storage:
    """The storage of a root."""
    return BucketStorage(root) if root.bucket else DirectoryStorage(root)


@lru_cache(8)
def _store_of(bucket: str) -> ObjectStore:
    """The store of a bucket, with its connections. Readers of a process share it."""
    from obstore.store import from_url

    try:
        # Options of the client would hide those of the environment, such as AWS_ALLOW_HTTP.
        return from_url(bucket, retry_config={"max_retries": 4, "retry_timeout": _RETRIES})
    except Exception as error:
        raise FilesError(f"{bucket}: {str(error).partition(chr(10))[0]}") from error


def _walk(folder: Path, name: str, parts: Sequence[str]) -> Iterator[str]:
    """The files below a folder that match, by name. Links to folders are not followed by ``**``."""
    first, rest = parts[0], parts[1:]
    if first == EVERY_DEPTH:
        yield from _walk(folder, name, rest)
    with os.scandir(folder) as entries:
        for entry in entries:
            if not is_one_match(first, entry.name):
                continue
            with suppress(FileNotFoundError):  # it went meanwhile
                if first == EVERY_DEPTH:
                    if entry.is_dir(follow_symlinks=False):
                        yield from _walk(folder / entry.name, f"{name}{entry.name}/", parts)
                elif not rest:
                    if entry.is_file():
                        yield name + entry.name
                elif entry.is_dir():
                    yield from _walk(folder / entry.name, f"{name}{entry.name}/", rest)


def _microseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)


def _modified(path: Path) -> int:
    """When a file was changed last, in microseconds. 0: it went meanwhile."""
    try:
        return path.stat().st_mtime_ns // 1_000
    except FileNotFoundError:
        return 0


def _info(path: str, state: os.stat_result) -> FileInfo:
    # An append changes neither.
    return FileInfo(path, state.st_size, f"{state.st_dev}-{state.st_ino}", state.st_mtime_ns // 1_000)


@contextmanager
def _gone(path: str) -> Iterator[None]:
    """What to do about a file that was found, and is gone."""
    try:
        yield
    except FileNotFoundError as error:
        raise FilesError(
            f"{path} is gone before it was read to its end, so it holds the low watermark: put it back. Or read "
            "another stream, whose pattern leaves it out"
        ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
