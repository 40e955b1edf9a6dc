"""How far the files are read, and the injector low watermark that follows from it (section 5.2, figure 10). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["FileProgress", "ReadingProgress"]


@dataclass(slots=True)
class FileProgress:
    """One file. Times are microseconds.

    ``offset``: up to where it was handed to the injector. ``bound``: no later record of it is older; None as long as
    nothing is known of its records. ``at_end``: everything in it was read. ``grew_at``: when it last had something new.
    ``confirmed``: ``bound`` is that of a record that was accepted; else it is that of a line that may still be refused.
    ``last``: where the last record that was handed over begins; -1 if there was none.
    """

    name: str
    offset: int = 0
    bound: int | None = None
    at_end: bool = False
    grew_at: int = 0
    last: int = -1
    confirmed: bool = False

    def restart(self, acknowledged: int | None) -> int:
        """Where reading may begin again. ``acknowledged``: all records that begin below it are ACKed; None: all are."""
        return self.offset if acknowledged is None or acknowledged > self.last else acknowledged


class ReadingProgress:
    """All files of one injector process.

    ``disorder``: how much older than an earlier record of its file a record may be. ``quiet``: how long a file
    whose end was reached still counts as unfinished, for it may grow; figure 10 has none.
    """

    def __init__(self, disorder: int, quiet: int = 0) -> None:
        self._disorder = disorder
        self._quiet = quiet
        self._files: dict[str, FileProgress] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[FileProgress]:
        return iter(list(self._files.values()))

    def found(self, name: str, offset: int, first: int | None, now: int, *, at_end: bool) -> FileProgress:
        """A file, to be read from ``offset`` on; ``at_end``: there is nothing in it from there on yet.

        ``first`` is the timestamp of the first record there, None if that is not known.
        """
        made = FileProgress(name, offset, grew_at=now, at_end=at_end)
        if first is not None:
            made.bound = first - self._disorder
        self._files[name] = made
        return made

    def gone(self, name: str) -> None:
        """The file is there no more."""
        del self._files[name]

    def read(self, name: str, offset: int, newest: int | None, last: int | None, now: int) -> None:
        """Up to ``offset`` was read; ``newest`` is the largest timestamp in it, ``last`` where the last record begins.

        Both are None if there was no record.
        """
        file = self._files[name]
        file.last = file.last if last is None else last
        if offset > file.offset:
            file.grew_at = now
        file.offset = offset
        if newest is not None:
            bound = newest - self._disorder
            file.bound = max(file.bound, bound) if file.bound is not None and file.confirmed else bound
            file.confirmed = True

    def reached_end(self, name: str) -> None:
        """Nothing more is in the file for now."""
        self._files[name].at_end = True

    def grew(self, name: str, now: int) -> None:
        """The file has more in it than was read."""
        file = self._files[name]
        file.at_end = False
        file.grew_at = now

    def next_file(self) -> FileProgress | None:
        """What to read next: the file that holds the watermark back; None if all are read."""
        unread = [file for file in self._files.values() if not file.at_end]
        return min(unread, key=lambda file: (file.bound is not None, file.bound or 0, file.name), default=None)

    def unfinished(self, now: int) -> list[FileProgress]:
        """The files of which more is to be expected."""
        return [file for file in self._files.values() if not file.at_end or now - file.grew_at < self._quiet]

    def watermark(self, now: int) -> int | None:
        """The oldest unfinished file's bound (fig. 10).

        None if no file is unfinished, or nothing is known of one, or no record of the oldest was accepted yet: the line
        that its bound comes from may still be refused. It is read next, so this does not last.
        """
        files = [file for file in self.unfinished(now) if file.bound is not None or not file.at_end]
        if not files or any(file.bound is None for file in files):
            return None
        oldest = min(files, key=lambda file: (file.bound or 0, file.confirmed))
        return oldest.bound if oldest.confirmed else None
