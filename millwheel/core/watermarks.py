"""The minima that low watermarks are made of (sections 4.5 and 7.2).

:class:`MinTracker` keeps the smallest of many timestamps that come and go: an interval's pending
records, productions and holds, or the authority's values of a computation's intervals.
:class:`InputWatermark` is the minimum over the values that the authority broadcast for a consumer's
senders. The consumer takes that minimum itself, so the authority never leads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from millwheel.core.time import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["InputWatermark", "MinTracker"]

_SMALL_HEAP = 64
"""Heaps up to this size are not worth compacting."""


class MinTracker:
    """A multiset of timestamps (microseconds) that knows its smallest; O(log n) amortised.

    Invariants: the heap holds each key of ``_counts`` once; a count of 0 marks a timestamp that is
    gone and whose heap entry waits to be popped; at most half of a heap that is not small is gone,
    so memory follows what is present (G13).
    """

    __slots__ = ("_counts", "_gone", "_heap", "_size")

    def __init__(self, timestamps: Iterable[int] = ()) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []
        self._gone = 0
        self._size = 0
        self.add_all(timestamps)

    def __len__(self) -> int:
        """How many timestamps are present, repeated ones counted as often as they were added."""
        return self._size

    def __contains__(self, timestamp: int) -> bool:
        return self._counts.get(timestamp, 0) > 0

    def count(self, timestamp: int) -> int:
        """How often ``timestamp`` is present."""
        return self._counts.get(timestamp, 0)

    def items(self) -> Iterator[tuple[int, int]]:
        """Each timestamp that is present, in no order, with how often it is."""
        return ((timestamp, count) for timestamp, count in self._counts.items() if count)

    def min(self) -> int:
        """The smallest timestamp; MAX_TIMESTAMP when empty, for what is not there holds nothing back."""
        heap, counts = self._heap, self._counts
        while heap:
            smallest = heap[0]
            if counts[smallest]:
                return smallest
            heappop(heap)
            del counts[smallest]
            self._gone -= 1
        return MAX_TIMESTAMP

    def add(self, timestamp: int, count: int = 1) -> None:
        """Add ``timestamp`` ``count`` times; ValueError unless ``count`` is positive."""
        if count <= 0:
            raise ValueError(f"count must be positive, not {count}")
        held = self._counts.get(timestamp)
        if held is None:
            heappush(self._heap, timestamp)
            self._counts[timestamp] = count
        else:
            if held == 0:
                self._gone -= 1
            self._counts[timestamp] = held + count
        self._size += count

    def remove(self, timestamp: int, count: int = 1) -> None:
        """Take ``timestamp`` out ``count`` times; KeyError if it is not present that often."""
        if count <= 0:
            raise ValueError(f"count must be positive, not {count}")
        held = self._counts.get(timestamp, 0)
        if held < count:
            raise KeyError(f"timestamp {timestamp} is present {held} times, not {count}")
        self._counts[timestamp] = held - count
        self._size -= count
        if held == count:
            self._gone += 1
            if self._gone * 2 > len(self._heap) > _SMALL_HEAP:
                self._compact()

    def add_all(self, timestamps: Iterable[int]) -> None:
        """Add each of ``timestamps`` once."""
        counts, heap = self._counts, self._heap
        for timestamp in timestamps:
            held = counts.get(timestamp)
            if held is None:
                heappush(heap, timestamp)
                counts[timestamp] = 1
            else:
                if held == 0:
                    self._gone -= 1
                counts[timestamp] = held + 1
            self._size += 1

    def remove_all(self, timestamps: Iterable[int]) -> None:
        """Take each of ``timestamps`` out once; KeyError at the first that is not present."""
        for timestamp in timestamps:
            self.remove(timestamp)

    def clear(self) -> None:
        """Take everything out."""
        self._counts.clear()
        self._heap.clear()
        self._gone = self._size = 0

    def _compact(self) -> None:
        """Drop the timestamps that are gone: linear, paid for by the removals since the last time."""
        self._counts = {timestamp: count for timestamp, count in self._counts.items() if count}
        self._heap = list(self._counts)
        heapify(self._heap)
        self._gone = 0


class InputWatermark:
    """The minimum over a set of named senders' broadcast watermarks; it never goes back (G7).

    A sender of which nothing was heard stands at MIN_TIMESTAMP. One that joins counts from then on,
    without lowering the value: what it still sends from behind the value is late. Without any
    sender the value stays where it is.
    """

    __slots__ = ("_senders", "_value")

    def __init__(self, senders: Iterable[str] = (), start: int = MIN_TIMESTAMP) -> None:
        """``start`` is the value that an earlier owner has acted on, so that nothing fires twice."""
        self._senders = dict.fromkeys(senders, int(MIN_TIMESTAMP))
        self._value: int = start
        self._raise()

    @property
    def value(self) -> int:
        """The input watermark, microseconds."""
        return self._value

    @property
    def senders(self) -> Mapping[str, int]:
        """Each sender's last known value."""
        return dict(self._senders)

    def add(self, sender: str, watermark: int = MIN_TIMESTAMP) -> bool:
        """Let ``sender`` join (again: its value only grows). Returns whether the value rose."""
        self._senders[sender] = max(watermark, self._senders.get(sender, MIN_TIMESTAMP))
        return self._raise()

    def remove(self, sender: str) -> bool:
        """Let ``sender`` leave the minimum; nothing happens if it is not in it. Returns whether the value rose."""
        if self._senders.pop(sender, None) is None:
            return False
        return self._raise()

    def update(self, watermarks: Mapping[str, int]) -> bool:
        """Take broadcast values; those of other computations and older ones change nothing.

        Returns whether the value rose.
        """
        senders = self._senders
        for sender, watermark in watermarks.items():
            known = senders.get(sender)
            if known is not None and watermark > known:
                senders[sender] = watermark
        return self._raise()

    def holding(self) -> list[str]:
        """The senders with the smallest value, which the input watermark waits for (G8); sorted."""
        smallest = min(self._senders.values(), default=MAX_TIMESTAMP)
        return sorted(sender for sender, watermark in self._senders.items() if watermark == smallest)

    def _raise(self) -> bool:
        smallest = min(self._senders.values(), default=MIN_TIMESTAMP)
        if smallest <= self._value:
            return False
        self._value = smallest
        return True
