"""The files of a snapshot: MessagePack arrays of moderate size, each with its checksum in the manifest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, Self, TypeVar
from zlib import crc32

import msgspec

from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.chunks import ChunkWriter, read_file
from millwheel.snapshots.location import SnapshotFolder

__all__ = ["FileSeries", "PartItem", "RowItem", "decode_items", "encode_items", "read_items"]

_MIN_BYTES: Final = 256 << 10
_MEAN_BYTES: Final = 768 << 10
MAX_BYTES: Final = 4 << 20
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
    """Writes items to files ``PATH-1``, ``PATH-2`` and so on. While one is written, the next one is filled.

    Where a file ends depends on the names of its own items alone. So after a change the files before and behind it are
    those of the snapshot before, and are not written again.

    All is written at the end of its ``async with`` block. If the block raises, a write that runs is waited for, and no
    other one begins.
    """

    def __init__(self, writer: ChunkWriter, path: str) -> None:
        self.files: list[wire.SnapshotFile] = []
        self._writer = writer
        self._path = path
        self._items: list[Any] = []
        self._size = 0
        self._complete: list[list[Any]] = []
        """The items of files that nothing has begun to write."""
        self._writing: asyncio.Task[wire.SnapshotFile] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._end_file()
            await self.write()
            await self._written()
        elif self._writing is not None:
            self._writing.cancel()  # it ends when no thread writes any more: see location.py
            await asyncio.gather(self._writing, return_exceptions=True)

    def add(self, item: PartItem | bytes | RowItem, size: int, name: bytes) -> None:
        """Add an item of about ``size`` bytes. Its ``name`` never changes. Call ``write`` soon."""
        self._items.append(item)
        self._size += size
        # The chance is in proportion to the size, so files have about the mean size for items of any size.
        ends = crc32(name) * _MEAN_BYTES < size << 32
        if self._size >= MAX_BYTES or (ends and self._size >= _MIN_BYTES):
            self._end_file()

    def _end_file(self) -> None:
        if self._items:
            self._complete.append(self._items)
            self._items, self._size = [], 0

    async def write(self) -> None:
        """Write the files that are complete. Returns when the last one of them has begun, so at most one waits (G13).

        Raises:
            RequestError: One could not be written.
        """
        complete, self._complete = self._complete, []
        for items in complete:
            await self._written()
            self._writing = asyncio.create_task(self._write(items, f"{self._path}-{len(self.files) + 1}"))

    async def _write(self, items: list[Any], path: str) -> wire.SnapshotFile:
        return await self._writer.write(path, await asyncio.to_thread(encode_items, items))

    async def _written(self) -> None:
        """Wait for the file that is being written."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            self.files.append(await writing)


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
