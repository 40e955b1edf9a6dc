"""A throttle against a loop over the records that have passed (G1, G13)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000


class Call(msgspec.Struct, frozen=True):
    key: int
    number: int


calls_of = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1)), max_size=20).map(
    lambda given: [(at, Call(key, number)) for number, (at, key) in enumerate(given)]
)


def at(offset: int) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + offset)


def crowded(times: list[int], count: int, per: int) -> bool:
    """Whether more than ``count`` times are in some time of the length ``per``."""
    return any(sum(begin <= time < begin + per for time in times) > count for begin in times)


def chosen(calls: list[tuple[int, Call]], count: int, per: int) -> list[int]:
    """The numbers of the calls that pass, if they arrive in this order."""
    passed: list[tuple[int, Call]] = []
    for time, call in calls:
        mine = [other for other, one in passed if one.key == call.key]
        if not crowded([*mine, time], count, per):
            passed.append((time, call))
    return [call.number for _, call in passed]


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("in_order", [False, True])
@given(
    calls=calls_of,
    count=st.integers(1, 3),
    per=st.integers(1, 8),
    crash_at=st.integers(0, 20),
    lag=st.none() | st.integers(0, 4),
)
def test_a_throttle_passes_what_has_room(
    in_order: bool, calls: list[tuple[int, Call]], count: int, per: int, crash_at: int, lag: int | None
) -> None:
    topology = mw.Topology("calls")
    keyed = topology.source("calls", Call).key_by("key")
    if in_order:
        keyed.ordered_by_time("number").throttle("passed", count, mw.Duration(per), excess="refused")
    else:
        keyed.throttle("passed", count, mw.Duration(per), excess="refused")
    harness = TopologyHarness(topology, split_at=["1"])
    for number, (time, call) in enumerate(calls):
        if number == crash_at:
            harness.crash()
        harness.send("calls", call, timestamp=at(time))
        if lag is not None:  # nothing is late
            harness.advance(at(min([time - lag, *(later for later, _ in calls[number + 1 :])])))
    harness.advance(at(1_000))
    arrived = sorted(calls, key=lambda one: (one[0], one[1].number)) if in_order else calls
    passed = chosen(arrived, count, per)
    assert sorted(call.number for call in harness.values("passed")) == sorted(passed)
    refused = {call.number for _, call in calls} - {*passed}
    assert {call.number for call in harness.values("refused")} == refused
    assert [harness.state("passed", key) for key in range(2)] == [None, None], "nothing is kept for ever"


@pytest.mark.guarantee("G13")
def test_a_throttle_keeps_no_times_that_are_long_ago() -> None:
    topology = mw.Topology("calls")
    topology.source("calls", Call).key_by("key").throttle("passed", 2, mw.Duration(10))
    harness = TopologyHarness(topology)
    for number in range(40):
        harness.send("calls", Call(1, number), timestamp=at(number))
        harness.advance(at(number))
        assert len(harness.state("passed", 1)) <= 3
    assert [call.number for call in harness.values("passed")] == [0, 1, 10, 11, 20, 21, 30, 31]


def test_wrong_throttles_are_refused() -> None:
    keyed = mw.Topology("calls").source("calls", Call).key_by("key")
    for count in (0, 1_001):
        with pytest.raises(mw.UsageError, match=f"throttle takes a count from 1 to 1,000, not {count}"):
            keyed.throttle("passed", count, mw.hours(1))
    with pytest.raises(mw.UsageError, match=r"throttle\(per\) must be a positive duration .*, not 0"):
        keyed.throttle("passed", 1, mw.Duration(0))
    with pytest.raises(mw.UsageError, match="one name for two streams"):
        keyed.throttle("passed", 1, mw.Duration(1), excess="passed")
