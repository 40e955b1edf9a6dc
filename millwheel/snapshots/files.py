"""The files of a snapshot: MessagePack arrays of moderate size, each with its checksum in the manifest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, TypeVar
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
    """Writes items to files ``PATH-1``, ``PATH-2`` and so on.

    Where a file ends depends on the names of its own items alone. So after a change the files before and behind it are
    those of the snapshot before, and are not written again.
    """

    def __init__(self, writer: ChunkWriter, path: str) -> None:
        self.files: list[wire.SnapshotFile] = []
        self._writer = writer
        self._path = path
        self._items: list[Any] = []
        self._size = 0

    async def add(self, item: PartItem | bytes | RowItem, size: int, name: bytes) -> None:
        """Write an item of about ``size`` bytes, at the latest with ``close``. Its ``name`` never changes."""
        self._items.append(item)
        self._size += size
        # The chance is in proportion to the size, so files have about the mean size for items of any size.
        ends = crc32(name) * _MEAN_BYTES < size << 32
        if self._size >= MAX_BYTES or (ends and self._size >= _MIN_BYTES):
            await self.close()

    async def close(self) -> None:
        """Write what is not written yet."""
        if self._items:
            items, self._items, self._size = self._items, [], 0
            content = await asyncio.to_thread(encode_items, items)
            self.files.append(await self._writer.write(f"{self._path}-{len(self.files) + 1}", content))


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
