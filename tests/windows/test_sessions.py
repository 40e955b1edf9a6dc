"""Sessions: windows that records open, extend and join."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel import windows
from millwheel.core.time import Timestamp
from tests.windows.hits import HITS, Hit, extent, harness_of


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), max_size=30), st.integers(1, 8))
def test_sessions_equal_a_naive_sweep(hits: list[tuple[str, int]], gap: int) -> None:
    harness = harness_of(windows.SessionAggregate(windows.session(mw.Duration(gap)), windows.count()))
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


@settings(max_examples=30, deadline=None)
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
    collect = windows.collect(lambda hit: hit.size, int, limit=2)
    harness = harness_of(windows.SessionAggregate(windows.session(mw.Duration(5)), collect))
    harness.send_all("hits", [(Hit("a"), Timestamp(stamp)) for stamp in (0, 1, 8)])
    with pytest.raises(ValueError, match="the window would hold 3 items, and collect's limit is 2"):
        harness.send("hits", Hit("a"), Timestamp(4))
