"""Assigners return the windows of a timestamp.

They are pure functions of the timestamp and, optionally, a time zone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp, from_datetime, to_datetime
from millwheel.sdk.durations import check_duration
from millwheel.sdk.errors import UsageError

__all__ = ["Assigner", "SessionWindows", "Window", "session", "sliding", "tumbling", "tumbling_size", "window_tag"]

_DAY_US: Final = 86_400_000_000
_LONGEST: Final = 1 << 50
_NONE: Final = Duration(0)


class Window(NamedTuple):
    """The timestamps from ``start`` (inclusive) to ``end`` (exclusive), in microseconds since the epoch."""

    start: int
    end: int

    @property
    def bounds(self) -> tuple[int, int]:
        """Start and end as a plain tuple. It equals the window and is faster to encode."""
        return self.start, self.end

    @property
    def tag(self) -> str:
        """The timer tag of this window."""
        return window_tag(self.start, self.end)

    @staticmethod
    def from_tag(tag: str) -> Window:
        """The window with this timer tag."""
        return _window_of(tag)


# Many keys have the same few windows at a time, so their tags are made once.


@lru_cache(maxsize=1_024)
def window_tag(start: int, end: int) -> str:
    """The timer tag of a window."""
    return f"{start}/{end}"


@lru_cache(maxsize=1_024)
def _window_of(tag: str) -> Window:
    start, _, end = tag.partition("/")
    return Window(int(start), int(end))


def _window(start: int, end: int) -> Window:
    """A window, limited to MIN_TIMESTAMP and MAX_TIMESTAMP."""
    return Window(max(start, MIN_TIMESTAMP), min(end, MAX_TIMESTAMP))


class Assigner(Protocol):
    """Assigns timestamps to windows. The same timestamp always gives the same windows."""

    def windows_of(self, timestamp: int) -> tuple[Window, ...]:
        """The windows that contain ``timestamp``, in increasing order of their starts."""


class _Aligned:
    """Windows of ``size`` that begin every ``every`` microseconds from the epoch, shifted by ``offset``."""

    __slots__ = ("_found", "_from", "_to", "every", "offset", "size")

    def __init__(self, size: int, every: int, offset: int) -> None:
        self.size = size
        self.every = every
        self.offset = offset
        # The last result. It is valid for timestamps from _from to below _to. Most timestamps are close to the previous
        # one.
        self._found: tuple[Window, ...] = ()
        self._from = self._to = 0

    def windows_of(self, timestamp: int) -> tuple[Window, ...]:
        """See Assigner."""
        if self._from <= timestamp < self._to:
            return self._found
        last = timestamp - (timestamp - self.offset) % self.every
        first = last - (self.size - 1 - (timestamp - last)) // self.every * self.every
        found = tuple(_window(start, start + self.size) for start in range(first, last + 1, self.every))
        # The window before the first one ends at first + size - every. The window after the last one begins at last +
        # every. If size is not a multiple of every, the former may end within the last window. The result is valid from
        # there.
        self._found = found
        self._from, self._to = max(last, first + self.size - self.every), min(first + self.size, last + self.every)
        return found


class _Zoned:
    """Windows on the local clock of a time zone.

    A day begins at the first moment of its date, which is mostly midnight. A day in which the clocks change has 23 or
    25 hours. Windows shorter than a day divide it by the local time. A window in which the clocks change is cut in two
    there. An hour that occurs twice therefore has two windows. No window contains more than ``size`` of real time.
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
        """See Assigner. UsageError for a timestamp outside the calendar."""
        try:
            return (self._days_of(timestamp) if self.size >= _DAY_US else self._part_of_day(timestamp),)
        except (OverflowError, ValueError) as error:
            raise UsageError(
                f"the timestamp {timestamp} is outside the calendar of {self.zone} (years 1 to 9999): "
                "use windows without a zone, or correct the timestamp"
            ) from error

    def _part_of_day(self, timestamp: int) -> Window:
        """The part of the local day that contains the timestamp, cut where the zone's offset changes."""
        shift = self._shift_at(timestamp)
        start = timestamp - (timestamp + shift) % self.size
        end = start + self.size
        if self._shift_at(start) != shift:
            start = self._change_between(start, timestamp)
        if self._shift_at(end - 1) != shift:
            end = self._change_between(timestamp, end - 1)
        return Window(start, end)

    def _shift_at(self, timestamp: int) -> int:
        offset = self._local(timestamp).utcoffset() or timedelta(0)
        return offset // timedelta(microseconds=1)

    def _local(self, timestamp: int) -> datetime:
        return to_datetime(Timestamp(timestamp)).astimezone(self.zone)

    def _change_between(self, low: int, high: int) -> int:
        """The first timestamp after ``low`` whose offset differs from that of ``low``.

        The offset of ``high`` must differ.
        """
        before = self._shift_at(low)
        while high - low > 1:
            middle = (low + high) // 2
            if self._shift_at(middle) == before:
                low = middle
            else:
                high = middle
        return high

    def _days_of(self, timestamp: int) -> Window:
        ordinal = self._local(timestamp).toordinal()
        window = self._day(ordinal)
        while timestamp >= window.end:
            # The clocks went back over midnight, so the old date occurs again within the day after it.
            ordinal += self.size // _DAY_US
            window = self._day(ordinal)
        return window

    def _window_of_day(self, ordinal: int) -> Window:
        days = self.size // _DAY_US
        first = ordinal - ordinal % days
        return Window(self._midnight(first), self._midnight(first + days))

    def _midnight(self, ordinal: int) -> int:
        """The first moment of a date, even if the clocks skip midnight or show it twice."""
        return from_datetime(datetime.fromordinal(ordinal).replace(tzinfo=self.zone))


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows by activity.

    Records of a key less than ``gap`` apart form one session, which ends ``gap`` after the last.

    ``gap`` is in microseconds.
    """

    gap: Duration


def tumbling(size: Duration, *, offset: Duration = _NONE, zone: str | ZoneInfo | None = None) -> Assigner:
    """Adjacent windows of ``size``.

    Without a ``zone`` they are aligned to the Unix epoch, shifted by ``offset``. With a ``zone`` they follow its local
    clock: ``tumbling(mw.hours(24), zone="America/New_York")`` gives local days. A local week begins on Sunday. A window
    shorter than a day ends when the clocks change, and the next window begins there.

    Args:
        size: Microseconds. With a zone: a divisor of a day, or a number of whole days.
        offset: Microseconds by which the starts of the windows are shifted from the epoch. Not with a zone.
        zone: A time zone, or its IANA name.

    Returns:
        The assigner. With a zone, it raises UsageError for a timestamp outside the calendar.

    Raises:
        UsageError: A duration is not positive, or is probably in another unit. Or ``size`` does not fit the zone, or
            both offset and zone are given.
    """
    check_duration("a window's size", size)
    _check_offset(offset)
    if zone is None:
        return _Aligned(size, size, offset % size)
    if offset:
        raise UsageError("a window takes an offset or a zone, not both: the zone's clock says where windows begin")
    if _DAY_US % size and size % _DAY_US:
        raise UsageError(f"windows on a zone's clock must divide a day or be whole days, not {size} microseconds")
    return _Zoned(size, ZoneInfo(zone) if isinstance(zone, str) else zone)


def sliding(size: Duration, every: Duration, *, offset: Duration = _NONE) -> Assigner:
    """Windows of ``size`` that begin every ``every``. Each timestamp is in ``size / every`` of them.

    If ``every`` does not divide ``size``, some timestamps are in one window more than others.

    Args:
        size: Microseconds.
        every: Microseconds, at most ``size``.
        offset: Microseconds by which the starts of the windows are shifted from the epoch.

    Raises:
        UsageError: A duration is not positive, or is probably in another unit. Or ``every`` exceeds ``size``.
    """
    check_duration("a window's size", size)
    check_duration("a window's every", every)
    _check_offset(offset)
    if every > size:
        raise UsageError(f"sliding windows every {every} with a size of {size} would skip records: make every <= size")
    return _Aligned(size, every, offset % every)


def session(gap: Duration) -> SessionWindows:
    """Windows by activity, for SessionAggregate. A window ends ``gap`` after a key's last record.

    Args:
        gap: Microseconds.

    Raises:
        UsageError: ``gap`` is not positive, or is probably in another unit.
    """
    check_duration("a session's gap", gap)
    return SessionWindows(gap)


def tumbling_size(windows: Assigner) -> tuple[int, int] | None:
    """Size and offset of tumbling windows without a zone. None: the windows are others, or one exceeds 35 years."""
    if not isinstance(windows, _Aligned) or windows.size != windows.every:
        return None
    if windows.size < _LONGEST and abs(windows.offset) < _LONGEST:
        return windows.size, windows.offset
    return None


def _check_offset(offset: Duration) -> None:
    check_duration("a window's offset", abs(offset), least=0)
