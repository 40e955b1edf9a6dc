"""The timers of one interval in one time domain (section 4.6).

Timers with equal times share a bucket, and a heap orders the buckets' times. Windows end together, so a timer for the
end of a window that many keys share costs one dict entry. A bucket may hold stale slots of timers that were cancelled
or set to another time. The table by key is authoritative.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from millwheel.sdk.context import TimerSetting

__all__ = ["TimerTable"]

_LOOK: Final = 16
_MIN_STALE_SLOTS: Final = 64
"""Number of stale slots below which no sweep happens."""


class TimerTable:
    """The timers by key and tag. A key has one timer for each tag.

    Invariants:

    - Every timer of the table has a slot in its time's bucket, or has been handed out (``pop_due``, ``hand_out``).
    - A slot is in its bucket once.
    - The number of stale slots is at most about the number of timers (G13).
    """

    __slots__ = ("_buckets", "_by_key", "_size", "_stale", "_times")

    def __init__(self) -> None:
        self._by_key: dict[bytes, dict[str, TimerSetting]] = {}
        self._buckets: dict[int, dict[tuple[bytes, str], None]] = {}
        self._times: list[int] = []
        self._size = 0
        self._stale = 0

    def __len__(self) -> int:
        return self._size

    def get(self, key: bytes, tag: str) -> TimerSetting | None:
        """The timer of that key and tag."""
        timers = self._by_key.get(key)
        return None if timers is None else timers.get(tag)

    def of_key(self, key: bytes) -> dict[str, TimerSetting]:
        """The timers of ``key`` by tag."""
        return dict(self._by_key.get(key, {}))

    def items(self) -> Iterator[tuple[bytes, str, TimerSetting]]:
        """Every timer, in no order."""
        for key, timers in self._by_key.items():
            for tag, setting in timers.items():
                yield key, tag, setting

    def next_of_key(self, key: bytes) -> int | None:
        """The time of the key's earliest timer. None: it has no timer."""
        timers = self._by_key.get(key)
        return min(setting.at for setting in timers.values()) if timers else None

    def due_of_key(self, key: bytes, upto: int) -> list[tuple[int, str]]:
        """(time, tag) of the key's timers that are due by ``upto``, in increasing time."""
        timers = self._by_key.get(key, {})
        return sorted((setting.at, tag) for tag, setting in timers.items() if setting.at <= upto)

    def set(self, key: bytes, tag: str, setting: TimerSetting) -> TimerSetting | None:
        """Set a timer. Returns the timer that it replaces."""
        timers = self._by_key.get(key)
        if timers is None:
            timers = self._by_key[key] = {}
        previous = timers.get(tag)
        timers[tag] = setting
        if previous is None:
            self._size += 1
        elif previous.at == setting.at:
            return previous
        else:
            self._made_stale()
        self.requeue(key, tag, setting.at)
        return previous

    def load(self, rows: Iterable[tuple[bytes, str, TimerSetting]]) -> None:
        """Add many timers, none of which is set yet, as in a takeover."""
        by_key, buckets, times = self._by_key, self._buckets, self._times
        for key, tag, setting in rows:
            timers = by_key.get(key)
            if timers is None:
                by_key[key] = {tag: setting}
            else:
                timers[tag] = setting
            self._size += 1
            bucket = buckets.get(setting[0])
            if bucket is None:
                buckets[setting[0]] = {(key, tag): None}
                times.append(setting[0])
            else:
                bucket[key, tag] = None
        heapq.heapify(times)

    def cancel(self, key: bytes, tag: str) -> TimerSetting | None:
        """Remove a timer and return it. None: there was none."""
        timers = self._by_key.get(key)
        if timers is None:
            return None
        previous = timers.pop(tag, None)
        if previous is not None:
            self._size -= 1
            if not timers:
                del self._by_key[key]
            self._made_stale()
        return previous

    def hand_out(self, key: bytes, tag: str, at: int) -> None:
        """Remove the slot of one timer, as ``pop_due`` does for due timers."""
        bucket = self._buckets.get(at)
        if bucket is not None:
            bucket.pop((key, tag), None)

    def requeue(self, key: bytes, tag: str, at: int) -> None:
        """Restore the slot of a timer that was handed out and has not fired."""
        bucket = self._buckets.get(at)
        if bucket is None:
            self._buckets[at] = {(key, tag): None}
            heapq.heappush(self._times, at)
        else:
            bucket[key, tag] = None

    def next_time(self) -> int | None:
        """The time of the first bucket. No timer is due before it. Stale slots may make it too early."""
        return self._times[0] if self._times else None

    def times(self) -> Iterator[tuple[int, int]]:
        """(time, number of timers) in no order. Stale slots count, handed-out timers do not."""
        return ((at, len(bucket)) for at, bucket in self._buckets.items() if bucket)

    def first(self) -> tuple[bytes, str] | None:
        """Key and tag of a timer of the first bucket. None: there is none, or only stale slots among the first few."""
        for at in self._times[:1]:
            for key, tag in islice(self._buckets[at], _LOOK):
                if self._stands(key, tag, at):
                    return key, tag
        return None

    def pop_due(self, upto: int, limit: int) -> list[tuple[int, bytes, str]]:
        """The first ``limit`` timers (or all) with times <= ``upto``, in increasing time, each once.

        They stay in the table. The caller fires and cancels them, or returns them with ``requeue``.
        """
        due: list[tuple[int, bytes, str]] = []
        while self._times and self._times[0] <= upto and len(due) < limit:
            at = self._times[0]
            bucket = self._buckets[at]
            slots = list(islice(bucket, limit - len(due)))
            if len(slots) == len(bucket):
                heapq.heappop(self._times)
                del self._buckets[at]
            else:
                for slot in slots:
                    del bucket[slot]
            due.extend((at, key, tag) for key, tag in slots if self._stands(key, tag, at))
        return due

    def _stands(self, key: bytes, tag: str, at: int) -> bool:
        timers = self._by_key.get(key)
        return timers is not None and tag in timers and timers[tag].at == at

    def _made_stale(self) -> None:
        """Count a stale slot, and sweep when there may be more stale slots than timers.

        Without sweeps a key whose timer moves with each record (sessions) would leave one stale slot per record.
        """
        self._stale += 1
        if self._stale <= self._size + _MIN_STALE_SLOTS:
            return
        self._stale = 0
        for at, bucket in list(self._buckets.items()):
            kept = {slot: None for slot in bucket if self._stands(*slot, at)}
            if kept:
                self._buckets[at] = kept
            else:
                del self._buckets[at]
        self._times = list(self._buckets)
        heapq.heapify(self._times)
