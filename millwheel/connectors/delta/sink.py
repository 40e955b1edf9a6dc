"""The sink of a table of Delta Lake: each batch is a commit of the table's log."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

from millwheel.connectors.delta.columns import fitting
from millwheel.connectors.delta.errors import DeltaTableError
from millwheel.connectors.delta.progress import found_progress, next_progress, transactions
from millwheel.connectors.files.calls import on_thread
from millwheel.connectors.files.places import Root, parse_root
from millwheel.connectors.files.storage import DirectoryStorage
from millwheel.connectors.progress import ShardProgress
from millwheel.connectors.sink import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.connectors.tables import RowColumns, row_columns
from millwheel.errors import MillwheelError
from millwheel.sdk.errors import UsageError
from millwheel.sdk.typeinfo import type_name

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["NEWEST_SECONDS", "write_delta"]

T = TypeVar("T")

_CLIENT: Final = {"max_retries": "4", "retry_timeout": "40s"}
"""How long a request to an object store is repeated. A call of a connector has a minute."""
_OTHER_COMMITS: Final = 100
"""So many commits of others may come first, one after the other, while a batch is committed."""
_TRIES: Final = 3
"""How often a batch is written because another commit changed the columns, or the progress."""
NEWEST_SECONDS: Final = 60.0
"""How long a version of the table is kept that was the newest. Behind it, a writer reads each commit of others, one by
one, and a clean-up of the log may remove them."""
_ON_DISK: Final = 60_000_000
"""Microseconds within which a system writes a file to the disk by itself."""
_LAST_CHECKPOINT: Final = "_delta_log/_last_checkpoint"
_BREAK: Final = re.compile(r"\s*(?:\x1b\[\d*m)*↳(?:\x1b\[\d*m)*\s*")
"""What is between two causes in an error of the library."""
_SHOWN: Final = 500
"""The most characters that are shown of an error of the library."""


def write_delta(
    table: str | PathLike[str], record_type: type[T], *, partition_by: str | Sequence[str] = (),
    merge_schema: bool = False,
) -> Sink[T]:  # fmt: skip
    """A sink that appends to a table of Delta Lake, in a directory or in a bucket of an object store.

    A batch is one commit, which has its id, too. So readers see all of its records or none, and each record once. A
    table that is not there is made by the first batch.

    For example, orders by country::

        orders.to("orders-table", connectors.write_delta("s3://shop/orders", Order, partition_by="country"))

    Args:
        table: An absolute path, or ``s3://``, ``gs://`` or ``az://``. The workers write it.
        record_type: The type of the records. Its fields are the columns.
        partition_by: The columns by which the table is partitioned.
        merge_schema: Fields of the type that the table has no column for are added to it, and columns that the type
            has no field for are left empty. Otherwise, both are errors of the first write.

    Raises:
        UsageError: The place, the type or an option cannot be used, or ``deltalake`` is not installed.
    """
    root, by = parse_root(table), (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if odd := sorted(set("%?#").intersection(str(root))):
        raise UsageError(f"the place of a table has no {' or '.join(odd)}: its files could not be found by their URLs")
    _check_library()
    _check_partitions(row_columns(record_type), by, record_type)
    return _DeltaSink(root, record_type, by, merge_schema)


def _check_library() -> None:
    try:
        import deltalake  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "a table of Delta Lake needs deltalake and pyarrow: install openmillwheel[delta], here and on the workers"
        ) from error


def _check_partitions(columns: RowColumns, by: tuple[str, ...], record_type: Any) -> None:
    from pyarrow import types

    plain = (types.is_string, types.is_integer, types.is_boolean, types.is_date, types.is_timestamp)
    names = [field.name for field in columns.schema if any(test(field.type) for test in plain)]
    if unknown := [name for name in by if name not in names]:
        raise UsageError(
            f"a table of {type_name(record_type)} cannot be partitioned by {', '.join(unknown)}: columns of texts, "
            f"whole numbers, truth values and times are {', '.join(names) or 'not there'}"
        )
    if len(set(by)) < len(by) or len(by) == len(columns.schema):
        raise UsageError(f"partition_by={list(by)} names a column twice, or all columns: name some of them")


@dataclass(frozen=True, slots=True)
class _DeltaSink(Sink[T]):
    root: Root
    record_type: Any
    partition_by: tuple[str, ...]
    merge_schema: bool

    async def open_writer(self, place: SinkShard) -> SinkWriter[T]:
        _check_library()
        return _DeltaWriter(self, place)


class _DeltaWriter(SinkWriter[T]):
    """Writes the batches of a shard.

    *Invariant (G1): the progress in the table is the newest batch whose records are there.* Both are one commit. It is
    made on the version of the table in which the progress was read. deltalake refuses it if a later commit set the
    progress of this shard. Who may break it: a write of records by anything but such a commit, and a snapshot of the
    table that is loaded again without its progress. So a table is never made with records: deltalake would write on
    the version that another process made meanwhile, unread.
    """

    def __init__(self, sink: _DeltaSink[T], place: SinkShard) -> None:
        self._sink = sink
        self._place = place
        self._uri = str(sink.root) if sink.root.bucket else Path(sink.root.path or "/").as_uri()
        self._directory = None if sink.root.bucket else DirectoryStorage(sink.root)
        self._columns = row_columns(sink.record_type)
        self._table: DeltaTable | None = None
        self._found: ShardProgress | None = None
        """The progress in the version of the table that ``_table`` is."""
        self._newest_at = 0.0
        """When that version was the newest, by the monotonic clock."""
        self._kept = -1
        """The version up to which a table in a directory is on the disk."""

    async def write(self, batch: SinkBatch[T]) -> None:
        await on_thread(partial(self._write, batch))

    def _write(self, batch: SinkBatch[T]) -> None:
        from deltalake.exceptions import CommitFailedError

        # A record that cannot be encoded leaves everything as it is.
        rows = batch.to_arrow(self._sink.record_type)
        with _explained(self._sink.root):
            for tried in range(1, _TRIES + 1):
                now = time.monotonic()
                table = self._newest(now, make=not batch.after)
                progress = next_progress(self._found, self._place, batch, str(self._sink.root))
                assert table is not None  # else there is no progress, and only a first batch follows
                if progress == self._found:
                    self._keep(table)
                    return
                self._table = None  # an error leaves open which batch is there
                try:
                    self._append(table, rows, progress)
                except CommitFailedError:  # of another process, or of this one, whose answer was lost
                    if tried == _TRIES:
                        raise
                    continue
                self._table, self._found, self._newest_at = table, progress, now
                self._keep(table)
                return

    def _newest(self, now: float, *, make: bool) -> DeltaTable | None:
        """The table in a version that is the newest, or was it a moment ago. None: there is no table."""
        if self._table is None or now - self._newest_at >= NEWEST_SECONDS:
            self._newest_at = now
            return self._load(make=make)
        return self._table

    def _load(self, *, make: bool) -> DeltaTable | None:
        """Load the newest version of the table, and the progress that it has. None: there is no table."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        self._table = self._found = None
        try:
            table = DeltaTable(self._uri, storage_options=_CLIENT)
        except TableNotFoundError:
            if not make:
                return None
            table = self._make()
        self._found = found_progress(self._place, table.transaction_version)
        self._table = table
        return table

    def _make(self) -> DeltaTable:
        """Make the table, if no other process does so at this moment."""
        from deltalake import CommitProperties, DeltaTable
        from deltalake.exceptions import CommitFailedError

        # A second attempt would replace the columns of the table that another process has made.
        once = CommitProperties(max_commit_retries=0)
        with suppress(CommitFailedError):
            DeltaTable.create(
                self._uri, schema=self._columns.schema, mode="ignore", partition_by=list(self._sink.partition_by),
                storage_options=_CLIENT, commit_properties=once,
            )  # fmt: skip
        return DeltaTable(self._uri, storage_options=_CLIENT)

    def _append(self, table: DeltaTable, rows: Any, progress: ShardProgress) -> None:
        """Commit a batch. CommitFailedError if another commit came first that it depends on."""
        from deltalake import CommitProperties, Schema, Transaction, write_deltalake

        names, merge = fitting(
            str(self._sink.root),
            json.loads(table.schema().to_json()),
            json.loads(Schema.from_arrow(self._columns.schema).to_json()),
            partitions=(table.metadata().partition_columns, list(self._sink.partition_by)),
            merge=self._sink.merge_schema,
        )
        what = f"millwheel: {self._place.sink}, shard {self._place.shard}, batch {progress.batch}"
        numbers = transactions(self._place, progress)
        properties = CommitProperties(
            custom_metadata={"userMetadata": what},
            max_commit_retries=_OTHER_COMMITS,
            app_transactions=[Transaction(name, number) for name, number in numbers.items()],
        )
        schema_mode: Any = "merge" if merge else None
        write_deltalake(table, rows.select(names), mode="append", schema_mode=schema_mode, commit_properties=properties)

    def _keep(self, table: DeltaTable) -> None:
        """Wait until a table in a directory is on the disk, because deltalake does not.

        A reader needs the commits of others, too, and they may have died before they could wait. It begins with the
        newest checkpoint, which the library writes behind some commits: a broken one hides the whole table.
        """
        if (storage := self._directory) is None:
            return
        last, paths, newest_at = table.version(), list[str](), 0
        for version in range(last, self._kept, -1):
            log = f"_delta_log/{version:020}.json"
            if (commit := storage.load(log)) is None:  # a clean-up has removed it, with those before
                break
            actions = [json.loads(line) for line in commit.content.splitlines()]
            paths += [unquote(action["add"]["path"]) for action in actions if "add" in action]
            paths.append(log)
            written_at = storage.stat(log).modified
            newest_at = max(newest_at, written_at)
            if newest_at - written_at > _ON_DISK:
                break
        if (pointer := storage.load(_LAST_CHECKPOINT)) is not None:
            with suppress(ValueError, KeyError, TypeError):  # it is broken, and readers go without it
                version = json.loads(pointer.content)["version"]
                paths += [_LAST_CHECKPOINT, f"_delta_log/{version:020}.checkpoint.parquet"]
        storage.keep(paths)
        self._kept = last


@contextmanager
def _explained(root: Root) -> Iterator[None]:
    try:
        yield
    except MillwheelError:
        raise
    # A panic of the library's Rust is no Exception.
    except BaseException as error:
        text = " ".join(_BREAK.sub(": ", str(error)).split()) or type(error).__name__
        raise DeltaTableError(f"the table {root}: {text[:_SHOWN]}") from error
