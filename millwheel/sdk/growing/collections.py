"""The collections of a growing state, as hooks use them.

A hook reads and writes single elements. An element that is read is a copy: to change it in the state, set it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSet, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar, overload

from millwheel.model.time import Timestamp
from millwheel.sdk.errors import UsageError
from millwheel.sdk.growing.elements import Elements
from millwheel.sdk.growing.tree import PageTree

__all__ = [
    "Collection",
    "CounterState",
    "ListState",
    "MapState",
    "OrderedState",
    "SetState",
    "number_of",
    "ordered",
    "time_bytes",
]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_MIDDLE: Final = 1 << 63
_SHOWN: Final = 20
"""The most elements in a ``repr``."""


def ordered(number: int) -> bytes:
    """Eight bytes in the order of signed integers."""
    return (number + _MIDDLE).to_bytes(8, "big")


def number_of(encoded: bytes) -> int:
    """The number of which these are the first eight bytes."""
    return int.from_bytes(encoded[:8], "big") - _MIDDLE


class Collection:
    """What all collections have: a page tree, and two numbers that are stored with it."""

    def __init__(
        self, elements: Elements[Any], keys: Elements[Any] | None, tree: PageTree, start: int = 0, next_: int = 0
    ) -> None:
        self._elements = elements
        self._keys = keys
        self._tree = tree
        self._start = start
        """The first index of a list."""
        self._next = next_
        """The index after the last of a list; the next number of an ordered collection."""

    def __len__(self) -> int:
        return self._tree.count

    def clear(self) -> None:
        """Remove all elements. The cost does not depend on their number: their pages are deleted little by little."""
        self._tree.clear()
        self._start = self._next = 0

    def _shown(self, elements: Iterable[object]) -> str:
        more = ", …" if len(self) > _SHOWN else ""
        return f"{type(self).__name__}({', '.join(map(repr, islice(elements, _SHOWN)))}{more})"


class ListState(Collection, Sequence[T], Generic[T]):
    """A list of any length. To add, read or replace one element costs the same however long the list is.

    Elements are added and removed at the ends. For a ring buffer, append with ``keep``.

    Example:
        >>> import millwheel as mw
        >>> class Sensor(mw.GrowingState):
        ...     readings: mw.ListState[float]
        >>> state = Sensor()
        >>> for reading in [20.5, 21.0, 19.5]:
        ...     state.readings.append(reading, keep=2)
        >>> list(state.readings), state.readings[-1], len(state.readings)
        ([21.0, 19.5], 19.5, 2)
    """

    def append(self, value: T, *, keep: int | None = None) -> None:
        """Append an element.

        Args:
            value: The element.
            keep: The most elements that stay: the first ones are removed. None: all stay.
        """
        self._tree.put(ordered(self._next), self._elements.encode(value))
        self._next += 1
        if keep is not None:
            if not isinstance(keep, int) or keep < 1:
                raise UsageError(f"append(keep=…) is a number of elements from 1, not {keep!r}")
            if len(self) > keep:
                self._start = self._next - keep
                self._tree.delete_below(ordered(self._start))

    def extend(self, values: Iterable[T]) -> None:
        """Append elements."""
        for value in values:
            self.append(value)

    def pop(self) -> T:
        """Remove the last element and return it; IndexError if there is none."""
        return self._taken(self._next - 1)

    def popleft(self) -> T:
        """Remove the first element and return it; IndexError if there is none."""
        return self._taken(self._start)

    def _taken(self, index: int) -> T:
        encoded = self._tree.delete(ordered(index))
        if encoded is None:
            raise IndexError("pop from an empty list")
        if index == self._start:
            self._start += 1
        else:
            self._next -= 1
        return self._decoded(encoded)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            low, high, step = index.indices(len(self))
            if step != 1:
                return [self[at] for at in range(low, high, step)]
            found = self._tree.items(ordered(self._start + low), ordered(self._start + high))
            return [self._decoded(encoded) for _, encoded in found] if low < high else []
        encoded = self._tree.get(self._place(index))
        assert encoded is not None, "a list has an element for each index"
        return self._decoded(encoded)

    def __setitem__(self, index: int, value: T) -> None:
        self._tree.put(self._place(index), self._elements.encode(value))

    def __iter__(self) -> Iterator[T]:
        return (self._decoded(encoded) for _, encoded in self._tree.items())

    def __reversed__(self) -> Iterator[T]:
        return (self._decoded(encoded) for _, encoded in self._tree.items(reverse=True))

    def __repr__(self) -> str:
        return self._shown(self)

    def _place(self, index: int) -> bytes:
        length = len(self)
        if not -length <= index < length:
            raise IndexError(f"index {index} of a list of {length}")
        return ordered(self._start + index + (length if index < 0 else 0))

    def _decoded(self, encoded: bytes) -> T:
        element: T = self._elements.decode(encoded)
        return element


class MapState(Collection, MutableMapping[K, V], Generic[K, V]):
    """A dict of any size. To read, set or delete one key costs about the same however many there are.

    It iterates in an order that does not change between runs, and has no other meaning.

    Example:
        >>> import millwheel as mw
        >>> class Cart(mw.GrowingState):
        ...     amounts: mw.MapState[str, int]
        >>> state = Cart()
        >>> state.amounts["pear"] = 2
        >>> state.amounts.get("plum", 0), "pear" in state.amounts, dict(state.amounts)
        (0, True, {'pear': 2})
    """

    def __getitem__(self, key: K) -> V:
        encoded = self._tree.get(self._encoded(key))
        if encoded is None:
            raise KeyError(key)
        return self._elements.decode(encoded)  # type: ignore[no-any-return]

    def __setitem__(self, key: K, value: V) -> None:
        self._tree.put(self._encoded(key), self._elements.encode(value))

    def __delitem__(self, key: K) -> None:
        if self._tree.delete(self._encoded(key)) is None:
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self._tree.get(self._encoded(key)) is not None

    def __iter__(self) -> Iterator[K]:
        assert self._keys is not None
        decode = self._keys.decode
        return (decode(key) for key, _ in self._tree.items())

    def clear(self) -> None:
        """Remove all keys. The cost does not depend on their number: their pages are deleted little by little."""
        super().clear()

    def __repr__(self) -> str:
        return self._shown(self)

    def _encoded(self, key: Any) -> bytes:
        assert self._keys is not None
        return self._keys.encode(key)


class SetState(Collection, MutableSet[T], Generic[T]):
    """A set of any size. To add, find or remove one element costs about the same however many there are.

    Example:
        >>> import millwheel as mw
        >>> class Visitors(mw.GrowingState):
        ...     seen: mw.SetState[str]
        >>> state = Visitors()
        >>> state.seen.add("ann")
        >>> "ann" in state.seen, "bob" in state.seen, len(state.seen)
        (True, False, 1)
    """

    def add(self, value: T) -> None:
        """Add an element."""
        self._tree.put(self._elements.encode(value), b"")

    def discard(self, value: T) -> None:
        """Remove an element, if it is present."""
        self._tree.delete(self._elements.encode(value))

    def __contains__(self, value: object) -> bool:
        return self._tree.get(self._elements.encode(value)) is not None

    def __iter__(self) -> Iterator[T]:
        decode = self._elements.decode
        return (decode(key) for key, _ in self._tree.items())

    def clear(self) -> None:
        """Remove all elements. The cost does not depend on their number: their pages are deleted little by little."""
        super().clear()

    @classmethod
    def _from_iterable(cls, values: Iterable[Any]) -> Any:
        """The results of ``&``, ``|`` and ``-`` are Python's own sets."""
        return set(values)

    def __repr__(self) -> str:
        return self._shown(self)


