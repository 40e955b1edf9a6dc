"""The bytes of a file of lines from any place on, also if it is compressed."""

from __future__ import annotations

import gzip
import io
import zlib
from abc import ABC, abstractmethod
from typing import Any, Final

from millwheel.connectors.files.errors import FilesError, load_parquet
from millwheel.connectors.files.storage import FileInfo, RangeFile, Storage

__all__ = ["SKIP_BYTES", "Text", "is_compressed", "open_text"]

SKIP_BYTES: Final = 256 << 20
"""So much text is decompressed in a second or a few. A read has a minute, and may begin far from the position."""
_GZIP: Final = ".gz"
_ZSTANDARD: Final = ".zst"


class Text(ABC):
    """The text of a file. Each call begins where the one before began, or behind that."""

    @abstractmethod
    def at(self, start: int, length: int) -> bytes:
        """Bytes from ``start`` on. There are fewer than ``length`` only if the text ends."""

    def is_at(self, start: int) -> bool:
        """Whether ``start`` is reached. If not, the next call goes on. No call takes long."""
        return True

    @abstractmethod
    def left(self, end: int, lines: int) -> int:
        """About how many of the lines are behind ``end``, of which ``lines`` are before it. At least one, or none."""


class _Plain(Text):
    def __init__(self, storage: Storage, info: FileInfo) -> None:
        self._storage = storage
        self._info = info

    def at(self, start: int, length: int) -> bytes:
        return self._storage.read(self._info, start, length)

    def left(self, end: int, lines: int) -> int:
        return _share(self._info.size - end, end, lines)


class _Compressed(Text):
    """The text behind a position is found by decompression of all before it. So the stream is kept."""

    def __init__(self, storage: Storage, info: FileInfo) -> None:
        self._name = storage.name(info.path)
        self._size = info.size
        self._file = RangeFile(storage, info)
        buffered = io.BufferedReader(self._file, storage.chunk)
        self._stream: Any = (
            gzip.GzipFile(fileobj=buffered) if info.path.lower().endswith(_GZIP) else _zstandard(buffered)
        )
        self._chunk = storage.chunk
        self._start = 0
        self._kept = bytearray()
        """The text from ``_start`` on, as far as it was read."""
        self._ended = False

    def at(self, start: int, length: int) -> bytes:
        while not self._ended and self._start + len(self._kept) < start + length:
            # What no later call needs goes first, so that a long way costs no memory.
            self._drop(start)
            more = self._more()
            self._ended = not more
            self._kept += more
        self._drop(start)
        return bytes(self._kept[:length]) if start >= self._start else b""

    def is_at(self, start: int) -> bool:
        most = self._start + len(self._kept) + SKIP_BYTES
        self.at(min(start, most), 0)
        return self._ended or start <= most

    def left(self, end: int, lines: int) -> int:
        if self._ended and end >= self._start + len(self._kept):
            return 0
        done = self._file.tell()
        return max(_share(self._size - done, done, lines), 1)

    def _drop(self, start: int) -> None:
        dropped = min(max(start - self._start, 0), len(self._kept))
        del self._kept[:dropped]
        self._start += dropped

    def _more(self) -> bytes:
        try:
            content: bytes = self._stream.read(self._chunk)
        except FilesError:
            raise
        except (EOFError, OSError, zlib.error) as error:
            raise FilesError(
                f"{self._name}: after {self._start + len(self._kept):,} bytes of text it cannot be decompressed: "
                f"{error}. Put the whole file in its place: what was read of it is not read again"
            ) from error
        return content


def open_text(storage: Storage, info: FileInfo) -> Text:
    """The text of a file. The ending of its name says how it is compressed."""
    return _Compressed(storage, info) if is_compressed(info.path) else _Plain(storage, info)


def is_compressed(name: str) -> bool:
    """Whether the file is compressed, by its name."""
    return name.lower().endswith((_GZIP, _ZSTANDARD))


def _zstandard(file: Any) -> Any:
    load_parquet()
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")


def _share(left: int, done: int, lines: int) -> int:
    """The lines in ``left`` bytes, if ``done`` bytes have ``lines``."""
    return max(left * lines // max(done, 1), 1) if left > 0 else 0
