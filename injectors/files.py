"""The file injector of figure 10: JSON lines, CSV or raw lines from files that may still grow (section 5.2).

A record is identified by its source, its file and its byte offset in the file, or by an id in one of its fields. The
source is the injector process, unless the injector names another. So a record that is read again has no second effect:
after a crash, or by an injector without a checkpoint but with the same source.

A file is identified by its full path and its first line. Files may grow at their ends, and earlier lines must stay as
they are. If a checkpoint shows that they changed, the file is refused.

The file with the oldest records is read first. The injector low watermark is the bound of the oldest unfinished file.

At the end of a run, successful or not, the process becomes idle if every sent record is ACKed. Then no low watermark
waits for it. Otherwise the process stays active, because its records may not be delivered. Only ``finish`` ends the
process's part of the stream permanently.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from millwheel.client.injector import Injector
from millwheel.client.injector.likelihood import (
    OLDEST_USUAL_US,
    UNIT_NANOSECONDS,
    any_timestamp_default,
    is_likely,
    unlikely,
)
from millwheel.connectors.files.parsing import (
    ColumnType,
    FileFormat,
    LineError,
    LineParser,
    OpenQuoteError,
    TimestampField,
    column_hint,
    leaves_quote_open,
    read_id,
    split_lines,
)
from millwheel.injectors.checkpoints import FileStart, load_checkpoint, save_checkpoint
from millwheel.injectors.errors import RefusedLineError, SourceError
from millwheel.injectors.identity import HEAD_BYTES, ContentHash, partition_name
from millwheel.injectors.leaving import step_aside
from millwheel.injectors.progress import FileProgress, ReadingProgress
from millwheel.injectors.skipped import SkippedLines
from millwheel.model.time import MIN_TIMESTAMP, Duration
from millwheel.model.wording import counted
from millwheel.rpc.clock import wall_now
from millwheel.sdk.errors import KeyExtractionError, MillwheelError, TooLargeError, UsageError, ValueEncodeError

__all__ = ["FileInjector", "FileSettings", "SourceError", "check_files"]

log = logging.getLogger("millwheel.injectors")

READ_BYTES: Final = 256 << 10
_MAX_LINE_BYTES: Final = 4 << 20
_SAVE_SECONDS: Final = 1.0
_MAX_WARNINGS: Final = 10
_UNIT_OPTIONS: Final = {unit: f"--unit {unit}" for unit in UNIT_NANOSECONDS}
_RAW_TYPES: Final = ("bytes", "str", "Any", "")
"""The record types of streams that accept raw lines."""
_NONE: Final = Duration(0)
_TEN_SECONDS: Final = Duration(10_000_000)


class _Row(NamedTuple):
    """A line that is a record. ``offset``: where the line begins, in bytes."""

    offset: int
    line: bytes
    value: Any
    timestamp: int
    id: str | None


class _BadLine(NamedTuple):
    """A line that is not a record of the stream."""

    offset: int
    line: bytes
    error: MillwheelError


class _SourceFile(NamedTuple):
    """A file that is read. ``head``: its first bytes, which an append does not change. ``header``: the CSV header."""

    path: Path
    partition: str
    head: bytes
    header: bytes
    parser: LineParser
    content: ContentHash


@dataclass(frozen=True, slots=True)
class FileSettings:
    """What a :class:`FileInjector` reads, and how.

    Attributes:
        root: The directory of the files.
        pattern: Files to read, relative to ``root``, such as ``*.jsonl`` or ``**/*.log``.
        form: The format of the lines.
        timestamp: The field with a record's timestamp. None gives every record the time of its file's creation.
        id_field: The dotted path of the field with a record's id. The id then identifies the record, instead of its
            position in a file.
        disorder: How much older than an earlier record of its file a record may be, in microseconds.
        tail: Continue with appended lines and new files. Otherwise read only what exists.
        finish: Finish the process after reading, so that the low watermark passes everything. No more records are
            accepted then.
        any_timestamp: Also accept times before 1980 and more than a year ahead.
        quiet: In a tail, how many microseconds a file that is read to its end may still hold the low watermark.
        poll: Seconds between two checks for new data.
        checkpoint: A file that stores how far every file is ACKed, so that a restart does not read everything again.
        skip_bad: Skip lines that are not records, with a warning, instead of stopping. Empty lines are always skipped.
        skipped_to: A new file to write the skipped lines to. It implies ``skip_bad``.
        types: The CSV columns that are not text.
    """

    root: Path
    pattern: str = "*"
    form: FileFormat = FileFormat.JSONL
    timestamp: TimestampField | None = None
    id_field: str = ""
    disorder: Duration = _NONE
    tail: bool = False
    finish: bool = False
    any_timestamp: bool = field(default_factory=any_timestamp_default)
    quiet: Duration = _TEN_SECONDS
    poll: float = 0.2
    checkpoint: Path | None = None
    skip_bad: bool = False
    skipped_to: Path | None = None
    types: Mapping[str, ColumnType] = field(default_factory=dict)


def check_files(settings: FileSettings) -> None:
    """Raise SourceError if no file matches."""
    if not _sizes(settings.root, settings.pattern):
        raise SourceError(f"no file in {settings.root} matches {settings.pattern!r}: nothing is injected")


class FileInjector:
    """Reads files into an open :class:`Injector`. Nothing else may use that injector."""

    def __init__(self, injector: Injector, settings: FileSettings) -> None:
        """Create a file injector.

        Args:
            injector: The injector, which must be open.
            settings: What to read, and how.

        Raises:
            SourceError: The checkpoint cannot be read, or the skipped lines cannot be written.
            UsageError: Settings contradict each other.
        """
        if settings.form is FileFormat.LINES and settings.timestamp is not None:
            raise UsageError("raw lines have no fields to read a timestamp from: name another format")
        if settings.form is FileFormat.LINES and settings.id_field:
            raise UsageError("raw lines have no fields to read an id from: name another format")
        if settings.finish and settings.tail:
            raise UsageError("a tail has no end at which to finish: choose either finish or tail")
        self.records = 0
        """Records accepted by the injector."""
        self.skipped = 0
        """Lines that were not records."""
        self._injector = injector
        self._settings = settings
        self._progress = ReadingProgress(settings.disorder, settings.quiet if settings.tail else 0)
        self._sources: dict[str, _SourceFile] = {}
        self._starts = load_checkpoint(settings.checkpoint)
        self._skips = settings.skip_bad or settings.skipped_to is not None
        self._skipped_lines = None if settings.skipped_to is None else SkippedLines(settings.skipped_to)
        self._open_quotes: dict[str, int] = {}
        """By file: the offset of the line with an open quote that is not closed yet."""
        self._idle = False
        self._saved = 0.0

    @property
    def found_disorder(self) -> Duration:
        """How much older than an earlier record of its file a record has been, at most. In microseconds."""
        return Duration(self._progress.found_disorder)

    async def run(self) -> None:
        """Read all files, or follow them until cancelled.

        Raises:
            SourceError: A line or a file stops the reading; the error names it. Records before it may be accepted.
            InjectorError: The injector has stopped.
        """
        try:
            if not self._settings.tail:
                await asyncio.to_thread(check_files, self._settings)
            await self._read_all()
            if self._settings.finish:
                await self._injector.finish()
            else:
                await self._injector.idle()
        except RefusedLineError as error:
            await step_aside(self._injector)
            raise RefusedLineError(f"{error}; {self._injected_before()}") from error
        except BaseException:
            await step_aside(self._injector)
            raise
        finally:
            self._save_checkpoint(at_once=True)

    async def _read_all(self) -> None:
        while True:
            found_at = time.monotonic()
            await self._find_files()
            await self._publish()
            while (file := self._progress.next_file()) is not None:
                await self._read(file)
                await self._publish()
                self._save_checkpoint()
                if time.monotonic() - found_at > self._settings.poll:
                    break
            if self._progress.next_file() is None:
                if not self._settings.tail:
                    return
                await asyncio.sleep(self._settings.poll)

    def _injected_before(self) -> str:
        """How many records the run injected before it stopped, as text."""
        if not self.records:
            return "no record before it was injected"
        count, one = counted(self.records, "record"), self.records == 1
        if self._injector.unacked:
            were = "was sent, and is not ACKed" if one else "were sent, and not all of them are ACKed"
            return f"{count} before it {were}"
        return f"{count} before it {'is' if one else 'are'} in the stream"

    # Files.

    async def _find_files(self) -> None:
        """Find new files, and files that have grown. The bound of a new file is known before anything else is read."""
        found = await asyncio.to_thread(_sizes, self._settings.root, self._settings.pattern)
        for name in found:
            if name not in self._progress:
                await self._open(name)
        for file in self._progress:
            size = found.get(file.name)
            if size is None and file.at_end:
                self._progress.gone(file.name)
            elif size is None or size < file.offset:
                raise SourceError(
                    f"{file.name}: {size or 0:,} bytes, but {file.offset:,} were read: files must not be truncated, "
                    "replaced, or removed before their end is read; write new content under a new name"
                )
            elif file.at_end and size > file.offset and (await self._lines(file.name, file.offset))[0]:
                await asyncio.to_thread(_check_head, self._sources[file.name], file.name)
                self._progress.grew(file.name, wall_now())

    async def _open(self, name: str) -> None:
        """Start with a file once its first line is complete. A CSV file that may grow also needs its first row."""
        lines, end = await self._lines(name, 0)
        csv = self._settings.form is FileFormat.CSV
        if not lines or (csv and self._settings.tail and len(lines) == 1):
            return
        self._open_quotes.pop(name, None)
        header, first_line = (lines[0][1], lines[1][0] if len(lines) > 1 else end) if csv else (b"", 0)
        identity = [line for _, line in lines[: 2 if csv else 1]]
        path = await asyncio.to_thread((self._settings.root / name).resolve)
        partition = partition_name(str(path), identity)
        content = ContentHash()
        begin = self._starts.get(partition)
        if begin is None:
            begin = FileStart(first_line, await asyncio.to_thread(_created, path), "")
            await asyncio.to_thread(content.extend, path, first_line)
            begin.digest = content.digest
            self._starts[partition] = begin
        else:
            await asyncio.to_thread(_check_content, content, path, begin)
        try:
            parser = LineParser(
                self._settings.form,
                self._settings.timestamp,
                begin.created,
                header,
                self._settings.types,
                text=self._injector.record_type == "str",
            )
        except LineError as error:
            raise SourceError(f"{name}: {error}") from error
        head = await asyncio.to_thread(_head, path, end)
        self._sources[name] = _SourceFile(path, partition, head, header, parser, content)
        lines, _ = await self._lines(name, begin.offset)
        first = self._first_time(name, lines)
        self._progress.found(name, begin.offset, first, wall_now(), at_end=not lines)

    def _first_time(self, name: str, lines: list[tuple[int, bytes]]) -> int | None:
        """The timestamp of the first of ``lines`` that is a record with a plausible time. None if there is none."""
        for _, line in lines:
            try:
                return self._parse(name, line)[1]
            except LineError:
                continue  # the error is reported when the line is read
        return None

    async def _lines(self, name: str, start: int) -> tuple[list[tuple[int, bytes]], int]:
        """The next complete lines from ``start`` on, with their offsets, and the offset after the last of them."""
        return await asyncio.to_thread(_read_lines, self._settings.root / name, start, self._settings.tail)

    async def _read(self, file: FileProgress) -> None:
        """Inject the next part of a file."""
        lines, end = await self._lines(file.name, file.offset)
        if not lines:
            self._progress.reached_end(file.name)
            return
        rows: list[_Row] = []
        bad: _BadLine | None = None
        for offset, line in lines:
            if file.name in self._open_quotes:
                await self._skip_quoted(file.name, line)
                continue
            if not line.strip():
                continue
            try:
                rows.append(_Row(offset, line, *self._parse(file.name, line)))
            except LineError as error:
                bad = _BadLine(offset, line, error)
                if not self._skips:
                    break
                await self._skip(file.name, bad)
                if isinstance(error, OpenQuoteError):
                    self._open_quotes[file.name] = offset
                bad = None
        sent, refused = await self._send(file.name, rows)
        bad = refused or bad
        timestamps = [row.timestamp for row in sent]
        last = sent[-1].offset if sent else None
        self._progress.read(file.name, end if bad is None else bad.offset, timestamps, last, wall_now())
        if bad is not None:
            raise await self._error(file.name, bad)

    def _parse(self, name: str, line: bytes) -> tuple[Any, int, str | None]:
        """A line's value, timestamp and id. LineError if it is not a record, or its time is implausible."""
        value, timestamp = self._sources[name].parser.parse(line)
        now = wall_now()
        if not self._settings.any_timestamp and not is_likely(timestamp, now):
            time_field = self._settings.timestamp
            if time_field is None:
                what, unit = "the file's time of creation", "file"
            else:
                what, unit = f"the field {time_field.path!r}", time_field.unit.value
            raise LineError(f"{what}: {unlikely(timestamp, now, _UNIT_OPTIONS, 'give --any-timestamp', unit)}")
        return value, timestamp, read_id(value, self._settings.id_field) if self._settings.id_field else None

    async def _send(self, name: str, rows: list[_Row]) -> tuple[list[_Row], _BadLine | None]:
        """Send records. Returns the accepted ones, and the one that stops the reading, if any."""
        sent: list[_Row] = []
        start, step = 0, len(rows)
        while start < len(rows):
            part = rows[start : start + step]
            before = self._injector.accepted
            error: MillwheelError | None = None
            try:
                values, timestamps = [row.value for row in part], [row.timestamp for row in part]
                ids = [row.id for row in part if row.id is not None]
                if ids:
                    await self._injector.send_many(values, timestamps, ids=ids)
                else:
                    positions, partition = [row.offset for row in part], self._sources[name].partition
                    await self._injector.send_many(values, timestamps, positions=positions, partition=partition)
            except (KeyExtractionError, TooLargeError, ValueEncodeError) as found:
                error = found
            count = self._injector.accepted - before
            self._idle = self._idle and not count
            self.records += count
            sent += part[:count]
            start += count
            if error is None:
                step = len(rows)
            elif step > 1:
                step = 1  # one of the next records is faulty: send them one by one to find it
            else:
                bad = _BadLine(rows[start].offset, rows[start].line, error)
                if not self._skips:
                    return sent, bad
                await self._skip(name, bad)
                start += 1
                step = len(rows)
        return sent, None

    async def _skip(self, name: str, bad: _BadLine) -> None:
        if self._skipped_lines is not None:
            await asyncio.to_thread(self._skipped_lines.write, bad.line, self._sources[name].header)
        self.skipped += 1
        if self.skipped <= _MAX_WARNINGS:
            log.warning("skipped: %s", await self._error(name, bad))
        if self.skipped == _MAX_WARNINGS:
            log.warning("lines that are skipped from here on are counted, and not named")

    async def _skip_quoted(self, name: str, line: bytes) -> None:
        """Skip a line that begins inside the quotes of a skipped line."""
        if self._skipped_lines is not None:
            await asyncio.to_thread(self._skipped_lines.write, line, self._sources[name].header)
        self.skipped += 1
        if not leaves_quote_open(line):
            del self._open_quotes[name]

    async def _error(self, name: str, bad: _BadLine) -> RefusedLineError:
        """The error that names a line."""
        number = await asyncio.to_thread(_line_number, self._settings.root / name, bad.offset)
        text = str(bad.error)
        if self._settings.form is FileFormat.CSV:
            text += column_hint(text)
        elif self._settings.form is FileFormat.LINES and self._injector.record_type not in _RAW_TYPES:
            text += "; raw lines are for streams of bytes or str: name another --format"
        return RefusedLineError(f"{name}, line {number:,} (byte {bad.offset}): {text}")

    # Watermark and checkpoint.

    async def _publish(self) -> None:
        """Publish the bound of the oldest unfinished file (figure 10). A tail without such a file becomes idle (G8)."""
        now = wall_now()
        watermark = self._progress.watermark(now)
        if watermark is not None:
            self._idle = False
            # A large ``disorder`` may give a bound before the oldest plausible timestamp.
            least = MIN_TIMESTAMP if self._settings.any_timestamp else OLDEST_USUAL_US
            await self._injector.advance(max(watermark, least))
        elif not self._idle and self._settings.tail and not self._progress.unfinished(now):
            self._idle = True
            await self._injector.idle()

    def _save_checkpoint(self, *, at_once: bool = False) -> None:
        """Store how far each file is ACKed. An old checkpoint costs repeated reading, but no record."""
        path, now = self._settings.checkpoint, time.monotonic()
        if path is None or (now - self._saved < _SAVE_SECONDS and not at_once):
            return
        if self._settings.id_field and self._injector.unacked:
            return  # with ids, the injector does not know the offset up to which everything is ACKed
        self._saved = now
        for file in self._progress:
            source = self._sources[file.name]
            offset = file.restart(self._injector.acknowledged(source.partition))
            # Reading must not start inside quotes.
            offset = min(offset, self._open_quotes.get(file.name, offset))
            # A file that was removed or truncated keeps its entry in the checkpoint.
            with contextlib.suppress(OSError):
                if offset >= source.content.size and source.content.extend(source.path, offset):
                    begin = self._starts[source.partition]
                    begin.offset, begin.digest = offset, source.content.digest
        try:
            save_checkpoint(path, self._starts)
        except OSError as error:
            log.warning(
                "checkpoint %s is not written: %s; a restart has more to read, and injects nothing twice", path, error
            )


def _check_content(content: ContentHash, path: Path, begin: FileStart) -> None:
    """Hash the bytes that a checkpoint covers. SourceError if they differ from those that were read then."""
    if not content.extend(path, begin.offset) or content.digest != begin.digest:
        raise SourceError(
            f"{path}: its first {begin.offset:,} bytes are not those that were injected before, as the checkpoint has "
            "them: nothing of it is injected; files may only be appended to: write changed lines to a file of "
            "their own, or give the file another name to inject all of it as new records"
        )


def _head(path: Path, size: int) -> bytes:
    """The first bytes of a file, at most ``size`` and ``HEAD_BYTES``. ``size``: the end of its complete lines."""
    with path.open("rb") as file:
        return file.read(min(size, HEAD_BYTES))


def _check_head(source: _SourceFile, name: str) -> None:
    """Raise SourceError if the beginning of a file that has grown has changed."""
    if _head(source.path, len(source.head)) != source.head:
        raise SourceError(
            f"{name}: it was replaced while it was read: its beginning is not what it was; run again to read it as "
            "another file, and write new content under a new name"
        )


def _sizes(root: Path, pattern: str) -> dict[str, int]:
    """The sizes of the existing files, by name relative to ``root``."""
    found = {}
    for path in sorted(root.glob(pattern)):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                found[path.relative_to(root).as_posix()] = path.stat().st_size
    return found


def _line_number(path: Path, offset: int) -> int:
    """The number of the line that begins at ``offset``, counted from 1."""
    count = 1
    with path.open("rb") as file:
        while offset > 0 and (data := file.read(min(offset, READ_BYTES))):
            count += data.count(b"\n")
            offset -= len(data)
    return count


def _created(path: Path) -> int:
    """The best available estimate of a file's creation time, in microseconds."""
    state = path.stat()
    return min(state.st_ctime_ns, state.st_mtime_ns) // 1_000


def _read_lines(path: Path, start: int, growing: bool) -> tuple[list[tuple[int, bytes]], int]:
    """The next complete lines, at least one if there is one. In a growing file, a complete line has a line feed."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(READ_BYTES)
        while b"\n" not in data and (more := file.read(READ_BYTES)):
            data += more
            if len(data) > _MAX_LINE_BYTES:
                raise SourceError(f"{path}, byte {start}: a line of more than {_MAX_LINE_BYTES:,} bytes")
        found, complete = split_lines(data, ended=not growing and not file.read(1))
    lines, at = [], start
    for line in found:
        lines.append((at, line.removesuffix(b"\r")))
        at += len(line) + 1
    return lines, start + complete
