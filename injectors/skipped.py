"""The file with the skipped lines, so that a user can correct and inject them (section 5.2)."""

from __future__ import annotations

from pathlib import Path

from millwheel.injectors.errors import SourceError

__all__ = ["SkippedLines"]


class SkippedLines:
    """Writes skipped lines to a file. Lines of CSV files are written under their header."""

    def __init__(self, path: Path) -> None:
        """Raises SourceError if the file already has lines, or cannot be created."""
        self._path = path
        self._header: bytes | None = None
        try:
            with path.open("ab") as file:
                used = file.tell() > 0
        except OSError as error:
            raise SourceError(f"{path} cannot take the skipped lines: {error.strerror or error}") from error
        if used:
            raise SourceError(f"{path} has lines already: name another file for the skipped lines, or remove this one")

    def write(self, line: bytes, header: bytes) -> None:
        """Append a line.

        Args:
            line: The line without its end.
            header: The header of its file. Empty if its file has none.

        Raises:
            SourceError: The header differs from that of earlier lines, or the line cannot be written.
        """
        if self._header is not None and header != self._header:
            raise SourceError(
                f"{self._path} cannot take skipped lines of files with different headers: inject those files one by one"
            )
        begin = header + b"\n" if header and self._header is None else b""
        try:
            with self._path.open("ab") as file:
                file.write(begin + line + b"\n")
        except OSError as error:
            raise SourceError(f"{self._path} cannot take the skipped lines: {error.strerror or error}") from error
        self._header = header
