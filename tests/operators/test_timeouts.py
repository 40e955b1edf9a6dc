"""Silent keys and windows of a number of records, against loops over all records (G1, G6, G7, G13)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000
CLOCK = mw.TimeDomain.PROCESSING_TIME


class Beat(msgspec.Struct, frozen=True, order=True):
    key: int
    number: int


class Silent(msgspec.Struct, frozen=True, order=True):
    key: int
    number: int


class Group(msgspec.Struct, frozen=True):
    key: int
    count: int
    numbers: list[int]


def silent(beat: Beat) -> Silent:
    return Silent(beat.key, beat.number)


Event = tuple[int, Beat]
events_of = st.lists(st.tuples(st.integers(0, 30), st.builds(Beat, st.integers(0, 2), st.integers(0, 5))), max_size=15)


def at(offset: int) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + offset)


def run(topology: mw.Topology, events: list[Event], crash_at: int, lag: int | None) -> TopologyHarness:
    harness = TopologyHarness(topology, split_at=["1"])
    for number, (time, event) in enumerate(events):
        if number == crash_at:
            harness.crash()
        harness.send("beats", event, timestamp=at(time))
        if lag is not None:  # nothing is late
            harness.advance(at(min([time - lag, *(later for later, _ in events[number + 1 :])])))
    harness.advance(at(1_000))
    return harness


def assert_released(harness: TopologyHarness, computation: str) -> None:
    for key in range(3):
        assert harness.state(computation, key) is None
        assert harness.timers(computation, key) == {}


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("ordered", [False, True])
@given(events=events_of, after=st.integers(1, 6), crash_at=st.integers(0, 15), lag=st.none() | st.integers(0, 9))
def test_a_silence_does_not_depend_on_arrival(
    ordered: bool, events: list[Event], after: int, crash_at: int, lag: int | None
) -> None:
    topology = mw.Topology("beats")
    keyed = topology.source("beats", Beat).key_by("key")
    steps = keyed.ordered_by_time() if ordered else keyed
    steps.timeout("silent", mw.Duration(after), silent, Silent)
    harness = run(topology, events, crash_at, lag)
    ranked = [(beat.key, time, msgspec.msgpack.encode(beat), beat) for time, beat in events]
    expected = [
        (silent(beat), time + after)
        for key, time, code, beat in set(ranked)
        if not any(
            key == other and (time, code) < (late, more) and late < time + after for other, late, more, _ in ranked
        )
    ]
    assert sorted((one.value, one.timestamp - BEGIN) for one in harness.produced("silent")) == sorted(expected)
    assert_released(harness, "silent")


@pytest.mark.guarantee("G14")
def test_a_late_record_without_a_stretch_is_dropped() -> None:
    topology = mw.Topology("beats")
    topology.source("beats", Beat).key_by("key").timeout("silent", mw.Duration(5), silent, Silent)
    harness = TopologyHarness(topology)
    harness.advance(at(10))
    harness.send("beats", Beat(1, 1), timestamp=at(5))
    assert harness.values("silent") == []
    assert_released(harness, "silent")
    harness.send("beats", Beat(1, 2), timestamp=at(6))  # late, but its time has not run out
    harness.advance(at(11))
    assert harness.values("silent") == [Silent(1, 2)]
    assert harness.counts("silent")["dropped"] == 1


@pytest.mark.guarantee("G6")
def test_a_silence_by_the_wall_clock() -> None:
    topology = mw.Topology("beats")
    topology.source("beats", Beat).key_by("key").timeout("silent", mw.seconds(5), silent, Silent, domain=CLOCK)
    harness = TopologyHarness(topology)
    for number, key in enumerate([0, 1, 0, 1, 0]):
        harness.send("beats", Beat(key, number), timestamp=at(10 - number))
        harness.advance_clock(mw.seconds(2))
    harness.crash()
    assert harness.values("silent") == []
    harness.advance_clock(mw.seconds(1))
    assert harness.values("silent") == [Silent(1, 3)]
    harness.advance_clock(mw.seconds(2))
    assert harness.values("silent") == [Silent(1, 3), Silent(0, 4)]
    assert_released(harness, "silent")


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("ordered", [False, True])
@given(events=events_of, size=st.integers(1, 4), crash_at=st.integers(0, 15), lag=st.none() | st.integers(0, 9))
def test_a_window_of_a_number_of_records(
    ordered: bool, events: list[Event], size: int, crash_at: int, lag: int | None
) -> None:
    topology = mw.Topology("beats")
    keyed = topology.source("beats", Beat).key_by("key")
    steps = keyed.ordered_by_time("number") if ordered else keyed
    numbers = agg.collect("number")
    steps.count_window(size, within=mw.Duration(2_000)).aggregate("groups", Group, count=agg.count(), numbers=numbers)
    harness = run(topology, events, crash_at, lag)
    rows = sorted(events, key=lambda one: (one[0], one[1].number)) if ordered else events
    expected = []
    for key in range(3):
        mine = [(time, beat.number) for time, beat in rows if beat.key == key]
        for begin in range(0, len(mine) - len(mine) % size, size):
            part = mine[begin : begin + size]
            expected.append((Group(key, size, sorted(number for _, number in part)), max(part)[0]))
    found = [(one.value, one.timestamp - BEGIN) for one in harness.produced("groups")]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    harness.advance(at(3_000))
    rest = [one.value for one in harness.produced("groups")][len(found) :]
    lengths = {key: sum(beat.key == key for _, beat in events) % size for key in range(3)}
    assert {one.key: one.count for one in rest} == {key: count for key, count in lengths.items() if count}
    assert_released(harness, "groups")


def test_a_full_window_leaves_no_timer() -> None:
    """The timer would have no effect, but hold the low watermark for up to ``within``."""
    topology = mw.Topology("beats")
    keyed = topology.source("beats", Beat).key_by("key")
    keyed.count_window(2, within=mw.Duration(10)).aggregate("groups", count=agg.count())
    harness = TopologyHarness(topology)
    for number in range(2):
        harness.send("beats", Beat(1, number), timestamp=at(5))
    assert [one.count for one in harness.values("groups")] == [2]
    assert_released(harness, "groups")


def test_a_window_that_is_not_full_has_a_time() -> None:
    topology = mw.Topology("beats")
    keyed = topology.source("beats", Beat).key_by("key")
    keyed.count_window(3, within=mw.Duration(10)).aggregate("groups", count=agg.count())
    harness = TopologyHarness(topology)
    for time in (5, 3, 20):
        harness.send("beats", Beat(1, 0), timestamp=at(time))
    harness.send("beats", Beat(1, 0), timestamp=at(6))
    harness.send("beats", Beat(1, 0), timestamp=at(30))
    harness.advance(at(15))
    assert [(one.value.count, one.timestamp - BEGIN) for one in harness.produced("groups")] == [(3, 20)]
    harness.advance(at(16))
    assert [(one.value.count, one.timestamp - BEGIN) for one in harness.produced("groups")] == [(3, 20), (2, 30)]
    assert_released(harness, "groups")


def test_wrong_times_and_numbers_are_refused() -> None:
    keyed = mw.Topology("beats").source("beats", Beat).key_by("key")
    for domain in mw.TimeDomain:
        with pytest.raises(mw.UsageError, match=r"timeout\(after\) must be a positive duration .*not 0"):
            keyed.timeout("silent", mw.Duration(0), silent, Silent, domain=domain)
    with pytest.raises(mw.UsageError, match="takes a positive number of records, not 0"):
        keyed.count_window(0).aggregate("groups", count=agg.count())
    with pytest.raises(mw.UsageError, match=r"count_window\(within=...\) must be a positive .*, not 0"):
        keyed.count_window(1, within=mw.Duration(0)).aggregate("groups", count=agg.count())
    with pytest.raises(mw.UsageError, match="has no aggregate"):
        keyed.count_window(1).aggregate("groups")
