"""A source of files: each of them is a split."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import blake2b
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeVar, overload

from millwheel.connectors.files.calls import on_thread
from millwheel.connectors.files.errors import FilesError, load_parquet
from millwheel.connectors.files.lines import LinesReader
from millwheel.connectors.files.parsing import FileFormat
from millwheel.connectors.files.places import FilePattern, parse_pattern
from millwheel.connectors.files.position import FilePosition
from millwheel.connectors.files.records import PARQUET, LineReader, PlaceFields, RecordType, format_of
from millwheel.connectors.files.rows import RowsReader
from millwheel.connectors.files.storage import FileInfo, storage_of
from millwheel.connectors.files.texts import is_compressed
from millwheel.connectors.source import Source, SplitReader, Splits
from millwheel.connectors.starts import checked_start
from millwheel.connectors.table_reads import plain_fields
from millwheel.model.time import Duration, Timestamp, format_timestamp
from millwheel.rpc.clock import wall_now
from millwheel.sdk.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

__all__ = ["MAX_FILES", "Format", "read_files"]

T = TypeVar("T")

Format = Literal["jsonl", "csv", "lines", "parquet"]

_MAX_NAME: Final = 512
"""The most bytes of a split's name."""
MAX_FILES: Final = 100_000
"""The most splits of a source."""


@overload
def read_files(
    pattern: str | PathLike[str],
    record_type: type[T],
    *,
    format: Format | None = ...,
    watch: bool = ...,
    follow: Duration | None = ...,
    start: Literal["earliest"] | datetime | Timestamp = ...,
    file_field: str = ...,
    line_field: str = ...,
) -> Source[T, Any]: ...
@overload
def read_files(
    pattern: str | PathLike[str],
    record_type: TypeForm[T],
    *,
    format: Format | None = ...,
    watch: bool = ...,
    follow: Duration | None = ...,
    start: Literal["earliest"] | datetime | Timestamp = ...,
    file_field: str = ...,
    line_field: str = ...,
) -> Source[T, Any]: ...
def read_files(
    pattern: str | PathLike[str],
    record_type: Any,
    *,
    format: Format | None = None,
    watch: bool = False,
    follow: Duration | None = None,
    start: Literal["earliest"] | datetime | Timestamp = "earliest",
    file_field: str = "",
    line_field: str = "",
) -> Source[Any, Any]:
    """A source of files, in a directory or in a bucket of an object store.

    Each file is a split. Its position is a byte, or a row of a Parquet file. So a file must stay as it is, or only grow
    if ``follow`` says so.

    For example, all orders that a shop uploads, hour by hour::

        orders = topology.source(
            "orders", Order, connectors.read_files("s3://shop/orders/**/*.jsonl.gz", Order, watch=True), timestamp="at"
        )

    Args:
        pattern: An absolute path, or ``s3://``, ``gs://`` or ``az://``, with the wildcards ``*``, ``?`` and ``[...]``,
            and ``**`` for folders of any depth. A wildcard stands for no ``.`` or ``_`` at the beginning of a name.
            Names that end in ``.gz`` or ``.zst`` are of compressed files.
        record_type: What a line or a row is: the type of the stream.
        format: ``jsonl`` (one JSON value a line), ``csv`` (with a header), ``lines`` (str or bytes) or ``parquet``. By
            default, the ending of the name says it.
        watch: Whether more files will come. Otherwise the stream ends with the files that are there at the beginning.
        follow: Files grow at their ends. A file that has not changed for so long, in microseconds, has ended. By
            default, a file is whole when it is found.
        start: Which files are read: all, or those that were changed at this time or later (a datetime with a time zone,
            or a Timestamp). A file that is found is read from its beginning.
        file_field: The field that gets the name of the file, relative to the first folder with a wildcard.
        line_field: The field that gets the number of the line or row, from 1 on.

    Raises:
        UsageError: The pattern, the type or an option cannot be used.
    """
    where = parse_pattern(pattern)
    form = format_of(where.parts[-1], format)
    columns = PlaceFields(file_field, line_field)
    RecordType(record_type, form, columns)
    if form == PARQUET:
        load_parquet()
    given: object = follow
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        raise UsageError(
            f"follow is a Duration: after so long without a change, a file has ended. It is not {follow!r}"
        )
    if follow is not None and (form == PARQUET or is_compressed(where.parts[-1])):
        raise UsageError(f"{where.parts[-1]!r}: only files of plain lines can grow: leave follow= out")
    begins = checked_start(start)
    if begins == "latest":
        raise UsageError("files have no start='latest': give the time since which a file must have been changed")
    return _FilesSource(where, record_type, form, watch, follow, 0 if begins == "earliest" else begins, columns)


_LONGEST_SHOWN: Final = 400
"""The most characters of an identity that people can read. An identity has up to 512."""


@dataclass(frozen=True, slots=True)
class _FilesSource(Source[T, FilePosition], Generic[T]):
    _says_times: ClassVar[bool] = False
    pattern: FilePattern
    record_type: Any
    form: str
    watch: bool
    follow: int | None
    since: int
    columns: PlaceFields

    def identity(self) -> str:
        """The files and their format. The type may get new fields, for example."""
        text = f"files {self.pattern} as {self.form}, {'more' if self.watch else 'no more'} to come"
        if len(text) <= _LONGEST_SHOWN:
            return text
        return f"{text[:_LONGEST_SHOWN]}... ({blake2b(text.encode(), digest_size=16).hexdigest()})"

    def _why_one_by_one(self, record_type: Any) -> str:
        if self.form != PARQUET:
            return f"files of {self.form} have no columns"
        if record_type != self.record_type:
            return "its type is not that of the files' rows"
        fields = plain_fields(record_type)
        return fields if isinstance(fields, str) else ""

    async def splits(self) -> Splits:
        names = await on_thread(partial(storage_of(self.pattern.root).find, self.pattern.parts, self.since))
        if not names and not self.watch:
            since = f" and was changed since start=, {format_timestamp(Timestamp(self.since))}" if self.since else ""
            raise FilesError(
                f"no file matches {self.pattern}{since}: put one there, or give watch=True if files come later"
            )
        if len(names) > MAX_FILES:
            raise FilesError(
                f"{len(names):,} files match {self.pattern}, and a stream reads {MAX_FILES:,} at most: make several "
                "streams with narrower patterns, such as one for each month, or fewer and larger files"
            )
        for name in names:
            if not name.isprintable() or len(name.encode(errors="surrogateescape")) > _MAX_NAME:
                raise FilesError(
                    f"{self.pattern.root}: the name {name!r} has over {_MAX_NAME} bytes, or other characters than "
                    "printable ones in UTF-8: rename the file, or leave it out of the pattern"
                )
        return Splits(names, final=not self.watch)

    async def open_reader(self, split: str, position: FilePosition | None) -> SplitReader[T, FilePosition]:
        storage, begin = storage_of(self.pattern.root), position or FilePosition()
        record_type = RecordType(self.record_type, self.form, self.columns)
        if self.form == PARQUET:
            return RowsReader(storage, split, record_type, self.columns, begin)
        if self.follow is not None and is_compressed(split):
            raise FilesError(
                f"{storage.name(split)} is compressed, and only files of plain lines can grow: leave it out of the "
                "pattern of follow=, and read it by another source"
            )
        reader_of = partial(LineReader, record_type, self.form, self.columns, split)
        closed = None if self.follow is None else partial(_is_closed, self.follow)
        return LinesReader(storage, split, FileFormat(self.form), reader_of, begin, closed)


def _is_closed(follow: int, info: FileInfo) -> bool:
    return wall_now() - info.modified >= follow
