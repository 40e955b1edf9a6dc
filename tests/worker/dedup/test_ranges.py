"""Ranges of positions against a set of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millwheel.worker.dedup.ranges import Ranges

MOST = 20
SOME = st.builds(lambda start, count: range(start, start + count), st.integers(0, MOST), st.integers(1, 6))
STEPS = st.lists(st.tuples(st.booleans(), SOME), max_size=12)


@given(STEPS, SOME, st.integers(0, MOST))
def test_ranges_are_a_set_of_positions(steps: list[tuple[bool, range]], asked: range, below: int) -> None:
    ranges, model = Ranges(), set[int]()
    for adds, one in steps:
        if adds:
            ranges.add(one)
            model |= set(one)
        else:
            ranges.remove(one)
            model -= set(one)
        found = list(ranges)
        assert [position for part in found for position in part] == sorted(model)
        assert all(part for part in found), "no range is empty"
        assert all(left.stop < right.start for left, right in pairwise(found)), "none touch"
    assert ranges == Ranges(found for found in reversed(list(ranges)))
    assert ranges.covers(asked) == (model >= set(asked))
    assert ranges.overlaps(asked) == (not model.isdisjoint(asked))
    assert [one in ranges for one in range(MOST + 8)] == [one in model for one in range(MOST + 8)]
    ranges.drop_below(below)
    assert [position for part in ranges for position in part] == sorted(one for one in model if one >= below)
    assert len(ranges) == len(list(ranges))
