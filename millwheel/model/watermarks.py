"""The minima that make up low watermarks (sections 4.5 and 7.2).

:class:`MinTracker` keeps the smallest of many timestamps, which are added and removed. An interval uses it for pending
records, productions and holds. The authority has many more values, and its own structure (``authority/minimum.py``).

:class:`InputWatermark` is the minimum over the broadcast values of a consumer's groups. The consumer computes that
minimum itself, so the authority's values are never ahead of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["InputWatermark", "MinTracker"]

_MAX_NAMED = 3
"""How many of the groups that hold an input watermark are named."""
_SHARE_TO_POP = 16
"""At most a 16th of a heap is popped at once."""
_SMALL_HEAP = 64
"""Heaps up to this size are not compacted, because the gain would be too small."""


class MinTracker:
    """A multiset of timestamps (microseconds) with access to the smallest one; O(log n) amortised.

    Invariants: the heap contains each key of ``_counts`` once. A count of 0 marks a removed timestamp whose heap entry
    is not popped yet. At most half of the entries of a heap larger than ``_SMALL_HEAP`` are removed ones. Memory is
    therefore proportional to the timestamps that are present (G13).
    """

    __slots__ = ("_counts", "_gone", "_heap", "_size")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []
        self._gone = 0
        self._size = 0

    def __len__(self) -> int:
        """The number of timestamps. A repeated timestamp counts as often as it was added."""
        return self._size

    def items(self) -> Iterator[tuple[int, int]]:
        """Each present timestamp with its count, in no particular order."""
        return ((timestamp, count) for timestamp, count in self._counts.items() if count)

    def min(self) -> int:
        """The smallest timestamp; MAX_TIMESTAMP if empty, because an empty set holds no watermark back."""
        heap = self._heap
        if not heap:
            return MAX_TIMESTAMP
        smallest = heap[0]
        return smallest if self._counts[smallest] else self._next_min()

    def _next_min(self) -> int:
        """Drop removed timestamps from the top of the heap, and return the smallest one.

        Many may wait behind one that stays small for long. To pop 100,000 of them takes a tenth of a second, and to
        rebuild the heap a fifth of that. So the heap is rebuilt after some pops, in proportion to its size.
        """
        heap, counts = self._heap, self._counts
        enough = len(heap) - max(_SMALL_HEAP, len(heap) // _SHARE_TO_POP)
        while heap and not counts[heap[0]]:
            if len(heap) == enough:
                self._compact()
                heap = self._heap
                break
            del counts[heappop(heap)]
            self._gone -= 1
        return heap[0] if heap else MAX_TIMESTAMP

    def add(self, timestamp: int, count: int = 1) -> None:
        """Add ``timestamp`` ``count`` times; ValueError unless ``count`` is positive."""
        if count <= 0:
            raise ValueError(f"count must be positive, not {count}")
        present = self._counts.get(timestamp)
        if present is None:
            heappush(self._heap, timestamp)
            self._counts[timestamp] = count
        else:
            if present == 0:
                self._gone -= 1
            self._counts[timestamp] = present + count
        self._size += count

    def remove(self, timestamp: int, count: int = 1) -> None:
        """Remove ``timestamp`` ``count`` times; KeyError if it is not present that many times."""
        if count <= 0:
            raise ValueError(f"count must be positive, not {count}")
        present = self._counts.get(timestamp, 0)
        if present < count:
            raise KeyError(f"timestamp {timestamp} is present {present} times, not {count}")
        self._counts[timestamp] = present - count
        self._size -= count
        if present == count:
            self._gone += 1
            if self._gone * 2 > len(self._heap) > _SMALL_HEAP:
                self._compact()

    def _compact(self) -> None:
        """Drop the removed timestamps from the heap.

        The cost is linear. It is amortised by the removals since the last compaction.
        """
        self._counts = {timestamp: count for timestamp, count in self._counts.items() if count}
        self._heap = list(self._counts)
        heapify(self._heap)
        self._gone = 0


class InputWatermark:
    """The minimum over the broadcast watermarks of a set of named groups.

    Invariant: the value never decreases (G7). A group without a broadcast value counts as MIN_TIMESTAMP. A new group
    counts from the moment that it is followed, and does not lower the value. Its records behind the value are late.
    Without any group the value does not change.
    """

    __slots__ = ("_groups", "_latest", "_value")

    def __init__(self, groups: Iterable[str] = ()) -> None:
        self._groups = frozenset(groups)
        self._latest: dict[str, int] = {}
        self._value: int = MIN_TIMESTAMP

    @property
    def value(self) -> int:
        """The input watermark, in microseconds."""
        return self._value

    @property
    def groups(self) -> frozenset[str]:
        """The groups that make up the minimum."""
        return self._groups

    @property
    def latest(self) -> Mapping[str, int]:
        """The last broadcast value of each group that has one, also of groups that hold nothing back."""
        return self._latest

    def follow(self, groups: Iterable[str], beside: Iterable[str] = ()) -> None:
        """From now on, ``groups`` make up the minimum.

        Args:
            groups: The groups of the minimum.
            beside: Groups whose last values are kept as well, though they hold nothing back.
        """
        self._groups = frozenset(groups)
        for group in self._latest.keys() - self._groups.union(beside):
            del self._latest[group]
        self._raise()

    def finish(self) -> None:
        """Nothing will ever come: the value is the end of time."""
        self._value = MAX_TIMESTAMP

    def restart(self, group: str) -> None:
        """The group begins another life: its value is not known, and the input watermark stays."""
        self._latest.pop(group, None)

    def update(self, watermarks: Mapping[str, int]) -> None:
        """Apply broadcast values. Older values have no effect."""
        latest = self._latest
        for group, watermark in watermarks.items():
            if watermark > latest.get(group, MIN_TIMESTAMP):
                latest[group] = watermark
        self._raise()

    def holding(self) -> list[str]:
        """A few of the groups with the smallest value, sorted. The input watermark waits for them (G8)."""
        values = {group: self._latest.get(group, MIN_TIMESTAMP) for group in self._groups}
        smallest = min(values.values(), default=MAX_TIMESTAMP)
        return sorted(group for group, watermark in values.items() if watermark == smallest)[:_MAX_NAMED]

    def _raise(self) -> None:
        latest = self._latest
        smallest = min([latest.get(group, MIN_TIMESTAMP) for group in self._groups], default=MIN_TIMESTAMP)
        self._value = max(self._value, smallest)