class CounterState(Collection, Mapping[K, int], Generic[K]):
    """Counts by key, of any number of keys. A key that was never counted has the count 0.

    Example:
        >>> import millwheel as mw
        >>> class Words(mw.GrowingState):
        ...     counts: mw.CounterState[str]
        >>> state = Words()
        >>> state.counts.add("to"), state.counts.add("be", 2), state.counts.add("be", -1)
        (1, 2, 1)
        >>> state.counts["be"], state.counts["or"]
        (1, 0)
    """

    def add(self, key: K, count: int = 1) -> int:
        """Add to a key's count. A key whose count becomes 0 is removed.

        Returns:
            The new count.
        """
        assert self._keys is not None
        encoded = self._keys.encode(key)
        before = self._tree.get(encoded)
        total: int = count + (0 if before is None else self._elements.decode(before))
        if total:
            self._tree.put(encoded, self._elements.encode(total))
        elif before is not None:
            self._tree.delete(encoded)
        return total

    def __getitem__(self, key: K) -> int:
        assert self._keys is not None
        encoded = self._tree.get(self._keys.encode(key))
        return 0 if encoded is None else self._elements.decode(encoded)

    def __contains__(self, key: object) -> bool:
        assert self._keys is not None
        return self._tree.get(self._keys.encode(key)) is not None

    def __iter__(self) -> Iterator[K]:
        assert self._keys is not None
        decode = self._keys.decode
        return (decode(key) for key, _ in self._tree.items())

    def __repr__(self) -> str:
        return self._shown(self)


