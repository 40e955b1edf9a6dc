"""Keys and values of the contract, and etcd's: keys below one prefix, values in the envelope of all stored values."""

from __future__ import annotations

from millwheel.store.contract import CorruptValueError
from millwheel.store.envelope import unwrap

__all__ = ["Keyspace", "opened"]


class Keyspace:
    """The keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()

    def key(self, name: str) -> bytes:
        """etcd's key."""
        return self._prefix + name.encode()

    def name(self, key: bytes) -> str:
        """The contract's key. Somebody else's, which is no text, is shown as well as it can be."""
        return key[len(self._prefix) :].decode("utf-8", "backslashreplace")

    def span(self, prefix: str) -> tuple[bytes, bytes]:
        """All keys that begin with ``prefix``, as etcd asks for them: the first, and the first one after them."""
        first = self.key(prefix)
        # UTF-8 has no byte 0xff, so the last byte can always be raised.
        return (first, first[:-1] + bytes([first[-1] + 1])) if first else (b"\0", b"\0")


def opened(value: bytes) -> tuple[bytes, str]:
    """What is in a stored value, and an empty text; or nothing, and what is wrong with it."""
    try:
        return unwrap(value, ""), ""
    except CorruptValueError as error:
        return b"", error.why
