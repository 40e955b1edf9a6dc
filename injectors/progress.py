"""How far files are read, and the resulting injector low watermark (section 5.2, figure 10). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub

__all__ = ["FileProgress", "ReadingProgress"]


@dataclass(slots=True)
class FileProgress:
    """One file. Times are microseconds.

    ``offset``: bytes before it were passed to the injector. ``bound``: later records of the file are not older; None
    while its records are unknown. ``at_end``: everything in the file was read. ``grew_at``: when new data was last
    found. ``confirmed``: whether ``bound`` comes from an accepted record; otherwise from a line that may still be
    refused. ``last``: the offset of the last record that was passed to the injector; -1 if there is none. ``newest``:
    the largest timestamp of its records that this process has read; None before the first.
    """

    name: str
    offset: int = 0
    bound: int | None = None
    at_end: bool = False
    grew_at: int = 0
    last: int = -1
    confirmed: bool = False
    newest: int | None = None

    def restart(self, acknowledged: int | None) -> int:
        """The offset to restart from.

        ``acknowledged``: all records at lower offsets are ACKed; None if no record was sent.
        """
        return self.offset if acknowledged is None or acknowledged > self.last else acknowledged


class ReadingProgress:
    """All files of one injector process.

    ``disorder``: how much older than an earlier record of its file a record may be, in microseconds. ``quiet``: how
    long a file that was read to its end still counts as unfinished, because it may grow. Figure 10 has no such time.
    """

    def __init__(self, disorder: int, quiet: int = 0) -> None:
        self._disorder = disorder
        self._quiet = quiet
        self._files: dict[str, FileProgress] = {}
        self.found_disorder = 0
        """How much older than an earlier record of its file a record has been, at most. In microseconds."""

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[FileProgress]:
        return iter(list(self._files.values()))

    def found(self, name: str, offset: int, first: int | None, now: int, *, at_end: bool) -> FileProgress:
        """Add a file, to be read from ``offset``.

        Args:
            name: The name of the file.
            offset: Where to start, in bytes.
            first: The timestamp of the first record from there, in microseconds. None if unknown.
            now: The time, in microseconds.
            at_end: Whether the file has nothing from ``offset`` on yet.
        """
        made = FileProgress(name, offset, grew_at=now, at_end=at_end)
        if first is not None:
            made.bound = first - self._disorder
        self._files[name] = made
        return made

    def gone(self, name: str) -> None:
        """Remove a file that does not exist any more."""
        del self._files[name]

    def read(self, name: str, offset: int, timestamps: Sequence[int], last: int | None, now: int) -> None:
        """Record that a file was read up to ``offset``.

        Args:
            name: The name of the file.
            offset: The end of the part that was read, in bytes.
            timestamps: Those of the part's records in their order, in microseconds.
            last: The offset of the last record in the part. None if it has no record.
            now: The time, in microseconds.
        """
        file = self._files[name]
        file.last = file.last if last is None else last
        if offset > file.offset:
            file.grew_at = now
        file.offset = offset
        if timestamps:
            bound = max(timestamps) - self._disorder
            file.bound = max(file.bound, bound) if file.bound is not None and file.confirmed else bound
            file.confirmed = True
            newest = list(accumulate(timestamps if file.newest is None else [file.newest, *timestamps], max))
            file.newest = newest[-1]
            older = max(map(sub, newest[-len(timestamps) :], timestamps))
            self.found_disorder = max(self.found_disorder, older)

    def reached_end(self, name: str) -> None:
        """Record that the file has nothing more for now."""
        self._files[name].at_end = True

    def grew(self, name: str, now: int) -> None:
        """Record that the file has unread data."""
        file = self._files[name]
        file.at_end = False
        file.grew_at = now

    def next_file(self) -> FileProgress | None:
        """The file to read next: the one that holds the low watermark. None if all are read."""
        unread = [file for file in self._files.values() if not file.at_end]
        return min(unread, key=lambda file: (file.bound is not None, file.bound or 0, file.name), default=None)

    def unfinished(self, now: int) -> list[FileProgress]:
        """The files that may have more records."""
        return [file for file in self._files.values() if not file.at_end or now - file.grew_at < self._quiet]

    def watermark(self, now: int) -> int | None:
        """The bound of the oldest unfinished file (figure 10), in microseconds.

        None if no file is unfinished, or the bound of one is unknown. Also None before a record of the oldest file is
        accepted, since the line of its bound may still be refused. That line is read next, so this state is short.
        """
        files = [file for file in self.unfinished(now) if file.bound is not None or not file.at_end]
        if not files or any(file.bound is None for file in files):
            return None
        oldest = min(files, key=lambda file: (file.bound or 0, file.confirmed))
        return oldest.bound if oldest.confirmed else None
