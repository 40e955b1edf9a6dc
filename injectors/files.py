"""The file injector of figure 10: JSON lines, CSV or raw lines from files that may still grow (section 5.2).

A record is known by its source, which is the injector process unless it names another, by its file, and by its byte
offset in it; or by an id in one of its fields. Read again, after a crash or by an injector without a checkpoint, but of
the same source, it has no second effect. A file is known by its full path and its first line; files grow at their ends,
and earlier lines stay as they are. Where a checkpoint shows that they did not, the file is refused.

The oldest file is read first, and the injector low watermark is that of the oldest unfinished one.

A run that ends, whether well or by an error, leaves its process idle if all that it sent is ACKed: no low watermark
waits for it. Else the process stays active, as its records may not be in. Only ``finish`` ends the process's part of
the stream for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from millwheel.client.injector import Injector, InjectorSupersededError
from millwheel.client.injector.likelihood import (
    OLDEST_USUAL,
    UNIT_NANOSECONDS,
    any_timestamp_default,
    is_likely,
    unlikely,
)
from millwheel.core.time import MIN_TIMESTAMP, Duration
from millwheel.core.wording import counted
from millwheel.injectors.checkpoints import FileStart, load_checkpoint, save_checkpoint
from millwheel.injectors.errors import RefusedLineError, SourceError
from millwheel.injectors.identity import HEAD_BYTES, ContentHash, partition_name
from millwheel.injectors.parsing import (
    ColumnType,
    FileFormat,
    LineError,
    LineParser,
    OpenQuoteError,
    TimestampField,
    column_hint,
    leaves_quote_open,
    read_id,
)
from millwheel.injectors.progress import FileProgress, ReadingProgress
from millwheel.injectors.skipped import SkippedLines
from millwheel.sdk.errors import KeyExtractionError, MillwheelError, TooLargeError, UsageError, ValueEncodeError

__all__ = ["FileInjector", "FileSettings", "SourceError", "check_files"]

log = logging.getLogger("millwheel.injectors")

_READ_BYTES: Final = 256 << 10
_LONGEST_LINE: Final = 4 << 20
_SAVE_SECONDS: Final = 1.0
_LEAVE_SECONDS: Final = 5.0
"""How long a run that has failed tries to leave its process idle."""
_MAX_WARNINGS: Final = 10
_UNIT_OPTIONS: Final = {unit: f"--unit {unit}" for unit in UNIT_NANOSECONDS}
_RAW_TYPES: Final = ("bytes", "str", "Any", "")
"""The types of streams that raw lines may feed."""
_NONE: Final = Duration(0)
_TEN_SECONDS: Final = Duration(10_000_000)


class _Row(NamedTuple):
    """A line that is a record, and where it begins."""

    offset: int
    line: bytes
    value: Any
    timestamp: int
    id: str | None


class _BadLine(NamedTuple):
    """A line that is no record of the stream."""

    offset: int
    line: bytes
    error: MillwheelError


class _Source(NamedTuple):
    """A file that is read. ``head``: its first bytes, which an append does not change. ``header``: that of CSV."""

    path: Path
    partition: str
    head: bytes
    header: bytes
    parser: LineParser
    content: ContentHash


@dataclass(frozen=True, slots=True)
class FileSettings:
    """Where records are read, and how.

    ``pattern``: relative to ``root``, as ``*.jsonl`` or ``**/*.log``. ``timestamp``: the field with a record's time;
    None gives every record of a file the time of the file's creation. ``id_field``: the dotted path of the field with a
    record's id; it is then known by that, and not by its place in a file. ``disorder``: how much older than an earlier
    record of its file a record may be. ``tail``: go on with what is appended, and with new files; else read
    what is there. ``finish``: then finish the process, so that the low watermark passes everything; it takes no more
    records. ``any_timestamp``: take times before 1980 and more than a year ahead, too. ``quiet``: in a tail, for
    how long a file that was read to its end may still hold the watermark back. ``poll``: seconds between looks for
    news. ``checkpoint``: a file that remembers how far everything is ACKed, so that a restart need not read it
    all again. ``skip_bad``: pass over lines that are no records, with a warning, instead of stopping at them. Empty
    lines are passed over anyway. ``skipped_to``: a new file that takes those lines; it implies ``skip_bad``.
    ``types``: the CSV columns that are not text.
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
    """See that there is something to read: SourceError if no file matches."""
    if not _sizes(settings.root, settings.pattern):
        raise SourceError(f"no file in {settings.root} matches {settings.pattern!r}: nothing is injected")


class FileInjector:
    """Reads files into an open :class:`Injector`, which must be used for nothing else."""

    def __init__(
        self, injector: Injector, settings: FileSettings, wall: Callable[[], int] = lambda: time.time_ns() // 1_000
    ) -> None:
        """``wall`` gives the time in microseconds.

        SourceError if there is a checkpoint that cannot be read, or the file for skipped lines cannot take them.
        """
        if settings.form is FileFormat.LINES and settings.timestamp is not None:
            raise UsageError("raw lines have no fields to read a timestamp from: name another format")
        if settings.form is FileFormat.LINES and settings.id_field:
            raise UsageError("raw lines have no fields to read an id from: name another format")
        if settings.finish and settings.tail:
            raise UsageError("a tail has no end at which to finish: choose either finish or tail")
        self.records = 0
        """Records handed to the injector."""
        self.skipped = 0
        """Lines that were no records."""
        self._injector = injector
        self._settings = settings
        self._wall = wall
        self._progress = ReadingProgress(settings.disorder, settings.quiet if settings.tail else 0)
        self._sources: dict[str, _Source] = {}
        self._starts = load_checkpoint(settings.checkpoint)
        self._skips = settings.skip_bad or settings.skipped_to is not None
        self._skipped_lines = None if settings.skipped_to is None else SkippedLines(settings.skipped_to)
        self._open_quotes: dict[str, int] = {}
        """By file that is read: where the line begins whose open quote is not closed yet."""
        self._idle = False
        self._saved = 0.0

    @property
    def partitions(self) -> dict[str, str]:
        """By file that is read, named below the root: the partition of its records' positions."""
        return {name: source.partition for name, source in self._sources.items()}

    async def run(self) -> None:
        """Read everything, or follow the files until cancelled.

        Raises:
            SourceError: It names a file and a line that stop the reading. What was read before is in.
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
            await self._step_aside()
            raise RefusedLineError(f"{error}; {self._injected_before()}") from error
        except BaseException:
            await self._step_aside()
            raise
        finally:
            self._save_checkpoint(at_once=True)

    async def _read_all(self) -> None:
        while True:
            looked = time.monotonic()
            await self._look_around()
            await self._publish()
            while (file := self._progress.next_file()) is not None:
                await self._read(file)
                await self._publish()
                self._save_checkpoint()
                if time.monotonic() - looked > self._settings.poll:
                    break
            if self._progress.next_file() is None:
                if not self._settings.tail:
                    return
                await asyncio.sleep(self._settings.poll)

    async def _step_aside(self) -> None:
        """The run has failed: no low watermark is to wait for a process that sends nothing more.

        Records that are not ACKed may not be in. Then the process stays active, and the low watermark behind them.
        """
        injector = self._injector
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await injector.idle()
                await injector.settle()
        except InjectorSupersededError:
            pass  # the process is its successor's now
        except (MillwheelError, TimeoutError) as error:
            log.warning(
                "injector process %s stays active, and low watermarks wait for it (%s): run it again, or end it by "
                "`millwheel injector finish %s %s`",
                injector.process,
                str(error) or "records are not ACKed",
                injector.stream,
                injector.process,
            )

    def _injected_before(self) -> str:
        """How many records the run injected before it stopped."""
        if not self.records:
            return "no record before it was injected"
        count, one = counted(self.records, "record"), self.records == 1
        if self._injector.unacked:
            were = "was sent, and is not ACKed" if one else "were sent, and not all of them are ACKed"
            return f"{count} before it {were}"
        return f"{count} before it {'is' if one else 'are'} in the stream"

    # Files.

    async def _look_around(self) -> None:
        """Find new files, and those that have grown. A new one is asked for its bound before anything more is read."""
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
                self._progress.grew(file.name, self._wall())

    async def _open(self, name: str) -> None:
        """Begin with a file that has its first line; of a CSV file that may grow, the header and a row."""
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
        self._sources[name] = _Source(path, partition, head, header, parser, content)
        lines, _ = await self._lines(name, begin.offset)
        first = self._first_time(name, lines)
        self._progress.found(name, begin.offset, first, self._wall(), at_end=not lines)

    def _first_time(self, name: str, lines: list[tuple[int, bytes]]) -> int | None:
        """The timestamp of the first of ``lines`` that is a record with a likely time."""
        for _, line in lines:
            try:
                return self._parse(name, line)[1]
            except LineError:
                continue  # it is reported when it is read
        return None

    async def _lines(self, name: str, start: int) -> tuple[list[tuple[int, bytes]], int]:
        """The next whole lines from ``start`` on, each with its offset, and where the one after them begins."""
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
        newest = max((row.timestamp for row in sent), default=None)
        last = sent[-1].offset if sent else None
        self._progress.read(file.name, end if bad is None else bad.offset, newest, last, self._wall())
        if bad is not None:
            raise await self._error(file.name, bad)

    def _parse(self, name: str, line: bytes) -> tuple[Any, int, str | None]:
        """A line's value, timestamp and id; LineError if it is no record, or its time is not likely."""
        value, timestamp = self._sources[name].parser.parse(line)
        now = self._wall()
        if not self._settings.any_timestamp and not is_likely(timestamp, now):
            time_field = self._settings.timestamp
            if time_field is None:
                what, unit = "the file's time of creation", "file"
            else:
                what, unit = f"the field {time_field.path!r}", time_field.unit.value
            raise LineError(f"{what}: {unlikely(timestamp, now, _UNIT_OPTIONS, 'give --any-timestamp', unit)}")
        return value, timestamp, read_id(value, self._settings.id_field) if self._settings.id_field else None

    async def _send(self, name: str, rows: list[_Row]) -> tuple[list[_Row], _BadLine | None]:
        """Send records; those that were accepted, and the one that stops the reading, if there is one."""
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
                step = 1  # it is one of the next: which one is seen when they are sent alone
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
        """Skip a line that begins within the quotes of a line that was skipped."""
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
        """Figure 10: the oldest unfinished file's bound. Without unfinished files others need not wait for us (G8)."""
        now = self._wall()
        watermark = self._progress.watermark(now)
        if watermark is not None:
            self._idle = False
            # A large disorder may reach back to before the oldest time that a record may have.
            least = MIN_TIMESTAMP if self._settings.any_timestamp else OLDEST_USUAL
            await self._injector.advance(max(watermark, least))
        elif not self._idle and self._settings.tail and not self._progress.unfinished(now):
            self._idle = True
            await self._injector.idle()

    def _save_checkpoint(self, *, at_once: bool = False) -> None:
        """Remember how far each file is ACKed. To be late with it costs reading, never a record."""
        path, now = self._settings.checkpoint, time.monotonic()
        if path is None or (now - self._saved < _SAVE_SECONDS and not at_once):
            return
        if self._settings.id_field and self._injector.unacked:
            return  # with ids, the injector does not know up to which place in a file everything is ACKed
        self._saved = now
        for file in self._progress:
            source = self._sources[file.name]
            offset = file.restart(self._injector.acknowledged(source.partition))
            # No reading begins within quotes.
            offset = min(offset, self._open_quotes.get(file.name, offset))
            # A file that is gone, or has less than before, stays as it was.
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
    """Hash what a checkpoint has of a file; SourceError if it is not what was read then."""
    if not content.extend(path, begin.offset) or content.digest != begin.digest:
        raise SourceError(
            f"{path}: its first {begin.offset:,} bytes are not those that were injected before, as the checkpoint has "
            "them: nothing of it is injected; files may only be appended to: write changed lines to a file of "
            "their own, or give the file another name to inject all of it as new records"
        )


def _head(path: Path, size: int) -> bytes:
    """The beginning of a file, of whose lines ``size`` bytes are whole."""
    with path.open("rb") as file:
        return file.read(min(size, HEAD_BYTES))


def _check_head(source: _Source, name: str) -> None:
    """SourceError if a file that has grown does not begin as it did."""
    if _head(source.path, len(source.head)) != source.head:
        raise SourceError(
            f"{name}: it was replaced while it was read: its beginning is not what it was; run again to read it as "
            "another file, and write new content under a new name"
        )


def _sizes(root: Path, pattern: str) -> dict[str, int]:
    """The files that are there, with their sizes, by their names below ``root``."""
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
        while offset > 0 and (data := file.read(min(offset, _READ_BYTES))):
            count += data.count(b"\n")
            offset -= len(data)
    return count


def _created(path: Path) -> int:
    """The best that the system tells of when a file was made, in microseconds."""
    state = path.stat()
    return min(state.st_ctime_ns, state.st_mtime_ns) // 1_000


def _read_lines(path: Path, start: int, growing: bool) -> tuple[list[tuple[int, bytes]], int]:
    """The next whole lines, at least one if there is one. In a file that grows, a line needs its end to be whole."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(_READ_BYTES)
        while b"\n" not in data and (more := file.read(_READ_BYTES)):
            data += more
            if len(data) > _LONGEST_LINE:
                raise SourceError(f"{path}, byte {start}: a line of more than {_LONGEST_LINE:,} bytes")
        complete = data.rfind(b"\n") + 1
        if not growing and not file.read(1):
            complete = len(data)
    lines, at = [], start
    # At line feeds alone: a lone carriage return is part of a line.
    for line in data[:complete].split(b"\n"):
        lines.append((at, line.removesuffix(b"\r")))
        at += len(line) + 1
    if data[:complete].endswith(b"\n") or not complete:
        lines.pop()
    return lines, start + complete
