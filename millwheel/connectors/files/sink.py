"""A sink of files: each batch is a file, or one in each partition."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any, Generic, Literal, TypeVar

import msgspec

from millwheel.connectors.contents import BatchRecords
from millwheel.connectors.files.calls import on_thread
from millwheel.connectors.files.encoding import ParquetEncoder, encoder_of
from millwheel.connectors.files.errors import FilesError
from millwheel.connectors.files.layout import TIMES, Layout
from millwheel.connectors.files.places import Root, parse_root
from millwheel.connectors.files.progress import FilesProgress, decode_progress, file_name, progress_path, raised
from millwheel.connectors.files.storage import Storage, Stored, storage_of
from millwheel.connectors.files.table_parts import table_parts
from millwheel.connectors.sink import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.sdk.errors import UsageError
from millwheel.sdk.typeinfo import field_of, type_name

__all__ = ["write_files"]

T = TypeVar("T")


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
    if by_time is not None and by_time not in TIMES:
        raise UsageError(f"by_time is one of {', '.join(TIMES)}, and not {by_time!r}")
    if isinstance(fields, str):
        raise UsageError(f"by={by!r} is no field of {type_name(record_type)}: {fields}")
    return _FilesSink(root, record_type, Layout(format, by_time, by))


@dataclass(frozen=True, slots=True)
class _FilesSink(Sink[T], Generic[T]):
    root: Root
    record_type: Any
    layout: Layout

    async def open_writer(self, place: SinkShard) -> SinkWriter[T]:
        storage = storage_of(self.root)
        await on_thread(storage.clean)
        return _FilesWriter(self, storage, place)


class _FilesWriter(SinkWriter[T]):
    """Writes the batches of a shard.

    *Invariant (G1): the progress is the newest batch of which a file may be there.* It is raised before the first file,
    from the batch before, and by one process: a directory has a lock, and a bucket compares versions. The batch that is
    the progress is written again when it comes again: in the layout that the progress has, so its files have the same
    names also after an update. Who may break it: a process that was paused between the progress and a file. It wakes up
    later, and replaces the file by the same.
    """

    def __init__(self, sink: _FilesSink[T], storage: Storage, place: SinkShard) -> None:
        self._sink = sink
        self._storage = storage
        self._place = place
        self._path = progress_path(place)
        self._encoder = encoder_of(sink.layout.format, sink.record_type)
        self._stored: Stored | None = None
        self._loaded = False

    async def write(self, batch: SinkBatch[T]) -> None:
        await on_thread(partial(self._write, batch))

    def _write(self, batch: SinkBatch[T]) -> None:
        found = self._found()
        progress = raised(found, self._place, batch, self._storage.name(self._path), self._sink.layout)
        # A record that cannot be encoded leaves everything as it is.
        contents = self._contents(batch, progress.layout or self._sink.layout)
        self._raise_progress(found, progress)
        for path, content in contents.items():
            self._storage.write(path, content)

    def _raise_progress(self, former: FilesProgress | None, progress: FilesProgress) -> None:
        if progress is not former:
            self._stored = self._storage.replace(self._path, msgspec.json.encode(progress), self._stored)

    def _contents(self, batch: SinkBatch[T], layout: Layout) -> dict[str, bytes]:
        """The files of the batch, by their paths."""
        name = file_name(self._place, batch.number, layout.format)
        own, kind = self._sink.layout.format, self._sink.record_type
        encoder = self._encoder if layout.format == own else encoder_of(layout.format, kind)
        if isinstance(batch.records, BatchRecords) and isinstance(encoder, ParquetEncoder):
            tables = table_parts(layout, batch.to_arrow(kind), batch.records.times, batch.records.record_type)
            if tables is not None:
                return {folder + name: encoder.encode_table(table) for folder, table in tables.items()}
        parts: dict[str, list[T]] = {}
        if batch.records and not layout.has_folders:
            parts[name] = [value for value, _ in batch.records]
        for value, at in batch.records if layout.has_folders else ():
            parts.setdefault(layout.folder_of(value, at) + name, []).append(value)
        return {path: encoder.encode(values) for path, values in parts.items()}

    def _found(self) -> FilesProgress | None:
        """The progress that is there now."""
        if not self._loaded:
            self._stored, self._loaded = self._storage.load(self._path), True
        return None if self._stored is None else self._decoded(self._stored.content)

    def _decoded(self, content: bytes) -> FilesProgress:
        try:
            return decode_progress(content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FilesError(
                f"{self._storage.name(self._path)} is no progress of a sink ({error}): put its former content back, or "
                "write to a sink of another name"
            ) from error
