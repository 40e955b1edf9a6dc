"""The files of a snapshot: MessagePack arrays of moderate size, each with its checksum in the manifest."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, TypeVar

import msgspec

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.location import SnapshotFolder

__all__ = ["FileSeries", "PartItem", "RowItem", "decode_items", "encode_items", "read_file", "read_items", "write_file"]

FILE_BYTES: Final = 4 << 20
"""A file is closed when its items reach this size. One item is at most some megabytes larger."""


class PartItem(msgspec.Struct, array_like=True, frozen=True):
    """A base part, or a part of a divided entry."""

    name: str
    sequencer: int
    commit: int
    blob: bytes


class RowItem(msgspec.Struct, array_like=True, frozen=True):
    """A state row."""

    key: bytes
    commit: int
    blob: bytes


Item = TypeVar("Item", PartItem, bytes, RowItem)
"""Plain bytes are a journal entry. Entries follow each other from the first one above the truncation point."""

encode_items = msgspec.msgpack.Encoder().encode
"""The content of a file with a list of items."""


class FileSeries:
    """Writes items to files ``PATH-1``, ``PATH-2`` and so on."""

    def __init__(self, folder: SnapshotFolder, path: str) -> None:
        self.files: list[wire.SnapshotFile] = []
        self._folder = folder
        self._path = path
        self._items: list[Any] = []
        self._size = 0

    async def add(self, item: PartItem | bytes | RowItem, size: int) -> None:
        """Write an item of about ``size`` bytes, at the latest with ``close``."""
        self._items.append(item)
        self._size += size
        if self._size >= FILE_BYTES:
            await self.close()

    async def close(self) -> None:
        """Write what is not written yet."""
        if self._items:
            items, self._items, self._size = self._items, [], 0
            content = await asyncio.to_thread(encode_items, items)
            self.files.append(await write_file(self._folder, f"{self._path}-{len(self.files) + 1}", content))


async def write_file(folder: SnapshotFolder, path: str, content: bytes) -> wire.SnapshotFile:
    """Write a file. Returns its entry in the manifest."""
    await folder.write(path, content)
    return wire.SnapshotFile(path=path, size_bytes=len(content), sha256=await _checksum(content))


async def _checksum(content: bytes) -> str:
    """SHA-256, on a thread: the server's event loop has other work."""
    return (await asyncio.to_thread(hashlib.sha256, content)).hexdigest()


async def read_file(folder: SnapshotFolder, file: wire.SnapshotFile) -> bytes:
    """The content of a file; RequestError (DATA_LOSS) if it is not the one that was written."""
    content = await folder.read(file.path)
    if len(content) != file.size_bytes or await _checksum(content) != file.sha256:
        raise RequestError(
            FailureCode.DATA_LOSS,
            f"{folder.where}, file {file.path}: it is damaged: {len(content)} bytes with another checksum",
            "use another snapshot, or another copy of this one",
            reason="SNAPSHOT_DAMAGED",
        )
    return content


async def read_items(
    folder: SnapshotFolder, files: Iterable[wire.SnapshotFile], type_: type[Item]
) -> AsyncIterator[Item]:
    """The items of a series of files."""
    for file in files:
        for item in decode_items(await read_file(folder, file), type_):
            yield item


def decode_items(content: bytes, type_: type[Item]) -> list[Item]:
    """The items of a file, whose checksum was compared."""
    items: list[Item] = msgspec.msgpack.decode(content, type=list[type_])  # type: ignore[valid-type]
    return items
