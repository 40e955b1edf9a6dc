"""Sketches of timestamps represent their values, in any order of merging (7.2)."""

from __future__ import annotations

import functools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.model.sketch import MAX_BUCKETS, TimestampSketch
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

stamps = st.one_of(st.integers(0, 500), st.integers(10**15, 10**15 + 10**9), st.integers(MIN_TIMESTAMP, MAX_TIMESTAMP))


def sketch(timestamps: list[int]) -> TimestampSketch:
    made = TimestampSketch()
    made.add((timestamp, 1) for timestamp in timestamps)
    return made


@pytest.mark.paper(section="7.2")
@given(st.lists(st.lists(stamps, max_size=200), min_size=1, max_size=5), st.randoms())
def test_sketches_merged_in_any_order_are_the_sketch_of_all(parts: list[list[int]], chance: random.Random) -> None:
    def merged(one: TimestampSketch, other: TimestampSketch) -> TimestampSketch:
        made = TimestampSketch(one.shift, one.counts)
        made.merge(other)
        return made

    chance.shuffle(parts)
    together = functools.reduce(merged, map(sketch, parts))
    assert together == sketch([stamp for part in parts for stamp in part])
    assert together.total == sum(map(len, parts))
    assert len(together.counts) <= MAX_BUCKETS


@pytest.mark.guarantee("G7", section="7.2")
@given(st.lists(stamps, max_size=300), st.integers(0, 300))
def test_a_rank_is_off_by_less_than_a_bucket_and_never_too_large(timestamps: list[int], rank: int) -> None:
    made, reported = sketch(timestamps), sketch(timestamps).at_rank(rank)
    if rank >= len(timestamps):
        assert reported is None
        return
    assert reported is not None
    exact = sorted(timestamps)[rank]
    assert reported <= exact < reported + (1 << made.shift)
    assert reported >= MIN_TIMESTAMP


def test_buckets_are_as_wide_as_need_be() -> None:
    assert sketch(list(range(MAX_BUCKETS))).shift == 0
    assert sketch(list(range(MAX_BUCKETS + 1))).shift == 1
    far_behind = sketch([5, *range(10**15, 10**15 + 1_000)])
    assert far_behind.at_rank(0) == 0
    assert far_behind.shift == 3, "one that is far behind widens nothing"


@pytest.mark.parametrize(
    ("shift", "counts"), [(-1, {}), (65, {}), (0, {5: 0}), (0, {5: -1}), (3, {1 << 62: 1}), (1, {-(1 << 63): 1})]
)
def test_a_sketch_that_cannot_be_is_refused(shift: int, counts: dict[int, int]) -> None:
    with pytest.raises(ValueError, match=r"sketch|bucket"):
        TimestampSketch(shift, counts)
