"""The timers of one interval: a table for each time domain, and the spilled timers (section 4.6).

Timers with equal times share a bucket, and a heap orders the buckets' times. Windows end together, so a timer for the
end of a window that many keys share costs one dict entry. A bucket may hold stale slots of timers that were cancelled
or set to another time. The table by key is authoritative.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, KeysView
from itertools import islice
from typing import Final

from millwheel.model.time import MIN_TIMESTAMP, TimeDomain
from millwheel.sdk.effects import TimerSetting
from millwheel.worker.interval.clocks import IntervalClocks
from millwheel.worker.interval.holds import Hold, Holds
from millwheel.worker.interval.spilled_timers import SpilledTimers

__all__ = ["PROCESSING_TIME", "IntervalTimers", "TimerTable", "effective_hold", "held_at"]

PROCESSING_TIME: Final = TimeDomain.PROCESSING_TIME
"""Each timer is compared with it several times. To find a member in its enum takes longer than all of these."""

_MAX_LOOKED_AT: Final = 16
_MIN_STALE_SLOTS: Final = 64
"""Number of stale slots below which no sweep happens."""


class IntervalTimers:
    """All timers of one interval."""

    def __init__(self, holds: Holds, clocks: IntervalClocks) -> None:
        self._clocks = clocks
        self.tables = {domain: TimerTable(holds, domain) for domain in TimeDomain}
        """The timers in memory."""
        self.event_time = self.tables[TimeDomain.EVENT_TIME]
        self.processing_time = self.tables[TimeDomain.PROCESSING_TIME]
        self.spilled = SpilledTimers(holds)
        """Spilled timers: those that only the store holds."""
        self.no_processing_time = False
        """Whether no timer in processing time fires: it would read records, and the topology drains."""
        self.ahead: dict[bytes, None] = {}
        """Keys that may have timers that are due by their watermark bounds, and not yet by the interval's watermark.
        Also those that have such panes by columns."""

    @property
    def count(self) -> int:
        """The number of timers, with spilled ones. A spilled timer that was set again counts twice."""
        return sum(map(len, self.tables.values())) + self.spilled.count

    def due_until(self, domain: TimeDomain, key: bytes | None = None) -> int:
        """The latest time for which timers may fire. No timer fires before an earlier spilled one (G5).

        With ``key``, the time is for this key. A timer that is due by its key's watermark bound is never spilled.
        """
        if self.no_processing_time and domain is TimeDomain.PROCESSING_TIME:
            return MIN_TIMESTAMP
        clocks = self._clocks
        limit = clocks.time_in(domain)
        if (first := self.spilled.first[domain]) is not None:
            limit = min(first, limit)
        if key is not None and clocks.bounded and domain is TimeDomain.EVENT_TIME:
            limit = max(limit, clocks.key_bounds.bound_of(key))
        return limit

    def note_due(self, key: bytes, at: int) -> None:
        """Register that ``key`` has an event-time timer at ``at`` if it may be due by the key's watermark bound."""
        clocks = self._clocks
        if clocks.bounded and at <= clocks.key_bounds.bound_of(key):
            self.ahead[key] = None

    @property
    def behind(self) -> bool:
        """Whether spilled event-time timers are due. They fire before any more records run."""
        first = self.spilled.first[TimeDomain.EVENT_TIME]
        return first is not None and first <= self._clocks.watermark

    def next_of_key(self, key: bytes) -> int | None:
        """The time of the key's first event-time timer, for cache eviction."""
        return self.tables[TimeDomain.EVENT_TIME].next_of_key(key)


