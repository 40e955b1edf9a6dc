"""Which windows a timestamp is in: one assigner, asked in any order, against a search by brute force."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import groupby, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel import windows
from millwheel.model.time import LAST_TIMESTAMP, MIN_TIMESTAMP, Timestamp, from_datetime, to_datetime
from millwheel.windows import Window

MINUTE = mw.minutes(1)
CHANGES = {
    "America/New_York": datetime(2013, 11, 3),
    "America/St_Johns": datetime(2010, 11, 7),
    "America/Havana": datetime(2013, 11, 3),
    "America/Sao_Paulo": datetime(2018, 11, 4),
    "America/Scoresbysund": datetime(2024, 3, 31),
    "Africa/Cairo": datetime(2024, 4, 26),
    "Australia/Lord_Howe": datetime(2024, 4, 7),
    "Pacific/Apia": datetime(2011, 12, 30),
    "Pacific/Kwajalein": datetime(1993, 8, 21),
    "Asia/Kathmandu": datetime(1986, 1, 1),
    "Europe/London": datetime(2013, 3, 31),
}
"""Zones, each with a day on which their clocks change: by an hour, half an hour, a day; also around midnight."""


def aligned(timestamp: int, size: int, every: int, offset: int) -> list[Window]:
    starts = range(timestamp - size, timestamp + 1)
    return [Window(at, at + size) for at in starts if (at - offset) % every == 0 and at <= timestamp < at + size]


@settings(max_examples=500)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(-20, 20),
    st.lists(st.integers(-40, 40), min_size=1, max_size=30),
)
def test_sliding_windows_are_the_same_in_any_order_of_queries(
    size: int, every: int, offset: int, stamps: list[int]
) -> None:
    every = min(size, every)
    assigner = windows.sliding(mw.Duration(size), mw.Duration(every), offset=mw.Duration(offset))
    for stamp in stamps:
        assert list(assigner.windows_of(stamp)) == aligned(stamp, size, every, offset)


def test_an_earlier_timestamp_can_be_in_a_window_later_ones_left() -> None:
    assigner = windows.sliding(mw.seconds(7), mw.seconds(3))
    assigner.windows_of(mw.seconds(7.5))
    assert Window(0, mw.seconds(7)) in assigner.windows_of(mw.seconds(6.5))


def minutes_around(zone: str) -> list[tuple[int, datetime]]:
    """Each minute of six days, with what the zone's clock shows then."""
    first = CHANGES[zone].replace(tzinfo=UTC) - timedelta(days=3)
    moments = (first + timedelta(minutes=number) for number in range(6 * 1_440))
    return [(from_datetime(moment), moment.astimezone(ZoneInfo(zone))) for moment in moments]


@cache
def by_clock(zone: str, minutes: int) -> dict[int, Window]:
    """Each minute's window: the run of minutes in which offset, date and part of the day stay the same."""

    def label(minute: tuple[int, datetime]) -> object:
        _, local = minute
        return local.utcoffset(), local.date(), (local.hour * 60 + local.minute) // minutes

    return runs([(at, label((at, local))) for at, local in minutes_around(zone)])


@cache
def by_date(zone: str, days: int) -> dict[int, Window]:
    """Each minute's window: a date begins where it is first shown, and lasts until a later one is."""
    latest = 0
    labels: list[tuple[int, object]] = []
    for at, local in minutes_around(zone):
        latest = max(latest, local.toordinal())
        labels.append((at, latest // days))
    return runs(labels)


def runs(labels: list[tuple[int, object]]) -> dict[int, Window]:
    """Windows by minute, without the first and the last, which are cut off."""
    groups = [[at for at, _ in run] for _, run in groupby(labels, lambda one: one[1])]
    found = {}
    for group, after in pairwise(groups[1:]):
        found.update(dict.fromkeys(group, Window(group[0], after[0])))
    return found


@settings(max_examples=60)
@given(st.sampled_from(sorted(CHANGES)), st.sampled_from([5, 15, 20, 30, 45, 60, 90, 240, 360, 720]), st.data())
def test_windows_on_a_zones_clock_equal_those_its_clock_shows(zone: str, size: int, data: st.DataObject) -> None:
    expected = by_clock(zone, size)
    assigner = windows.tumbling(mw.minutes(size), zone=zone)
    for stamp in data.draw(st.lists(st.sampled_from(sorted(expected)), max_size=40)):
        into = data.draw(st.integers(0, MINUTE - 1))
        assert assigner.windows_of(stamp + into) == (expected[stamp],)


@settings(max_examples=60)
@given(st.sampled_from(sorted(CHANGES)), st.sampled_from([1, 2]), st.data())
def test_local_days_begin_where_their_date_is_first_shown(zone: str, days: int, data: st.DataObject) -> None:
    expected = by_date(zone, days)
    assigner = windows.tumbling(mw.hours(24 * days), zone=zone)
    for stamp in data.draw(st.lists(st.sampled_from(sorted(expected)), max_size=40)):
        into = data.draw(st.integers(0, MINUTE - 1))
        assert assigner.windows_of(stamp + into) == (expected[stamp],)


@pytest.mark.parametrize("zone", sorted(CHANGES))
@pytest.mark.parametrize("size", [60, 1_440])
def test_every_minute_around_a_change_is_in_its_window(zone: str, size: int) -> None:
    expected = by_clock(zone, size) if size < 1_440 else by_date(zone, 1)
    assigner = windows.tumbling(mw.minutes(size), zone=zone)
    for stamp in sorted(expected, key=lambda at: (at // MINUTE % 7, at)):
        assert assigner.windows_of(stamp) == (expected[stamp],), to_datetime(Timestamp(stamp))


def test_a_local_week_begins_on_sunday() -> None:
    (week,) = windows.tumbling(mw.hours(24 * 7), zone="Europe/London").windows_of(0)
    assert (
        to_datetime(Timestamp(week.start)).astimezone(ZoneInfo("Europe/London")).strftime("%A %H:%M") == "Sunday 00:00"
    )


@pytest.mark.parametrize("stamp", [MIN_TIMESTAMP + 1, LAST_TIMESTAMP])
@pytest.mark.parametrize("size", [1, 24, 48])
def test_a_timestamp_beyond_the_calendar_has_no_local_window(stamp: int, size: int) -> None:
    with pytest.raises(mw.UsageError, match="outside the calendar"):
        windows.tumbling(mw.hours(size), zone="Asia/Tokyo").windows_of(stamp)
