"""Keys of the contract, which are text, and etcd's, which are bytes below one prefix."""

from __future__ import annotations

__all__ = ["Keyspace"]


class Keyspace:
    """The keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()

    def key(self, name: str) -> bytes:
        """etcd's key."""
        return self._prefix + name.encode()

    def name(self, key: bytes) -> str:
        """The contract's key."""
        return key[len(self._prefix) :].decode()

    def span(self, prefix: str) -> tuple[bytes, bytes]:
        """All keys that begin with ``prefix``, as etcd asks for them: the first, and the first one after them."""
        first = self.key(prefix)
        # UTF-8 has no byte 0xff, so the last byte can always be raised.
        return (first, first[:-1] + bytes([first[-1] + 1])) if first else (b"\0", b"\0")