class TimerTable:
    """The timers by key and tag. A key has one timer for each tag.

    It has many methods: a timer may come and go in several ways, and its slot, too.

    Invariants:

    - Every timer of the table has a slot in its time's bucket, or has been handed out (``pop_due``, ``hand_out``).
      One that has fired has none.
    - A slot is in its bucket once.
    - The number of stale slots is at most about the number of timers (G13).
    - Every timer of the table with an effective hold has a stated hold there (G7).
    """

    __slots__ = ("_buckets", "_by_key", "_domain", "_holds", "_processing", "_size", "_stale", "_times", "first_time")

    def __init__(self, holds: Holds, domain: TimeDomain) -> None:
        self._holds = holds
        self._domain = domain
        self._processing = domain is TimeDomain.PROCESSING_TIME
        self._by_key: dict[bytes, dict[str, TimerSetting]] = {}
        self._buckets: dict[int, dict[tuple[bytes, str], None]] = {}
        self._times: list[int] = []
        self._size = 0
        self._stale = 0
        self.first_time: int | None = None
        """The time of the first bucket. No timer is due before it. Stale slots may make it too early."""

    def __len__(self) -> int:
        return self._size

    def get(self, key: bytes, tag: str) -> TimerSetting | None:
        """The timer of that key and tag."""
        timers = self._by_key.get(key)
        return None if timers is None else timers.get(tag)

    def of_key(self, key: bytes) -> dict[str, TimerSetting]:
        """The timers of ``key`` by tag."""
        return dict(self._by_key.get(key, {}))

    def keys(self) -> KeysView[bytes]:
        """The keys that have timers, in no order."""
        return self._by_key.keys()

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

    def set(self, key: bytes, tag: str, setting: TimerSetting, ending: Hold | None) -> TimerSetting | None:
        """Set a timer. Returns the timer that it replaces.

        Until the change is in the journal, ``ending`` covers the time at which the replaced timer held the output
        watermark. A takeover before that finds that timer and fires it. None: the change is in the journal.
        """
        timers = self._by_key.get(key)
        if timers is None:
            timers = self._by_key[key] = {}
        previous = timers.get(tag)
        timers[tag] = setting
        # Most timers have no hold, and are in a bucket that is there. So calls are left out where nothing is to do.
        if setting.hold is not None or self._processing:
            hold = effective_hold(setting, self._domain)
            assert hold is not None, "a timer in processing time holds at its cause"
            self._holds.begin(hold)
        if previous is None:
            self._size += 1
        else:
            self._end(previous, ending)
            if previous.at == setting.at:
                return previous
            self._made_stale()
        bucket = self._buckets.get(setting.at)
        if bucket is None:
            self.requeue(key, tag, setting.at)
        else:
            bucket[key, tag] = None
        return previous

    def _end(self, setting: TimerSetting, ending: Hold | None) -> None:
        """The timer ends: it does not hold the output watermark any more, but ``ending`` does."""
        if (hold := effective_hold(setting, self._domain)) is not None:
            self._holds.end(hold, ending)
        elif ending is not None:
            ending.cover(setting.at)

    def load(self, rows: Iterable[tuple[bytes, str, TimerSetting]]) -> None:
        """Add many timers, none of which is set yet, as in a takeover."""
        by_key, buckets, times = self._by_key, self._buckets, self._times
        domain, begin = self._domain, self._holds.begin
        for key, tag, setting in rows:
            if (hold := effective_hold(setting, domain)) is not None:
                begin(hold)
            timers = by_key.get(key)
            if timers is None:
                by_key[key] = {tag: setting}
            else:
                timers[tag] = setting
            self._size += 1
            bucket = buckets.get(setting.at)
            if bucket is None:
                buckets[setting.at] = {(key, tag): None}
                times.append(setting.at)
            else:
                bucket[key, tag] = None
        heapq.heapify(times)
        self._find_first()

    def cancel(self, key: bytes, tag: str, ending: Hold | None) -> TimerSetting | None:
        """Remove a timer that was cancelled, and return it. None: there was none.

        ``ending`` covers the time at which it held the output watermark, as in ``set``.
        """
        previous = self._remove(key, tag)
        if previous is not None:
            self._made_stale()
            self._end(previous, ending)
        return previous

    def fired(self, key: bytes, tag: str, at: int, ending: Hold) -> None:
        """Remove a timer that has fired at its time ``at``. ``ending`` covers it, as in ``set``."""
        previous = self._remove(key, tag)
        if previous is not None:
            # Most are handed out. The slot of a blocked key's timer may still be there.
            if at in self._buckets:
                self.hand_out(key, tag, at)
            self._end(previous, ending)

    def spill(self, key: bytes, tag: str) -> int | None:
        """Remove a timer that only the store holds from now on. Returns its effective hold, which is the caller's."""
        previous = self._remove(key, tag)
        assert previous is not None, "a timer that is spilled is in the table"
        self._made_stale()
        hold = effective_hold(previous, self._domain)
        if hold is not None:
            self._holds.end(hold, None)
        return hold

    def _remove(self, key: bytes, tag: str) -> TimerSetting | None:
        timers = self._by_key.get(key)
        if timers is None:
            return None
        previous = timers.pop(tag, None)
        if previous is not None:
            self._size -= 1
            if not timers:
                del self._by_key[key]
        return previous

    def hand_out(self, key: bytes, tag: str, at: int) -> None:
        """Remove the slot of one timer, as ``pop_due`` does for due timers."""
        bucket = self._buckets.get(at)
        if bucket is not None:
            bucket.pop((key, tag), None)
            if not bucket:  # that of a timer ahead of the watermark stays until a sweep, or until its time is due
                self._made_stale()

    def requeue(self, key: bytes, tag: str, at: int) -> None:
        """Restore the slot of a timer that was handed out and has not fired."""
        bucket = self._buckets.get(at)
        if bucket is None:
            self._buckets[at] = {(key, tag): None}
            heapq.heappush(self._times, at)
            self._find_first()
        else:
            bucket[key, tag] = None

    def _find_first(self) -> None:
        self.first_time = self._times[0] if self._times else None

    def times(self) -> Iterator[tuple[int, int]]:
        """(time, number of timers) in no order. Stale slots count, handed-out timers do not."""
        return ((at, len(bucket)) for at, bucket in self._buckets.items() if bucket)

    def first(self) -> tuple[bytes, str] | None:
        """Key and tag of a timer of the first bucket. None: there is none, or only stale slots among the first few."""
        for at in self._times[:1]:
            for key, tag in islice(self._buckets[at], _MAX_LOOKED_AT):
                if self._stands(key, tag, at):
                    return key, tag
        return None

    def pop_due(self, upto: int, limit: int) -> list[tuple[int, bytes, str]]:
        """The first ``limit`` timers (or all) with times <= ``upto``, in increasing time, each once.

        They stay in the table. The caller fires and cancels them, or returns them with ``requeue``.
        """
        due: list[tuple[int, bytes, str]] = []
        by_key = self._by_key
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
            for key, tag in slots:  # as ``_stands`` says
                timers = by_key.get(key)
                if timers is not None and (setting := timers.get(tag)) is not None and setting.at == at:
                    due.append((at, key, tag))
        self._find_first()
        return due

    def _stands(self, key: bytes, tag: str, at: int) -> bool:
        setting = self.get(key, tag)
        return setting is not None and setting.at == at

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
        self._find_first()


def effective_hold(setting: TimerSetting, domain: TimeDomain) -> int | None:
    """The timestamp at which a timer that is not due holds the output watermark.

    None for an event-time timer without a stated hold. Such a timer holds at its own time, which is above the input
    watermark until the timer is due.
    """
    if setting.hold is not None:
        return setting.hold
    return setting.cause if domain is PROCESSING_TIME else None


def held_at(setting: TimerSetting, domain: TimeDomain) -> int:
    """The timestamp at which a timer holds the output watermark, due or not."""
    hold = effective_hold(setting, domain)
    return setting.at if hold is None else hold
