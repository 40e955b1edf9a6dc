"""Ready-made windows: bounds and results, against naive models."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.model.time import LAST_TIMESTAMP, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp, from_datetime, to_datetime
from tests.windows.hits import HITS, Hit, harness_of

NEW_YORK = ZoneInfo("America/New_York")


def test_the_package_alone_gives_the_windows() -> None:
    program = "import millwheel as mw; mw.windows.tumbling(mw.seconds(1))"
    subprocess.run([sys.executable, "-c", program], check=True)


@given(st.integers(-(10**15), 10**15), st.integers(1, 10**9), st.integers(1, 10**9), st.integers(0, 10**9))
def test_a_sliding_window_contains_its_timestamps_and_no_others(stamp: int, size: int, every: int, offset: int) -> None:
    every = min(every, size)
    if size // every > 1_000:
        every = size // 1_000 + 1
    found = windows.sliding(mw.Duration(size), mw.Duration(every), offset=mw.Duration(offset)).windows_of(stamp)
    assert all(w.start <= stamp < w.end and w.end - w.start == size and (w.start - offset) % every == 0 for w in found)
    assert [w.start for w in found] == sorted(w.start for w in found)
    first = stamp - size + 1
    assert len(found) == len(range(first + (offset - first) % every, stamp + 1, every))


@given(st.datetimes(datetime(2012, 1, 1), datetime(2014, 12, 31)).map(lambda d: d.replace(tzinfo=UTC)))
def test_local_days_begin_at_local_midnight_without_a_gap(moment: datetime) -> None:
    (window,) = windows.tumbling(mw.hours(24), zone="America/New_York").windows_of(from_datetime(moment))
    start, end = (to_datetime(Timestamp(t)).astimezone(NEW_YORK) for t in (window.start, window.end))
    assert start <= moment < end
    assert (start.hour, start.minute, end.hour, end.minute) == (0, 0, 0, 0)
    assert end.date() - start.date() == timedelta(days=1)
    (after,) = windows.tumbling(mw.hours(24), zone=NEW_YORK).windows_of(window.end)
    assert after.start == window.end


@settings(max_examples=300)
@given(
    st.one_of(
        st.datetimes(datetime(2013, 3, 9, 20), datetime(2013, 3, 11)),
        st.datetimes(datetime(2013, 11, 2, 20), datetime(2013, 11, 4)),
    ).map(lambda d: d.replace(tzinfo=UTC)),
    st.sampled_from([0.5, 1, 2, 3, 4, 6, 8, 12]),
)
def test_windows_within_a_day_partition_time_at_clock_changes(moment: datetime, size: float) -> None:
    assigner = windows.tumbling(mw.hours(size), zone=NEW_YORK)
    stamp = from_datetime(moment)
    (window,) = assigner.windows_of(stamp)
    assert window.start <= stamp < window.end <= window.start + mw.hours(size)
    assert assigner.windows_of(window.start) == assigner.windows_of(window.end - 1) == (window,)
    (before,), (after,) = assigner.windows_of(window.start - 1), assigner.windows_of(window.end)
    assert before.end == window.start
    assert after.start == window.end


def test_a_spring_day_has_23_hours_and_an_autumn_day_25() -> None:
    day = windows.tumbling(mw.hours(24), zone=NEW_YORK)
    for date, hours in [((2013, 3, 10), 23), ((2013, 11, 3), 25), ((2013, 7, 1), 24)]:
        (window,) = day.windows_of(from_datetime(datetime(*date, 12, tzinfo=NEW_YORK)))
        assert window.end - window.start == mw.hours(hours)


@pytest.mark.guarantee("G1", section="4.6")
@settings(max_examples=40)
@given(
    HITS,
    st.sampled_from([(10, 10), (10, 5), (12, 4), (7, 3), (10, 4)]),
    st.sampled_from(["count", "total", "mean", "largest", "collect"]),
)
def test_windows_equal_a_naive_group_by(hits: list[tuple[str, int, int]], shape: tuple[int, int], kind: str) -> None:
    naive: dict[str, tuple[Any, Any]] = {
        "count": (agg.count(), len),
        "total": (agg.sum(lambda h: h.size), sum),
        "mean": (agg.mean(lambda h: h.size), lambda sizes: sum(sizes) / len(sizes)),
        "largest": (agg.max(lambda h: h.size), max),
        "collect": (agg.collect(lambda h: h.size, int), sorted),
    }
    aggregator, expected_of = naive[kind]
    size, every = shape
    assigner = windows.sliding(mw.Duration(size), mw.Duration(every))
    harness = harness_of(windows.Aggregate(assigner, aggregator))
    groups = defaultdict(list)
    for page, stamp, amount in hits:
        harness.send("hits", Hit(page, amount), Timestamp(stamp))
        for window in assigner.windows_of(stamp):
            groups[page, window.start].append(amount)
    harness.finish()
    found = [((r.key, r.start), r.value) for r in harness.values("windows")]
    assert sorted(found) == sorted((place, expected_of(sizes)) for place, sizes in groups.items())
    assert all(harness.state("windowed", page) is None for page in "abc"), "nothing is left behind"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: windows.tumbling(mw.Duration(0)), "must be a positive duration"),
        (
            lambda: windows.Aggregate(windows.tumbling(mw.seconds(1)), agg.count(), allowed_lateness=mw.Duration(-1)),
            "must be a duration of 0 or more",
        ),
        (lambda: windows.sliding(mw.Duration(5), mw.Duration(6)), "would skip records"),
        (lambda: windows.tumbling(mw.hours(7), zone="UTC"), "must divide a day or be whole days"),
        (lambda: windows.tumbling(mw.hours(1), zone="UTC", offset=mw.minutes(5)), "an offset or a zone, not both"),
    ],
)
def test_windows_without_meaning_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(mw.UsageError, match=message):
        make()


def test_windows_of_the_wrong_kind_are_refused() -> None:
    tumbling: Any = windows.tumbling(mw.seconds(1))
    with pytest.raises(mw.UsageError, match="use Aggregate for others"):
        windows.SessionAggregate(tumbling, agg.count())
    session: Any = windows.session(mw.seconds(1))
    with pytest.raises(mw.UsageError, match="session windows need SessionAggregate"):
        windows.Aggregate(session, agg.count())


ENDS = [MIN_TIMESTAMP, MIN_TIMESTAMP + 1, LAST_TIMESTAMP - 5, LAST_TIMESTAMP]


@pytest.mark.parametrize("stamp", ENDS)
@pytest.mark.parametrize(
    "computation",
    [
        windows.Aggregate(windows.tumbling(mw.seconds(1)), agg.count()),
        windows.Aggregate(windows.tumbling(mw.seconds(1)), agg.count(), allowed_lateness=mw.hours(1)),
        windows.SessionAggregate(windows.session(mw.seconds(1)), agg.count(), output="windows"),
    ],
)
def test_windows_are_cut_where_time_begins_and_ends(computation: Any, stamp: int) -> None:
    harness = harness_of(computation)
    harness.send("hits", Hit("a"), Timestamp(stamp))
    harness.finish()
    (result,) = harness.values("windows")
    assert MIN_TIMESTAMP <= result.start <= stamp < result.end <= MAX_TIMESTAMP
    assert harness.watermark("windowed") == MAX_TIMESTAMP
