"""The nodes of a page tree, and their form in a stored page.

A leaf has elements: a key and a value each. An inner node has children: the first key below a child, and the number of
the child's page. A value that is large has a page of its own, a *blob*; its leaf then has the number of that page.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from millwheel.errors import CorruptValueError

__all__ = ["ITEM_BYTES", "PAGE_BYTES", "Node", "decode_node"]

PAGE_BYTES: Final = 4_096
"""The size from which a page is split, if it has items enough. A large value has a page of its own."""

_FORMAT: Final = 1
ITEM_BYTES: Final = 6
"""Bytes counted for each item besides its key and value: the lengths of both in MessagePack."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, list[bytes], list[bytes | int]])


class Node:
    """A leaf, an inner node, or a blob (one value, no key). ``values`` are bytes, or numbers of pages.

    ``size`` is about the number of bytes of the encoded node.
    """

    __slots__ = ("keys", "size", "values")

    def __init__(self, keys: list[bytes], values: list[Any]) -> None:
        self.keys = keys
        self.values = values
        self.size = sum(map(len, keys)) + ITEM_BYTES * len(keys)
        self.size += sum(len(value) for value in values if value.__class__ is bytes)

    def copy(self) -> Node:
        """A node with the same content, which may be changed."""
        made = Node.__new__(Node)
        made.keys, made.values, made.size = self.keys.copy(), self.values.copy(), self.size
        return made

    def insert(self, at: int, key: bytes, value: Any) -> None:
        """Insert an item."""
        self.keys.insert(at, key)
        self.values.insert(at, value)
        self.size += len(key) + ITEM_BYTES + _size_of(value)

    def replace(self, at: int, value: Any) -> None:
        """Replace the value of an item."""
        self.size += _size_of(value) - _size_of(self.values[at])
        self.values[at] = value

    def remove(self, at: int) -> None:
        """Remove an item."""
        self.size -= len(self.keys.pop(at)) + ITEM_BYTES + _size_of(self.values.pop(at))

    def blank_first_key(self) -> None:
        """Drop the first key of an inner node, which is not used there."""
        self.size -= len(self.keys[0])
        self.keys[0] = b""

    def cut(self, at: int) -> Node:
        """Remove the items from ``at`` on. Returns them as a node."""
        rest = Node(self.keys[at:], self.values[at:])
        del self.keys[at:], self.values[at:]
        self.size -= rest.size
        return rest

    def extend(self, other: Node) -> None:
        """Append the items of ``other``."""
        self.keys += other.keys
        self.values += other.values
        self.size += other.size

    def encode(self) -> bytes:
        """The stored form."""
        return _encoder.encode((_FORMAT, self.keys, self.values))


def _size_of(value: Any) -> int:
    return len(value) if value.__class__ is bytes else 0


def decode_node(encoded: bytes, where: str) -> Node:
    """The node in a stored page.

    Raises:
        CorruptValueError: It is no page of this format. The error names ``where``.
    """
    try:
        number, keys, values = _decoder.decode(encoded)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptValueError(where, f"not a page of a growing state: {error}") from error
    if number != _FORMAT:
        raise CorruptValueError(where, f"a page of format {number}; this version reads format {_FORMAT}")
    return Node(keys, values)
