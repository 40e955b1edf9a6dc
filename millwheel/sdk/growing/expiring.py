"""A map whose elements end: one page tree has the elements, and their ends in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from millwheel.model.time import MAX_TIMESTAMP, Timestamp
from millwheel.sdk.errors import UsageError
from millwheel.sdk.growing.collections import Collection, number_of, ordered, time_bytes

__all__ = ["ExpiringMapState"]

K = TypeVar("K")
V = TypeVar("V")

_END: Final = b"\0"
"""Before an end: eight bytes of the time, and the key. It has no value."""
_ELEMENT: Final = b"\1"
"""Before the key of an element. Its value is its end in eight bytes, and the value that it was given."""
_TIME_BYTES: Final = 8


class ExpiringMapState(Collection, Mapping[K, V], Generic[K, V]):
    """A map of any size whose elements have ends. To read, put or delete one costs about the same however many.

    An element is there until ``expire`` removes it, also after its end. A hook calls ``expire`` in a timer, and sets
    the next timer by ``next_end``. So ends may be in event time or by the wall clock.

    Invariant: each element has one end in the order of ends. ``put`` and ``del`` delete the end that was there before.

    Example:
        >>> import millwheel as mw
        >>> class Cart(mw.GrowingState):
        ...     amounts: mw.ExpiringMapState[str, int]
        >>> state = Cart()
        >>> for item, ends in [("pear", 10), ("plum", 20), ("pear", 30)]:
        ...     state.amounts.put(item, 1, ends=mw.Timestamp(ends))
        >>> state.amounts["pear"], state.amounts.next_end(), len(state.amounts)
        (1, 20, 2)
        >>> state.amounts.expire(mw.Timestamp(20)), dict(state.amounts)
        ([('plum', 1)], {'pear': 1})
    """

    def put(self, key: K, value: V, ends: Timestamp) -> None:
        """Set the value and the end of a key. Both replace those that it had."""
        end, encoded, element = time_bytes(ends, "put"), self._encoded(key), self._elements.encode(value)
        found = self._tree.get(_ELEMENT + encoded)
        before = None if found is None else found[:_TIME_BYTES]
        self._tree.put(_ELEMENT + encoded, end + element)
        if before == end:
            return
        if before is not None:
            self._tree.delete(_END + before + encoded)
        self._tree.put(_END + end + encoded, b"")

    def expire(self, until: Timestamp, *, limit: int | None = None) -> list[tuple[K, V]]:
        """Remove the elements whose ends are at or before a time.

        Args:
            until: The time, such as that of the timer.
            limit: The most elements to remove. None: all. The others stay, and ``next_end`` is that of the first.

        Returns:
            The removed keys and values, in the order of their ends.
        """
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise UsageError(f"expire(limit=…) is a number of elements from 1, not {limit!r}")
        last = time_bytes(until, "expire")
        above = _ELEMENT if until == MAX_TIMESTAMP else _END + ordered(number_of(last) + 1)
        ended = [end for end, _ in islice(self._tree.items(end=above), limit)]
        if not ended:
            return []
        self._tree.delete_below(ended[-1] + b"\0")
        return [self._removed(end[len(_END) + _TIME_BYTES :]) for end in ended]

    def next_end(self) -> Timestamp | None:
        """The least end of all elements, or None if there are no elements."""
        first = self._tree.first()
        return None if first is None else Timestamp(number_of(first[0][len(_END) :]))

    def end_of(self, key: K) -> Timestamp | None:
        """The end of an element, or None if there is no such key."""
        found = self._tree.get(_ELEMENT + self._encoded(key))
        return None if found is None else Timestamp(number_of(found))

    def __getitem__(self, key: K) -> V:
        found = self._tree.get(_ELEMENT + self._encoded(key))
        if found is None:
            raise KeyError(key)
        return self._elements.decode(found[_TIME_BYTES:])  # type: ignore[no-any-return]

    def __delitem__(self, key: K) -> None:
        encoded = self._encoded(key)
        found = self._tree.delete(_ELEMENT + encoded)
        if found is None:
            raise KeyError(key)
        self._tree.delete(_END + found[:_TIME_BYTES] + encoded)

    def __contains__(self, key: object) -> bool:
        return self._tree.get(_ELEMENT + self._encoded(key)) is not None

    def __iter__(self) -> Iterator[K]:
        assert self._keys is not None
        decode = self._keys.decode
        return (decode(key[len(_ELEMENT) :]) for key, _ in self._tree.items(_ELEMENT))

    def __len__(self) -> int:
        return super().__len__() // 2

    def __repr__(self) -> str:
        return self._shown(self)

    def _encoded(self, key: Any) -> bytes:
        assert self._keys is not None
        return self._keys.encode(key)

    def _removed(self, encoded: bytes) -> tuple[K, V]:
        """Remove an element whose end is removed."""
        assert self._keys is not None
        found = self._tree.delete(_ELEMENT + encoded)
        assert found is not None, "each end has an element"
        return self._keys.decode(encoded), self._elements.decode(found[_TIME_BYTES:])
