"""Where a source begins: what a program may say, and at which offset of a topic that is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.connectors.kafka.beginnings import offset_at, offset_since, plain_start
from millwheel.connectors.starts import checked_start

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


def test_each_form_of_a_start_is_taken() -> None:
    assert checked_start("earliest") == "earliest"
    assert checked_start("latest") == "latest"
    assert checked_start(MONDAY) == mw.from_datetime(MONDAY)
    assert checked_start(mw.from_datetime(MONDAY)) == mw.from_datetime(MONDAY)
    assert plain_start({0: 4711, 2: 0}) == {0: 4711, 2: 0}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("monday", "start= is 'earliest'"),
        (None, "start= is"),
        (True, "start= is"),
        (1.5, "start= is"),
        (-1, "start= is"),
        ({0: 1}, "start= is"),
        (datetime(1969, 1, 1, tzinfo=UTC), "since 1970"),
        (datetime(2026, 1, 5), "has no time zone"),  # that is the mistake
    ],
)
def test_what_is_no_start_is_refused(given: Any, why: str) -> None:
    with pytest.raises(mw.UsageError, match=why):
        checked_start(given)


@given(times=st.lists(st.integers(0, 20), max_size=12), removed=st.integers(0, 12), since=st.integers(0, 20))
def test_a_time_leaves_nothing_out_silently(times: list[int], removed: int, since: int) -> None:
    """Unless the first record that is there is older: what was removed before it counts as older, too."""
    high = len(times)
    low = min(removed, high)
    found = next((offset for offset in range(low, high) if times[offset] >= since), -1)
    begins = offset_since(low, high, found)
    assert low <= begins.offset <= high
    first = next((offset for offset in range(high) if times[offset] >= since), high)
    assert begins.uncertain or begins.offset == first or (low < high and times[low] < since)
    assert not (begins.uncertain and low == 0)


@pytest.mark.parametrize("low", [0, 5])
def test_a_partition_of_which_nothing_is_left_says_so(low: int) -> None:
    """No time is certain there, so an error must not ask for another one."""
    assert offset_since(low, low, -1) == (low, low > 0, low > 0)
    assert not offset_since(low, low + 1, -1).empty


def test_what_comes_during_a_search_is_read() -> None:
    assert offset_since(0, 4, 6).offset == 4  # two more are there after the search, and nothing was as new before
    assert offset_since(0, 4, -1).offset == 4


@given(st.integers(0, 9), st.integers(0, 9), st.dictionaries(st.integers(0, 3), st.integers(0, 9)))
def test_offsets_are_taken_as_they_are(low: int, more: int, offsets: dict[int, int]) -> None:
    for partition in range(4):
        assert offset_at(offsets, partition, low, low + more) == offsets.get(partition, low)
        assert offset_at("earliest", partition, low, low + more) == low
        assert offset_at("latest", partition, low, low + more) == low + more