class OrderedState(Collection, Generic[T]):
    """Elements in the order of their times, of any number. Elements of equal times are in the order of their adding.

    Ranges are half open, like windows: from a start to below an end.

    Example:
        >>> import millwheel as mw
        >>> class Trips(mw.GrowingState):
        ...     by_time: mw.OrderedState[str]
        >>> state = Trips()
        >>> for at, trip in [(30, "c"), (10, "a"), (20, "b")]:
        ...     state.by_time.add(mw.Timestamp(at), trip)
        >>> list(state.by_time.range(mw.Timestamp(15)))
        [(20, 'b'), (30, 'c')]
        >>> state.by_time.pop_until(mw.Timestamp(30)), len(state.by_time)
        ([(10, 'a'), (20, 'b')], 1)
    """

    def add(self, at: Timestamp, value: T) -> None:
        """Add an element at a time."""
        self._tree.put(time_bytes(at, "add") + ordered(self._next), self._elements.encode(value))
        self._next += 1

    def range(
        self, start: Timestamp | None = None, end: Timestamp | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[Timestamp, T]]:
        """The elements with ``start <= time < end``, each with its time.

        Args:
            start: The least time. None: no limit.
            end: The time after the last. None: no limit.
            reverse: Whether the latest comes first.
        """
        low = None if start is None else time_bytes(start, "range")
        high = None if end is None else time_bytes(end, "range")
        return (self._element(*one) for one in self._tree.items(low, high, reverse=reverse))

    def __iter__(self) -> Iterator[tuple[Timestamp, T]]:
        return self.range()

    def __reversed__(self) -> Iterator[tuple[Timestamp, T]]:
        return self.range(reverse=True)

    def first(self) -> tuple[Timestamp, T] | None:
        """The element with the least time, or None."""
        found = self._tree.first()
        return None if found is None else self._element(*found)

    def last(self) -> tuple[Timestamp, T] | None:
        """The element with the largest time, or None."""
        found = self._tree.last()
        return None if found is None else self._element(*found)

    def pop_until(self, end: Timestamp) -> list[tuple[Timestamp, T]]:
        """Remove the elements with times below ``end``, and return them in order."""
        found = list(self.range(end=end))
        self._tree.delete_below(time_bytes(end, "pop_until"))
        return found

    def remove_until(self, end: Timestamp) -> int:
        """Remove the elements with times below ``end``, and return their number."""
        return self._tree.delete_below(time_bytes(end, "remove_until"))

    def __repr__(self) -> str:
        return self._shown(self)

    def _element(self, key: bytes, encoded: bytes) -> tuple[Timestamp, T]:
        return Timestamp(number_of(key)), self._elements.decode(encoded)


def time_bytes(at: int, method: str) -> bytes:
    """Eight bytes in the order of times. ``method`` is named in the error of what is no time."""
    if not isinstance(at, int) or isinstance(at, bool) or not -_MIDDLE <= at < _MIDDLE:
        raise UsageError(f"{method} takes a Timestamp (integer microseconds), not {type(at).__name__}: {at!r}")
    return ordered(at)
