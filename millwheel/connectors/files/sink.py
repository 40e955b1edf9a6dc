"""A sink of files: each batch is a file, or one in each partition."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from os import PathLike
from typing import Any, Final, Generic, Literal, TypeVar
from urllib.parse import quote

import msgspec

from millwheel.connectors.files.calls import on_thread
from millwheel.connectors.files.encoding import encoder_of
from millwheel.connectors.files.errors import FilesError
from millwheel.connectors.files.places import Root, parse_root
from millwheel.connectors.files.progress import file_name, progress_path, raised
from millwheel.connectors.files.storage import Storage, Stored, storage_of
from millwheel.connectors.progress import ShardProgress
from millwheel.connectors.sink import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.model.time import Timestamp, to_datetime
from millwheel.sdk.errors import UsageError
from millwheel.sdk.typeinfo import field_of, type_name

__all__ = ["write_files"]

T = TypeVar("T")

_TIMES: Final = {"day": "date=%Y-%m-%d/", "hour": "date=%Y-%m-%d/hour=%H/"}
"""The folders of a time, in UTC."""
_LONGEST_VALUE: Final = 100
"""The most characters of a value in the name of a folder. A longer one is cut, and has a digest."""
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""The value of a partition that has none, as programs of the field write it."""


def write_files(
    folder: str | PathLike[str],
    record_type: type[T],
    *,
    format: Literal["jsonl", "jsonl.gz", "parquet"] = "jsonl",
    by_time: Literal["day", "hour"] | None = None,
    by: str | None = None,
) -> Sink[T]:
    """A sink that writes each batch as a file, in a directory or in a bucket of an object store.

    A file is never seen in part, and each record is in exactly one of them. With partitions, a batch has a file in each
    partition of its records, and they appear one after the other.

    For example, hourly folders of Parquet files::

        lake = connectors.write_files("s3://shop/orders", Order, format="parquet", by_time="hour")
        orders.to("orders-lake", lake, batch_records=10_000, batch_delay=mw.minutes(1))

    Args:
        folder: An absolute path, or ``s3://``, ``gs://`` or ``az://``. The workers write it. Its folder
            ``_millwheel`` has the progress of each shard.
        record_type: The type of the records.
        format: The format of the files, and the ending of their names.
        by_time: Folders by the event time in UTC: ``date=2026-01-01/``, and ``hour=12/`` below it.
        by: Folders by a field, below those of the time: ``country=NO/``.

    Raises:
        UsageError: The folder, the type or an option cannot be used.
    """
    root, fields = parse_root(folder), None if by is None else field_of(record_type, by.partition(".")[0])
    encoder_of(format, record_type)
    if by_time is not None and by_time not in _TIMES:
        raise UsageError(f"by_time is one of {', '.join(_TIMES)}, and not {by_time!r}")
    if isinstance(fields, str):
        raise UsageError(f"by={by!r} is no field of {type_name(record_type)}: {fields}")
    return _FilesSink(root, record_type, format, by_time, by)


@dataclass(frozen=True, slots=True)
class _FilesSink(Sink[T], Generic[T]):
    root: Root
    record_type: Any
    format: str
    by_time: str | None
    by: str | None

    async def open_writer(self, place: SinkShard) -> SinkWriter[T]:
        storage = storage_of(self.root)
        await on_thread(storage.clean)
        return _FilesWriter(self, storage, place)

    def folder_of(self, value: T, at: Timestamp) -> str:
        """The folder of a record: empty, or with a slash at its end."""
        times = "" if self.by_time is None else _time_folder(_TIMES[self.by_time], at)
        return times + ("" if self.by is None else _value_folder(self.by, value))


class _FilesWriter(SinkWriter[T]):
    """Writes the batches of a shard.

    *Invariant (G1): the progress is the newest batch of which a file may be there.* It is raised before the first file,
    from the batch before, and by one process: a directory has a lock, and a bucket compares versions. The batch that is
    the progress is written again when it comes again: its files have the same names. Who may break it: a process that
    was paused between the progress and a file. It wakes up later, and replaces the file by the same.
    """

    def __init__(self, sink: _FilesSink[T], storage: Storage, place: SinkShard) -> None:
        self._storage = storage
        self._place = place
        self._path = progress_path(place)
        self._ending = sink.format
        self._encoder = encoder_of(sink.format, sink.record_type)
        self._folder_of = sink.folder_of
        self._stored: Stored | None = None
        self._loaded = False

    async def write(self, batch: SinkBatch[T]) -> None:
        await on_thread(partial(self._write, batch))

    def _write(self, batch: SinkBatch[T]) -> None:
        name = file_name(self._place, batch.number, self._ending)
        parts: dict[str, list[T]] = {}
        for value, at in batch.records:
            parts.setdefault(self._folder_of(value, at), []).append(value)
        # A record that cannot be encoded leaves everything as it is.
        contents = {folder + name: self._encoder.encode(values) for folder, values in parts.items()}
        self._raise_progress(batch)
        for path, content in contents.items():
            self._storage.write(path, content)

    def _raise_progress(self, batch: SinkBatch[T]) -> None:
        if not self._loaded:
            self._stored, self._loaded = self._storage.load(self._path), True
        found = None if self._stored is None else self._decoded(self._stored.content)
        progress = raised(found, self._place, batch, self._storage.name(self._path))
        if progress is not found:
            self._stored = self._storage.replace(self._path, msgspec.json.encode(progress), self._stored)

    def _decoded(self, content: bytes) -> ShardProgress:
        try:
            return msgspec.json.decode(content, type=ShardProgress)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FilesError(
                f"{self._storage.name(self._path)} is no progress of a sink ({error}): put its former content back, or "
                "write to a sink of another name"
            ) from error


def _time_folder(form: str, at: Timestamp) -> str:
    try:
        return to_datetime(at).strftime(form)
    except (OverflowError, ValueError):  # before the year 1, or after 9999
        return re.sub("%[^/]*", _NO_VALUE, form)


def _value_folder(field: str, value: Any) -> str:
    """The folder of a value. Everything that a path or a query could read in another way is escaped."""
    found = value.get(field) if isinstance(value, Mapping) else attrgetter(field)(value)
    text = "" if found is None else str(msgspec.to_builtins(found))
    name = quote(text, safe="") or _NO_VALUE
    if len(name) > _LONGEST_VALUE:
        name = f"{name[:_LONGEST_VALUE]}-{blake2b(text.encode(), digest_size=8).hexdigest()}"
    return f"{field}={name}/"
