"""Sources and sinks of files, as tests use them: read to the end, opened again in between."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millwheel.connectors import BadRecord, Read, Source
from millwheel.connectors.files import lines
from millwheel.connectors.files.position import FilePosition

MAX_READS = 10_000


class Sale(msgspec.Struct):
    item: str
    cents: int


def found(source: Source[Any, Any]) -> list[str]:
    """The splits of a source."""
    return list(asyncio.run(source.splits()).names)


def read_on(
    source: Source[Any, Any],
    split: str,
    position: Any = None,
    reopen: Callable[[int], bool] = lambda read: False,
    empty: int = 0,
) -> Iterator[Read[Any, Any]]:
    """Reads from a position on, as far as the file is there.

    ``reopen``: whether a reader is opened before a read. ``empty``: how many reads without records are no end.
    """

    async def opened() -> Any:
        return await source.open_reader(split, position)

    with asyncio.Runner() as runner:
        reader = runner.run(opened())
        for number in range(MAX_READS):
            if reopen(number):
                runner.run(reader.close())
                # As the state of a key is stored.
                stored = msgspec.msgpack.encode(position)
                position = msgspec.msgpack.decode(stored, type=FilePosition | None)
                reader = runner.run(opened())
            read = runner.run(reader.read())
            position = read.position
            yield read
            empty -= not read.records
            if read.ended or empty < 0:
                break
        runner.run(reader.close())


def values_of(source: Source[Any, Any], split: str, position: Any = None) -> list[Any]:
    """The records of a file that ends."""
    reads = list(read_on(source, split, position))
    assert reads[-1].ended
    assert reads[-1].behind == 0
    return records_of(reads)


def records_of(reads: list[Read[Any, Any]]) -> list[Any]:
    """The records of some reads."""
    return [value for read in reads for value, _ in read.records]


def bad_of(values: list[Any]) -> list[tuple[str, str]]:
    """The bad records: where they are, and what is wrong."""
    return [(one.place, one.error) for one in values if isinstance(one, BadRecord)]


def compressed(content: bytes, ending: str) -> bytes:
    """The content of a file whose name ends so."""
    if ending == ".gz":
        return gzip.compress(content)
    return pa.compress(content, codec="zstd", asbytes=True) if ending == ".zst" else content


@contextmanager
def small_reads(read_bytes: int, read_lines: int = 1_000, longest: int = 1_000) -> Iterator[None]:
    """Reads are small, and so is the longest line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "READ_BYTES", read_bytes)
        patch.setattr(lines, "READ_LINES", read_lines)
        patch.setattr(lines, "LONGEST_LINE", longest)
        yield


@contextmanager
def without_syncs() -> Iterator[pytest.MonkeyPatch]:
    """No machine fails here, and to wait for its disk takes long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield patch


def age(path: Path, seconds: int) -> None:
    """Let a file have had its last change so long ago."""
    changed = path.stat().st_mtime - seconds
    os.utime(path, (changed, changed))


def contents_of(name: str, content: bytes) -> list[dict[str, Any]]:
    """The rows of a file that a sink has written."""
    if name.endswith(".parquet"):
        rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(content)).to_pylist()
        return rows
    content = gzip.decompress(content) if name.endswith(".gz") else content
    return [msgspec.json.decode(line) for line in content.splitlines()]


def files_in(folder: Path) -> dict[str, bytes]:
    """What a reader sees of a folder: its files by name, without those of the sink itself."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in sorted(found.items()) if not name.startswith("_")}


def records_in(folder: Path) -> list[dict[str, Any]]:
    """All rows of a folder."""
    return [row for name, content in files_in(folder).items() for row in contents_of(name, content)]
