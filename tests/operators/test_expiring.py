"""States that are forgotten when no record of their key has come for a time (G13)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000
END = -1


class Event(msgspec.Struct, frozen=True):
    key: int
    number: int


def count(so_far: int, event: Event) -> tuple[int | None, list[tuple[int, int]]]:
    """How many events of the key are known. The number END forgets the key."""
    return None if event.number == END else so_far + 1, [(event.number, so_far + 1)]


def at(offset: int) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + offset)


steps_of = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 1), st.booleans(), st.integers(0, 3)), min_size=1, max_size=14
)
"""For each event: its time, its key, whether it is the last of its key, and how far the watermark moves."""


def program(in_order: bool, domain: mw.TimeDomain, keep: int) -> TopologyHarness:
    topology = mw.Topology("events")
    keyed: Any = topology.source("events", Event).key_by("key")
    steps = keyed.ordered_by_time("number", limit=100) if in_order else keyed
    steps.update("counts", 0, count, tuple[int, int], keep=mw.Duration(keep), domain=domain)
    return TopologyHarness(topology, split_at=["1"])


@pytest.mark.guarantee("G13", section="4.6")
@given(steps=steps_of, keep=st.integers(1, 6), crash_at=st.integers(0, 14))
def test_a_key_is_known_until_its_newest_record_is_old(
    steps: list[tuple[int, int, bool, int]], keep: int, crash_at: int
) -> None:
    harness, watermark = program(False, mw.TimeDomain.EVENT_TIME, keep), 0
    known: dict[int, tuple[int, int]] = {}
    for number, (time, key, last, moves) in enumerate(steps):
        if number == crash_at:
            harness.crash()
        harness.send("events", Event(key, END if last else number), timestamp=at(time))
        ends, so_far = known.pop(key, (0, 0))
        assert harness.values("counts")[-1][1] == so_far + 1
        if not last:
            known[key] = max(ends, max(time, watermark) + keep), so_far + 1
        watermark += moves
        harness.advance(at(watermark))
        known = {key: one for key, one in known.items() if one[0] > watermark}
        for each in range(2):
            expected = [(BEGIN + known[each][0], known[each][1])] if each in known else None
            assert harness.state("counts", each) == expected
            assert len(harness.timers("counts", each)) == (each in known)


@pytest.mark.guarantee("G13", section="4.6")
@pytest.mark.parametrize("in_order", [False, True])
def test_the_wall_clock_forgets_a_key_that_is_silent(in_order: bool) -> None:
    harness = program(in_order, mw.TimeDomain.PROCESSING_TIME, mw.seconds(10))
    for number in range(3):
        harness.send("events", Event(0, number), timestamp=at(number))
        harness.advance(at(number + 1))
        harness.crash()
        harness.advance_clock(mw.seconds(9 if number < 1 else 10))
    assert [so_far for _, so_far in harness.values("counts")] == [1, 2, 1]
    assert harness.timers("counts", 0) == {}


def test_a_state_that_waits_to_be_forgotten_holds_nothing() -> None:
    harness = program(False, mw.TimeDomain.PROCESSING_TIME, mw.hours(1))
    harness.send("events", Event(0, 0), timestamp=at(0))
    harness.advance(at(50))
    assert harness.watermark("counts") == at(50)


@given(steps=steps_of, keep=st.integers(1, 6), data=st.data())
def test_in_order_the_results_do_not_depend_on_arrival(steps: list[Any], keep: int, data: Any) -> None:
    events = [(time, Event(key, number)) for number, (time, key, _, _) in enumerate(steps)]
    results = []
    for arrived in (events, data.draw(st.permutations(events))):
        harness = program(True, mw.TimeDomain.EVENT_TIME, keep)
        for time, event in arrived:
            harness.send("events", event, timestamp=at(time))
        harness.finish()
        results.append(sorted(harness.values("counts")))
    assert results[0] == results[1]


def test_a_time_to_keep_a_state_is_positive() -> None:
    with pytest.raises(mw.UsageError, match=r"keep must be a positive duration .*, not 0"):
        program(False, mw.TimeDomain.EVENT_TIME, 0)
