"""Ready-made windows: bounds, results, late records, sessions and two phases, against naive models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel import windows
from millwheel.core.time import Timestamp, from_datetime, to_datetime
from millwheel.testing.harness import TopologyHarness

Computation = mw.Computation[Any, Any]
NEW_YORK = ZoneInfo("America/New_York")


@dataclass
class Hit:
    page: str
    size: int = 1


def harness_of(computation: Computation, output: str, result: Any) -> TopologyHarness:
    topology = mw.Topology("hits")
    topology.source("hits", Hit)
    outputs = {output: result, "too-late": Hit}
    topology.add(computation, name="windowed", inputs={"hits": mw.key("page")}, outputs=outputs)
    return TopologyHarness(topology)


@given(st.integers(-(10**15), 10**15), st.integers(1, 10**9), st.integers(1, 10**9), st.integers(0, 10**9))
def test_a_sliding_window_contains_its_timestamps_and_no_other_does(
    stamp: int, size: int, every: int, offset: int
) -> None:
    every = min(every, size)
    if size // every > 1_000:
        every = size // 1_000 + 1
    found = windows.sliding(mw.Duration(size), mw.Duration(every), offset=mw.Duration(offset)).windows_of(stamp)
    assert all(w.start <= stamp < w.end and w.end - w.start == size and (w.start - offset) % every == 0 for w in found)
    assert [w.start for w in found] == sorted(w.start for w in found)
    first = stamp - size + 1
    assert len(found) == len(range(first + (offset - first) % every, stamp + 1, every))


@given(st.datetimes(datetime(2012, 1, 1), datetime(2014, 12, 31)).map(lambda d: d.replace(tzinfo=UTC)))
def test_local_days_begin_at_local_midnight_and_cover_time_without_a_gap(moment: datetime) -> None:
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
def test_windows_within_a_day_partition_time_also_where_the_clocks_change(moment: datetime, size: float) -> None:
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


def result_of(type_: Any) -> Any:
    return windows.Result[type_]


HITS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.integers(0, 9)), max_size=60)


@settings(max_examples=40, deadline=None)
@given(
    HITS,
    st.sampled_from([(10, 10), (10, 5), (12, 4)]),
    st.sampled_from(["count", "total", "mean", "largest", "collect"]),
)
def test_g1_windows_equal_a_naive_group_by_4_6(
    hits: list[tuple[str, int, int]], shape: tuple[int, int], kind: str
) -> None:
    naive: dict[str, tuple[Any, Any, Any]] = {
        "count": (windows.count(), len, int),
        "total": (windows.total(lambda h: h.size), sum, int),
        "mean": (windows.mean(lambda h: h.size), lambda sizes: sum(sizes) / len(sizes), float),
        "largest": (windows.largest(lambda h: h.size), max, int),
        "collect": (windows.collect(lambda h: h.size, int), sorted, list[int]),
    }
    aggregator, expected_of, type_ = naive[kind]
    size, every = shape
    assigner = windows.sliding(mw.Duration(size), mw.Duration(every))
    harness = harness_of(windows.Aggregate(assigner, aggregator), "windows", result_of(type_))
    groups = defaultdict(list)
    for page, stamp, amount in hits:
        harness.send("hits", Hit(page, amount), Timestamp(stamp))
        for window in assigner.windows_of(stamp):
            groups[page, window.start].append(amount)
    harness.finish()
    found = [((r.key, r.start), r.value) for r in harness.values("windows")]
    assert sorted(found) == sorted((place, expected_of(sizes)) for place, sizes in groups.items())
    assert all(harness.state("windowed", page) is None for page in "abc"), "nothing is left behind"


def test_g14_late_records_correct_their_window_while_it_is_kept_and_go_to_too_late_afterwards_4_5() -> None:
    aggregate = windows.Aggregate(
        windows.tumbling(mw.Duration(10)), windows.count(), allowed_lateness=mw.Duration(10), too_late="too-late"
    )
    harness = harness_of(aggregate, "windows", windows.Result[int])
    harness.send("hits", Hit("a"), Timestamp(5))
    harness.advance_watermark(Timestamp(12))
    harness.send("hits", Hit("a"), Timestamp(6))
    harness.send("hits", Hit("b"), Timestamp(7))
    harness.advance_watermark(Timestamp(20))
    harness.send("hits", Hit("a", 99), Timestamp(8))
    harness.finish()
    assert [(r.key, r.start, r.value, r.revision) for r in harness.values("windows")] == [
        ("a", 0, 1, 0),
        ("a", 0, 2, 1),
        ("b", 0, 1, 0),
    ]
    assert harness.values("too-late") == [Hit("a", 99)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), max_size=30), st.integers(1, 8))
def test_sessions_equal_a_naive_sweep(hits: list[tuple[str, int]], gap: int) -> None:
    harness = harness_of(
        windows.SessionAggregate(windows.session(mw.Duration(gap)), windows.count()), "sessions", windows.Result[int]
    )
    by_page = defaultdict(list)
    for page, stamp in hits:
        harness.send("hits", Hit(page), Timestamp(stamp))
        by_page[page].append(stamp)
    expected = []
    for page, stamps in by_page.items():
        open_session: list[int] | None = None
        for stamp in sorted(stamps):
            if open_session is None or stamp >= open_session[1]:
                if open_session is not None:
                    expected.append((page, *open_session))
                open_session = [stamp, stamp + gap, 0]
            open_session[1] = stamp + gap
            open_session[2] += 1
        if open_session is not None:
            expected.append((page, *open_session))
    harness.finish()
    assert sorted((r.key, r.start, r.end, r.value) for r in harness.values("sessions")) == sorted(expected)


@settings(max_examples=20, deadline=None)
@given(HITS)
def test_two_phases_give_what_one_gives_8_4(hits: list[tuple[str, int, int]]) -> None:
    topology = mw.Topology("hot")
    topology.source("hits", Hit)
    windows.two_phase(
        topology,
        "pages",
        source="hits",
        key_of=lambda hit: hit.page,
        windows=windows.tumbling(mw.Duration(10)),
        aggregator=windows.total(lambda hit: hit.size),
        output="totals",
        result_type=int,
        shards=3,
    )
    harness = TopologyHarness(topology)
    expected: dict[tuple[str, int], int] = defaultdict(int)
    for page, stamp, amount in hits:
        harness.send("hits", Hit(page, amount), Timestamp(stamp))
        expected[page, stamp - stamp % 10] += amount
    harness.finish()
    assert {(r.key, r.start): r.value for r in harness.values("totals")} == expected
    assert len(harness.values("totals")) == len(expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: windows.tumbling(mw.Duration(0)), "must be positive"),
        (lambda: windows.sliding(mw.Duration(5), mw.Duration(6)), "would skip records"),
        (lambda: windows.tumbling(mw.hours(7), zone="UTC"), "must divide a day or be whole days"),
        (lambda: windows.tumbling(mw.hours(1), zone="UTC", offset=mw.minutes(5)), "an offset or a zone, not both"),
    ],
)
def test_windows_without_meaning_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(mw.UsageError, match=message):
        make()
