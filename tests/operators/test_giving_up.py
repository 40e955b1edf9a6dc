"""Steps whose timers always fail: nothing is lost but what ``dead_letter()`` gives up (G1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millwheel as mw
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000
POLICY = mw.dead_letter(after=1)


def at(microseconds: int) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + microseconds)


def unless_zero(value: int, _: Any = None) -> int:
    if value == 0:
        raise ValueError("a zero")
    return value


def inputs() -> tuple[mw.Topology, Any, Any]:
    topology = mw.Topology("t")
    left, right = (topology.source(side, int).key_by(mw.everything) for side in ("left", "right"))
    return topology, left, right


REFUSED: list[Callable[[Any, Any], Any]] = [
    lambda left, right: left.join_as_of("out", right, unless_zero, on_failure=POLICY),
    lambda left, right: left.join_within("out", right, unless_zero, outer="left", on_failure=POLICY),
    lambda left, right: left.join_within("out", right, unless_zero, outer="right", on_failure=POLICY),
]


@pytest.mark.guarantee("G1", section="4.5")
@pytest.mark.parametrize("build", REFUSED)
def test_dead_letters_are_refused_where_one_timer_serves_many(build: Callable[[Any, Any], Any]) -> None:
    _, left, right = inputs()
    with pytest.raises(mw.UsageError, match="step 'out' has one timer for all records of a key that wait"):
        build(left, right)


def test_other_joins_take_dead_letters() -> None:
    topology, left, right = inputs()
    left.join_within("near", right, unless_zero, on_failure=POLICY)
    left.join_latest("latest", right, unless_zero, on_failure=POLICY)
    left.join("all", right, unless_zero, on_failure=POLICY)
    assert topology.validate() == []


def test_a_join_for_ever_ends_with_its_streams() -> None:
    topology, left, right = inputs()
    left.join("pairs", right, unless_zero)
    harness = TopologyHarness(topology)
    for side, value in (("left", 1), ("right", 5), ("left", 2)):
        harness.send(side, value, timestamp=at(value))
    harness.finish()
    assert harness.values("pairs") == [1, 2]
    assert harness.state("pairs", "") is None


@pytest.mark.guarantee("G1", section="4.5")
def test_a_given_up_group_is_forgotten_and_a_late_one_is_new() -> None:
    topology, left, _ = inputs()
    seen: list[list[int]] = []

    def total(group: list[int]) -> list[int]:
        seen.append(group)
        return [unless_zero(sum(group))]

    left.complete("totals", total, on_failure=POLICY, late=mw.Late.PROCESS)
    harness = TopologyHarness(topology)
    harness.send("left", 0, timestamp=at(5))
    harness.send("left", 2, timestamp=at(6))
    harness.advance(at(100))
    assert (harness.values("totals"), len(harness.values("dead-letters"))) == ([2], 1)
    assert harness.state("totals", "") is None
    harness.send("left", 7, timestamp=at(5))
    assert seen[-1] == [7]
    assert harness.values("totals") == [2, 7]
    assert harness.state("totals", "") is None
