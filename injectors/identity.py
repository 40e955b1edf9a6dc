"""The identity of a file: its full path, its first line, and the bytes that were read of it.

A record's id is a partition and a byte offset. The partition's name contains the path and a fingerprint of the first
line. So another file under the same path is another partition. A checkpoint also contains a hash of the read bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

__all__ = ["HEAD_BYTES", "ContentHash", "partition_name"]

HEAD_BYTES: Final = 4 << 10
"""The most bytes at a file's beginning that a tail compares whenever the file has grown."""
_READ_BYTES: Final = 1 << 20
_FINGERPRINT_BYTES: Final = 8
_CONTENT_BYTES: Final = 16


def partition_name(path: str, first_lines: Sequence[bytes]) -> str:
    """The name of the partition for positions in a file.

    Args:
        path: The full path, without symbolic links.
        first_lines: The first line, without its end. For a CSV file, the header and the first row.

    Returns:
        The path and a fingerprint of those lines. An append does not change it.
    """
    hasher = blake2b(digest_size=_FINGERPRINT_BYTES, person=b"millwheel.file")
    for line in first_lines:
        hasher.update(len(line).to_bytes(8, "big") + line)
    text = path.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return f"{text}#{hasher.hexdigest()}"


class ContentHash:
    """A hash of the first bytes of a file. It can be extended by the bytes after them."""

    def __init__(self) -> None:
        self.size = 0
        """How many bytes are hashed."""
        self._hasher = blake2b(digest_size=_CONTENT_BYTES)

    @property
    def digest(self) -> str:
        """The hash, in hexadecimal digits."""
        return self._hasher.hexdigest()

    def extend(self, path: Path, size: int) -> bool:
        """Hash the file up to ``size`` bytes. Returns whether it has that many."""
        with path.open("rb") as file:
            file.seek(self.size)
            while self.size < size and (data := file.read(min(_READ_BYTES, size - self.size))):
                self._hasher.update(data)
                self.size += len(data)
        return self.size == size
