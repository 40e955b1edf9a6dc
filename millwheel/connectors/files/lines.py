"""The reader of a file of lines: JSON lines, CSV, or lines as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from millwheel.connectors.files.calls import on_thread
from millwheel.connectors.files.errors import FilesError
from millwheel.connectors.files.parsing import FileFormat, LineError, OpenQuoteError, leaves_quote_open, split_lines
from millwheel.connectors.files.position import FilePosition, Inside, digest_of
from millwheel.connectors.files.records import LineReader
from millwheel.connectors.files.storage import FileInfo, Storage
from millwheel.connectors.files.texts import Text, open_text
from millwheel.connectors.source import BadRecord, Read, SplitReader, UnreadRecord
from millwheel.model.time import Timestamp

__all__ = ["LONGEST_LINE", "READ_BYTES", "READ_LINES", "LinesReader"]

T = TypeVar("T")

READ_BYTES: Final = 256 << 10
READ_LINES: Final = 5_000
"""The most of one read, if no line is longer."""
LONGEST_LINE: Final = 4 << 20
"""The most bytes of a line that can be a record."""
_HEADER_BYTES: Final = 64 << 10
"""The most bytes of a CSV file's header."""
_HEAD_BYTES: Final = 4 << 10
_BEFORE_BYTES: Final = 1 << 10
"""What is compared when a file is opened again: so much of its beginning, and of what is before the position."""
_RAW_BYTES: Final = 1_000
"""The most bytes of a bad record that its stream gets."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class _OnTheWay(NamedTuple):
    """A file on the way to the position."""

    info: FileInfo
    text: Text
    beginning: bytes


class _OpenLines(NamedTuple):
    """A file that was opened. ``reader``: None until the header of a CSV file is whole."""

    info: FileInfo
    text: Text
    reader: LineReader | None


class LinesReader(SplitReader[T, FilePosition]):
    """Reads lines from a position on.

    *Invariant (G1): a line has the same place whenever it is read.* Who may break it: a process that changes a part of
    the file that was read. So its beginning and what is before the position are compared at each opening, and in a file
    that grows after each change.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        form: FileFormat,
        reader_of: Callable[[bytes], LineReader],
        position: FilePosition,
        closed: Callable[[FileInfo], bool] | None,
    ) -> None:
        """
        Args:
            storage: Where the file is.
            path: Its name there.
            form: Its format.
            reader_of: What reads its lines, by the header of a CSV file.
            position: Where to begin.
            closed: Of a file that grows: whether it has had its last change. None: it does not grow.
        """
        self._storage = storage
        self._path = path
        self._csv = form is FileFormat.CSV
        self._reader_of = reader_of
        self._position = position
        self._closed = closed
        self._on_the_way: _OnTheWay | None = None
        self._open: _OpenLines | None = None
        self._head = b""
        self._before = b""
        """The beginning of what is before the position, and its end."""

    async def read(self) -> Read[T, FilePosition]:
        return await on_thread(self._read)

    async def close(self) -> None:
        self._on_the_way = self._open = None

    def _read(self) -> Read[T, FilePosition]:
        opened = self._open
        if opened is None or self._closed is not None:
            info = self._storage.stat(self._path)
            if opened is None or info != opened.info:
                opened = self._open = self._opened(info)
        if opened is None:  # the way to the position is long
            return Read([], self._position, behind=1)
        closed = self._closed is None or self._closed(opened.info)
        if opened.reader is None:
            ended = closed and self._is_unchanged()
            return Read([], self._position, ended=ended, behind=min(opened.info.size, 1))
        return self._next(opened.text, opened.reader, closed)

    def _opened(self, info: FileInfo) -> _OpenLines | None:
        """Open the file, and see that it is the one that was read. None: the next read goes on with that."""
        offset = self._position.offset
        if self._on_the_way is None or self._on_the_way.info != info:
            text = open_text(self._storage, info)
            beginning = text.at(0, _HEADER_BYTES if self._csv else _HEAD_BYTES) if offset or self._csv else b""
            self._on_the_way = _OnTheWay(info, text, beginning)
        _, text, beginning = self._on_the_way
        start = max(offset - _BEFORE_BYTES, 0)
        if not text.is_at(start):
            return None
        self._on_the_way = None
        head, before = beginning[: min(_HEAD_BYTES, offset)], text.at(start, offset - start)
        if offset and (len(before) < offset - start or digest_of(head, before) != self._position.digest):
            raise FilesError(
                f"{self._name}: its first {offset:,} bytes of text are not those that were read. A file must not be "
                "replaced, cut or changed, and a rotated one must keep its name. Put the former content back, and new "
                "content under a new name. If it is lost, read another stream, whose pattern leaves this file out"
            )
        self._head, self._before = head, before
        return _OpenLines(info, text, self._reader(beginning))

    def _reader(self, beginning: bytes) -> LineReader | None:
        """What reads the lines. A CSV file begins behind its header."""
        header = b""
        if self._csv:
            end = beginning.find(b"\n") + 1
            if not end and len(beginning) == _HEADER_BYTES:
                raise FilesError(
                    f"{self._name}: its first line is no header of CSV: it has over {_HEADER_BYTES:,} bytes"
                )
            if not end:
                return None
            header = beginning[:end].rstrip(b"\r\n").removeprefix(_BYTE_ORDER_MARK)
            if not self._position.offset:
                self._move(beginning[:end], 1, Inside.NOTHING)
        try:
            return self._reader_of(header)
        except LineError as error:
            raise FilesError(f"{self._name}, line 1: {error}") from error

    def _next(self, text: Text, reader: LineReader, closed: bool) -> Read[T, FilePosition]:
        position, asked = self._position, READ_BYTES
        data = text.at(position.offset, asked)
        if len(data) == asked and b"\n" not in data:
            asked = LONGEST_LINE + 1
            data = text.at(position.offset, asked)
        ended = closed and len(data) < asked and self._is_unchanged()
        records: list[tuple[Any, Timestamp | None]] = []
        numbers = [position.line + 1]
        if position.inside is Inside.LINE:
            size = data.find(b"\n") + 1
            self._move(data[:size] or data, int(size > 0), Inside.NOTHING if size else Inside.LINE)
        elif len(data) > LONGEST_LINE and b"\n" not in data:
            error = f"the line has more than {LONGEST_LINE:,} bytes: is the file of this format?"
            records.append((self._bad(position.line + 1, error, data), None))
            self._move(data, 0, Inside.LINE)
        else:
            lines, size = split_lines(data, ended=ended)
            values, numbers, count, inside = self._parsed(reader, lines[:READ_LINES])
            if count < len(lines):
                size = sum(map(len, lines[:count])) + count
            records = [(value, None) for value in values]
            self._move(data[:size], count, inside)
        ended = ended and self._position.offset == position.offset + len(data)
        behind = text.left(self._position.offset, self._position.line)
        if ended:
            self._open = None  # a decompressor is large
        return Read(records, self._position, ended=ended, behind=behind, places=lambda index: f"line {numbers[index]}")

    def _is_unchanged(self) -> bool:
        """Whether the file is as it was when it was opened. Otherwise it is opened again: it may have grown."""
        if self._open is not None and self._storage.stat(self._path) == self._open.info:
            return True
        self._open = None
        return False

    def _parsed(self, reader: LineReader, lines: list[bytes]) -> tuple[list[Any], list[int], int, Inside]:
        """The records of the first lines, each one's number, how many lines it took, and what they leave open.

        Their number is limited, and not that of the lines: a read grows again when it has as many as it may.
        """
        number, inside = self._position.line, self._position.inside
        values: list[Any] = []
        numbers: list[int] = []
        most = min(reader.most_records, self.most_records)
        for one in lines:
            if len(values) == most:
                break
            number += 1
            line = one.removesuffix(b"\r")
            if number == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            if inside is Inside.QUOTES:
                values.append(self._bad(number, "it begins inside the quotes of a line before it", line))
                inside = Inside.QUOTES if leaves_quote_open(line) else Inside.NOTHING
            elif line.strip():
                try:
                    values.append(reader.read(line, number))
                except LineError as error:
                    values.append(self._bad(number, str(error), line))
                    inside = Inside.QUOTES if isinstance(error, OpenQuoteError) else Inside.NOTHING
            if len(values) > len(numbers):
                numbers.append(number)
        return values, numbers, number - self._position.line, inside

    def _bad(self, number: int, error: str, line: bytes) -> BadRecord:
        return UnreadRecord(self._path, f"line {number}", error, line[:_RAW_BYTES])

    def _move(self, content: bytes, lines: int, inside: Inside) -> None:
        """The place is behind ``content``."""
        position = self._position
        self._head = (self._head + content[:_HEAD_BYTES])[:_HEAD_BYTES]
        self._before = (self._before + content[-_BEFORE_BYTES:])[-_BEFORE_BYTES:]
        digest = digest_of(self._head, self._before)
        self._position = FilePosition(position.offset + len(content), position.line + lines, inside, digest)

    @property
    def _name(self) -> str:
        return self._storage.name(self._path)
