"""Sessions: windows that records open, extend and join."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.model.time import Timestamp
from millwheel.testing import TopologyHarness
from tests.windows.hits import HITS, Hit, extent, harness_of


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), max_size=30), st.integers(1, 8))
def test_sessions_equal_a_naive_sweep(hits: list[tuple[str, int]], gap: int) -> None:
    harness = harness_of(windows.SessionAggregate(windows.session(mw.Duration(gap)), agg.count()))
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


class Session(NamedTuple):
    """A session of the naive model."""

    page: str
    start: int
    end: int
    records: int
    revision: int

    def after(self, others: list[Session]) -> Session:
        """This session merged with ``others``, which it overlaps."""
        every = [self, *others]
        bounds = min(one.start for one in every), max(one.end for one in every)
        return Session(self.page, *bounds, sum(one.records for one in every), max(one.revision for one in every))

    @property
    def revised(self) -> Session:
        return self._replace(revision=self.revision + 1)


STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(-20, 30), st.none() | st.integers(-20, 40), st.booleans()), max_size=30
)


@pytest.mark.guarantee("G14", section="4.5")
@settings(max_examples=200)
@given(STEPS, st.integers(1, 9), st.sampled_from([0, 0, 3, 12]))
def test_a_late_record_extends_a_session_or_is_too_late(
    steps: list[tuple[str, int, int | None, bool]], gap: int, lateness: int
) -> None:
    step = windows.SessionAggregate(
        windows.session(mw.Duration(gap)), agg.count(), allowed_lateness=mw.Duration(lateness), too_late="too-late"
    )
    harness = harness_of(step)
    watermark, too_late = -100, 0
    kept: list[Session] = []
    results: list[Session] = []

    def change(one: Session) -> None:
        """Keep a session, and produce its result if it has ended."""
        if one.end <= watermark:
            one = one.revised
            results.append(one)
        if watermark < one.end + lateness:
            kept.append(one)

    def rise(to: int) -> None:
        """The sessions that end until then have results, and some are not kept any more."""
        nonlocal watermark
        changed, before, watermark = [*kept], watermark, to
        kept.clear()
        for one in changed:
            if one.end > before:
                change(one)
            elif watermark < one.end + lateness:
                kept.append(one)

    for page, stamp, to, crashes in steps:
        harness.send("hits", Hit(page), Timestamp(stamp))
        opened = Session(page, stamp, stamp + gap, 1, -1)
        joined = [one for one in kept if one.page == page and one.start < opened.end and stamp < one.end]
        if watermark < opened.end + lateness or any(one.start <= stamp for one in joined):
            kept[:] = [one for one in kept if one not in joined]
            change(opened.after(joined))
        else:
            too_late += 1
        if crashes:
            harness.crash()
        if to is not None and to > watermark:
            rise(to)
            harness.advance(Timestamp(to))
    rise(1_000)
    harness.finish()
    found = [Session(r.key, r.start, r.end, r.value, r.revision) for r in harness.values("sessions")]
    assert sorted(found) == sorted(results)
    assert len(harness.values("too-late")) == too_late
    last = [one for one in found if not any(_replaces(other, one) for other in found)]
    assert sum(one.records for one in last) + too_late == len(steps), "every record is in one session, or too late"
    assert [harness.state("windowed", page) for page in "ab"] == [None, None], "nothing is left behind"
    assert [harness.timers("windowed", page) for page in "ab"] == [{}, {}]


def _replaces(one: Session, other: Session) -> bool:
    """Whether a result replaces another one, as readers decide."""
    within = one.page == other.page and one.start <= other.start and other.end <= one.end
    return within and one.revision > other.revision


early_of = st.sampled_from([windows.each_change(), *(windows.every(mw.Duration(micros)) for micros in (1, 3, 20))])


@pytest.mark.guarantee("G14", section="4.5")
@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(-9, 20), st.integers(0, 4), st.booleans()), max_size=25),
    st.integers(1, 9),
    early_of,
)
def test_results_of_sessions_replace_the_early_ones_within_them(
    steps: list[tuple[str, int, int, bool]], gap: int, early: windows.Early
) -> None:
    """Each is a part of a session at the end. Records are up to nine microseconds late."""
    step = windows.SessionAggregate(
        windows.session(mw.Duration(gap)), agg.count(), early=early, allowed_lateness=mw.Duration(9)
    )
    harness, watermark, sent = harness_of(step), 0, dict[str, list[int]](a=[], b=[])
    harness.advance(Timestamp(0))
    for page, shift, rise, crashes in steps:
        harness.send("hits", Hit(page), Timestamp(watermark + shift))
        sent[page].append(watermark + shift)
        if crashes:
            harness.crash()
        harness.advance_clock(mw.Duration(2))
        watermark += rise
        harness.advance(Timestamp(watermark))
    harness.finish()
    found = [Session(r.key, r.start, r.end, r.value, r.revision) for r in harness.values("sessions")]
    last = [one[:4] for one in found if not any(_replaces(other, one) for other in found)]
    expected = list[tuple[str, int, int, int]]()
    for page, stamps in sent.items():
        for stamp in sorted(stamps):
            if not expected or expected[-1][0] != page or stamp >= expected[-1][2]:
                expected.append((page, stamp, stamp + gap, 0))
            _, start, _, records = expected[-1]
            expected[-1] = page, start, stamp + gap, records + 1
    assert sorted(last) == sorted(expected)
    ends = [one.timestamp for one in harness.produced("sessions")]
    assert ends == [one.end for one in found]
    if not early.period:
        assert len(found) >= len(steps)
    assert [harness.state("windowed", page) for page in "ab"] == [None, None], "nothing is left behind"
    assert [harness.timers("windowed", page) for page in "ab"] == [{}, {}]


def test_early_results_of_a_session_come_while_records_do() -> None:
    step = windows.SessionAggregate(windows.session(mw.Duration(10)), agg.count(), early=windows.every(mw.Duration(4)))
    harness = harness_of(step)
    for stamp in (0, 15, 5):
        harness.send("hits", Hit("a"), Timestamp(stamp))
        harness.advance_clock(mw.Duration(1))
    harness.advance_clock(mw.Duration(1))
    harness.advance_clock(mw.Duration(100))  # nothing has changed
    harness.send("hits", Hit("a"), Timestamp(4))
    harness.advance(Timestamp(30))
    results = [(r.start, r.end, r.value, r.revision) for r in harness.values("sessions")]
    assert results == [(0, 15, 2, 0), (15, 25, 1, 0), (0, 15, 3, 1), (15, 25, 1, 1)]


def kept_for(lateness: int) -> TopologyHarness:
    session = windows.session(mw.Duration(10))
    return harness_of(
        windows.SessionAggregate(session, agg.count(), allowed_lateness=mw.Duration(lateness), too_late="lost")
    )


@pytest.mark.guarantee("G14", section="4.5")
def test_a_late_record_joins_two_sessions_with_results() -> None:
    harness = kept_for(100)
    harness.send_all("hits", [(Hit("a"), Timestamp(stamp)) for stamp in (0, 15)])
    harness.advance(Timestamp(30))
    for stamp in (0, 8):
        harness.send("hits", Hit("a"), Timestamp(stamp))
    results = [(r.start, r.end, r.value, r.revision) for r in harness.values("sessions")]
    assert results == [(0, 10, 1, 0), (15, 25, 1, 0), (0, 10, 2, 1), (0, 25, 4, 2)]


@pytest.mark.guarantee("G14", section="4.5")
def test_a_session_that_goes_on_is_kept_until_its_new_end() -> None:
    harness = kept_for(3)
    for stamp, watermark in ((0, 12), (8, 17), (16, 40)):
        harness.send("hits", Hit("a"), Timestamp(stamp))
        harness.advance(Timestamp(watermark))
    results = [(r.start, r.end, r.value, r.revision) for r in harness.values("sessions")]
    assert results == [(0, 10, 1, 0), (0, 26, 3, 1)]
    assert harness.state("windowed", "a") is None


@pytest.mark.guarantee("G14", section="4.5")
@pytest.mark.parametrize("lateness", [0, 3])
def test_no_session_contains_one_that_is_not_kept(lateness: int) -> None:
    """Regression: readers took the result of the longer session for that of both, and lost the records of one."""
    harness = kept_for(lateness)
    harness.send("hits", Hit("a", 1), Timestamp(0))
    harness.advance(Timestamp(12 + lateness))
    for size, stamp in enumerate((5, 2, 3, 8, -1), 2):
        harness.send("hits", Hit("a", size), Timestamp(stamp))
    harness.finish()
    last = [(r.start, r.end, r.value) for r in harness.values("sessions")][-1]
    assert last == (3, 18, 3), "its own session would be kept until 13"
    assert harness.values("lost") == [Hit("a", 3), Hit("a", 6)]


@settings(max_examples=30)
@given(HITS, st.integers(1, 6), st.randoms(use_true_random=False))
def test_sessions_do_not_depend_on_the_order_of_arrival(
    hits: list[tuple[str, int, int]], gap: int, chance: random.Random
) -> None:
    found = []
    for order in (hits, chance.sample(hits, len(hits)), sorted(hits, key=lambda hit: -hit[1])):
        harness = harness_of(windows.SessionAggregate(windows.session(mw.Duration(gap)), extent()))
        harness.send_all("hits", [(Hit(page, amount), Timestamp(stamp)) for page, stamp, amount in order])
        harness.finish()
        found.append(sorted((r.key, r.start, r.end, r.value) for r in harness.values("sessions")))
    assert found[0] == found[1] == found[2]


def test_collect_holds_its_limit_also_where_sessions_merge() -> None:
    collect = agg.collect(lambda hit: hit.size, int, limit=3)
    harness = harness_of(windows.SessionAggregate(windows.session(mw.Duration(5)), collect))
    harness.send_all("hits", [(Hit("a"), Timestamp(stamp)) for stamp in (0, 1, 8, 9)])
    with pytest.raises(ValueError, match="the window would hold 4 items, and collect's limit is 3"):
        harness.send("hits", Hit("a"), Timestamp(4))
