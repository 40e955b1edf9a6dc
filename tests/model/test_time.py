"""Timestamps are integer microseconds; the two infinities are watermarks only (section 4)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.model.time import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Duration,
    Timestamp,
    days,
    format_duration,
    format_timestamp,
    from_datetime,
    hours,
    milliseconds,
    minutes,
    seconds,
    to_datetime,
)


@pytest.mark.paper(section="4")
@given(st.datetimes(timezones=st.just(UTC)))
def test_every_moment_of_the_calendar_survives_the_round_trip(moment: datetime) -> None:
    assert to_datetime(from_datetime(moment)) == moment


def test_a_moment_is_the_same_timestamp_in_every_time_zone() -> None:
    moment = datetime(2013, 8, 26, 9, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    assert from_datetime(moment) == 1_377_502_200_123_456
    assert from_datetime(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1


def test_a_naive_moment_is_refused_because_it_names_no_instant() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        from_datetime(datetime(2013, 8, 26))


def test_format_is_iso_8601_with_the_infinities_by_name() -> None:
    assert format_timestamp(Timestamp(1_377_502_200_123_456)) == "2013-08-26T07:30:00.123456Z"
    assert format_timestamp(Timestamp(0)) == "1970-01-01T00:00:00Z"
    assert format_timestamp(MIN_TIMESTAMP) == "-inf"
    assert format_timestamp(MAX_TIMESTAMP) == "+inf"


def test_format_gives_raw_microseconds_beyond_the_calendar() -> None:
    assert format_timestamp(Timestamp(MAX_TIMESTAMP - 1)) == "+294247-01-10T04:00:54.775806Z"
    assert format_timestamp(Timestamp(MIN_TIMESTAMP + 1)) == "-290308-12-21T19:59:05.224193Z"


def test_infinities_are_no_moments_and_fit_in_64_bits() -> None:
    assert (MIN_TIMESTAMP, MAX_TIMESTAMP) == (-(2**63), 2**63 - 1)
    for infinity in (MIN_TIMESTAMP, MAX_TIMESTAMP):
        with pytest.raises(OverflowError):
            to_datetime(infinity)


def test_durations_are_whole_microseconds() -> None:
    assert milliseconds(1.5) == 1_500
    assert seconds(2) == 2_000_000
    assert minutes(0.5) == 30_000_000
    assert hours(2) == 7_200_000_000
    assert days(1.5) == hours(36)
    assert milliseconds(0.0004) == 0


@pytest.mark.parametrize(
    ("length", "shown"),
    [
        (0, "0.0 ms"),
        (1_240, "1.2 ms"),
        (921_000, "921 ms"),
        (999_600, "1.0 s"),
        (1_240_000, "1.2 s"),
        (9_960_000, "10 s"),
        (59_700_000, "1 min"),
        (75_000_000, "1 min 15 s"),
        (15_120_000_000, "4 h 12 min"),
        (86_400_000_000, "1 d"),
        (95_299_200_000_000, "3 y 8 d"),
        (-1_500_000, "-1.5 s"),
    ],
)
def test_a_duration_is_shown_by_its_two_largest_units(length: int, shown: str) -> None:
    assert format_duration(Duration(length)) == shown


@given(st.integers(0, 2**62))
def test_a_shown_duration_differs_by_less_than_a_tenth(one: int) -> None:
    units = {"y": 365 * 86_400, "d": 86_400, "h": 3_600, "min": 60, "s": 1, "ms": 0.001}
    words = format_duration(Duration(one)).replace(",", "").split()
    length = sum(float(count) * units[unit] for count, unit in zip(words[::2], words[1::2], strict=True))
    assert abs(length - one / 1e6) <= max(0.1 * one / 1e6, 0.0001)
