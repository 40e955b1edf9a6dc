"""Sessions: windows that records open, extend and join."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.model.time import Timestamp
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


@pytest.mark.guarantee("G14", section="4.5")
@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(-20, 30), st.none() | st.integers(-20, 40)), max_size=30),
    st.integers(1, 9),
)
def test_a_late_record_extends_an_open_session_or_is_too_late(
    steps: list[tuple[str, int, int | None]], gap: int
) -> None:
    session = windows.session(mw.Duration(gap))
    harness = harness_of(windows.SessionAggregate(session, agg.count(), too_late="too-late"))
    watermark, too_late = -100, 0
    open_now: list[tuple[str, int, int, int]] = []
    ended: list[tuple[str, int, int, int]] = []
    for page, stamp, to in steps:
        harness.send("hits", Hit(page), Timestamp(stamp))
        joined = [one for one in open_now if one[0] == page and one[1] < stamp + gap and stamp < one[2]]
        if joined or watermark < stamp + gap:
            start, end = min([stamp, *(one[1] for one in joined)]), max([stamp + gap, *(one[2] for one in joined)])
            open_now = [one for one in open_now if one not in joined]
            open_now.append((page, start, end, 1 + sum(one[3] for one in joined)))
        else:
            too_late += 1
        if to is not None and to > watermark:
            watermark = to
            harness.advance(Timestamp(to))
            ended += [one for one in open_now if one[2] <= to]
            open_now = [one for one in open_now if one[2] > to]
    harness.finish()
    found = [(r.key, r.start, r.end, r.value) for r in harness.values("sessions")]
    assert sorted(found) == sorted(ended + open_now)
    assert len(harness.values("too-late")) == too_late
    assert sum(value for *_, value in found) + too_late == len(steps), "every record is in one session, or too late"
    assert [harness.state("windowed", page) for page in "ab"] == [None, None], "nothing is left behind"


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
