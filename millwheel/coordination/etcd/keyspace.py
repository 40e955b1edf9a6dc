"""Converts the contract's keys and values to etcd's: keys get a prefix, values the envelope of all stored values."""

from __future__ import annotations

from millwheel.errors import CorruptValueError
from millwheel.model.envelope import unwrap

__all__ = ["Keyspace", "opened"]


class Keyspace:
    """The keys below one prefix of etcd."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()

    def key(self, name: str) -> bytes:
        """Return etcd's key for ``name``."""
        return self._prefix + name.encode()

    def name(self, key: bytes) -> str:
        """Return the contract's key. A foreign key that is not UTF-8 is shown with escapes."""
        return key[len(self._prefix) :].decode("utf-8", "backslashreplace")

    def span(self, prefix: str) -> tuple[bytes, bytes]:
        """Return etcd's key range for ``prefix``: its first key, and the first key after it."""
        first = self.key(prefix)
        # UTF-8 has no byte 0xff, so the last byte can always be incremented.
        return (first, first[:-1] + bytes([first[-1] + 1])) if first else (b"\0", b"\0")


def opened(value: bytes) -> tuple[bytes, str]:
    """Return the content of a stored value and "", or b"" and what is wrong with the value."""
    try:
        return unwrap(value, ""), ""
    except CorruptValueError as error:
        return b"", error.why
