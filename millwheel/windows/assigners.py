"""Which windows a timestamp belongs to: pure functions of the timestamp and, where one is given, a time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from millwheel.core.time import Duration, Timestamp, from_datetime, to_datetime
from millwheel.sdk.errors import UsageError

__all__ = ["Assigner", "SessionWindows", "Window", "session", "sliding", "tumbling"]

_DAY: Final = 86_400_000_000
_NONE: Final = Duration(0)


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """The timestamps from ``start`` up to, not including, ``end``; microseconds."""

    start: int
    end: int


class Assigner(Protocol):
    """Puts timestamps into windows. The same timestamp always gives the same windows."""

    def windows_of(self, timestamp: int) -> tuple[Window, ...]:
        """The windows that contain ``timestamp``, in increasing order of their starts."""


class _Aligned:
    """Windows of ``size`` that begin every ``every`` microseconds from the epoch, shifted by ``offset``."""

    __slots__ = ("_found", "_from", "_to", "every", "offset", "size")

    def __init__(self, size: int, every: int, offset: int) -> None:
        self.size = size
        self.every = every
        self.offset = offset
        # The last answer, which holds for timestamps from _from to below _to: most are like the one before.
        self._found: tuple[Window, ...] = ()
        self._from = self._to = 0

    def windows_of(self, timestamp: int) -> tuple[Window, ...]:
        """See Assigner."""
        if self._from <= timestamp < self._to:
            return self._found
        last = timestamp - (timestamp - self.offset) % self.every
        first = last - (self.size - 1 - (timestamp - last)) // self.every * self.every
        found = tuple(Window(start, start + self.size) for start in range(first, last + 1, self.every))
        # The same windows hold from the start of the last one to the end of the first, or the start of the next.
        self._found, self._from, self._to = found, last, min(first + self.size, last + self.every)
        return found


class _Zoned:
    """Windows on the local clock of a time zone.

    Days (``size`` a multiple of a day) begin at local midnight, so a day in which the clocks change has
    23 or 25 hours. Shorter windows divide the local day by its wall clock; where the clocks go back, the
    repeated hour gets windows of its own, so that no window ever gathers more than ``size`` of real time.
    """

    __slots__ = ("_day", "size", "zone")

    def __init__(self, size: int, zone: ZoneInfo) -> None:
        self.size = size
        self.zone = zone
        self._day = lru_cache(maxsize=1_024)(self._window_of_day)

    def __getstate__(self) -> tuple[int, ZoneInfo]:
        return self.size, self.zone

    def __setstate__(self, state: tuple[int, ZoneInfo]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def windows_of(self, timestamp: int) -> tuple[Window, ...]:
        """See Assigner."""
        local = to_datetime(Timestamp(timestamp)).astimezone(self.zone)
        if self.size >= _DAY:
            return (self._day(local.toordinal()),)
        offset = local.utcoffset() or timedelta(0)
        shift = offset // timedelta(microseconds=1)
        start = timestamp - (timestamp + shift) % self.size
        return (Window(*self._clip(start, shift)),)

    def _clip(self, start: int, shift: int) -> tuple[int, int]:
        """The window from ``start``, cut where the zone's offset changes within it."""
        end = start + self.size
        if self._shift_at(start) == shift == self._shift_at(end - 1):
            return start, end
        inside = end - 1 if self._shift_at(end - 1) == shift else start
        change = self._change_between(start, end - 1)
        return (change, end) if inside == end - 1 else (start, change)

    def _shift_at(self, timestamp: int) -> int:
        offset = to_datetime(Timestamp(timestamp)).astimezone(self.zone).utcoffset() or timedelta(0)
        return offset // timedelta(microseconds=1)

    def _change_between(self, low: int, high: int) -> int:
        """The first timestamp after ``low`` with another offset than it; the offset at ``high`` differs."""
        before = self._shift_at(low)
        while high - low > 1:
            middle = (low + high) // 2
            if self._shift_at(middle) == before:
                low = middle
            else:
                high = middle
        return high

    def _window_of_day(self, ordinal: int) -> Window:
        days = self.size // _DAY
        first = ordinal - ordinal % days
        return Window(self._midnight(first), self._midnight(first + days))

    def _midnight(self, ordinal: int) -> int:
        return from_datetime(datetime.fromordinal(ordinal).replace(tzinfo=self.zone))


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows by activity: a key's records less than ``gap`` apart are one session; it ends ``gap`` after the last."""

    gap: Duration


def tumbling(size: Duration, *, offset: Duration = _NONE, zone: str | ZoneInfo | None = None) -> Assigner:
    """Windows of ``size``, one after the other.

    Without a ``zone`` they are aligned to the Unix epoch, shifted by ``offset``. With one they follow its
    clock: ``tumbling(mw.hours(24), zone="America/New_York")`` gives local days. UsageError if a zone is given for
    a size that neither divides a day nor is a number of days.
    """
    _positive(size, "size")
    if zone is None:
        return _Aligned(size, size, offset % size)
    if offset:
        raise UsageError("a window takes an offset or a zone, not both: the zone's clock says where windows begin")
    if _DAY % size and size % _DAY:
        raise UsageError(f"windows on a zone's clock must divide a day or be whole days, not {size} microseconds")
    return _Zoned(size, ZoneInfo(zone) if isinstance(zone, str) else zone)


def sliding(size: Duration, every: Duration, *, offset: Duration = _NONE) -> Assigner:
    """Windows of ``size`` that begin every ``every``: each timestamp is in ``size / every`` of them."""
    _positive(size, "size")
    _positive(every, "every")
    if every > size:
        raise UsageError(f"sliding windows every {every} with a size of {size} would skip records: make every <= size")
    return _Aligned(size, every, offset % every)


def session(gap: Duration) -> SessionWindows:
    """Windows by activity, ``gap`` after a key's last record they end; for SessionAggregate."""
    _positive(gap, "gap")
    return SessionWindows(gap)


def _positive(duration: int, name: str) -> None:
    if duration <= 0:
        raise UsageError(f"a window's {name} must be positive, not {duration} microseconds")
