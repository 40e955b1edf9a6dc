"""What waited for a timer that ``dead_letter()`` gave up: it is forgotten, or kept for a time (G1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000
SIZE = mw.seconds(10)
POLICY = mw.dead_letter(after=1)


class Hit(msgspec.Struct):
    page: str
    size: int = 1


class Fault:
    """An aggregate and a join function that raise while ``raises`` is set."""

    raises = True

    def value(self, total: int) -> int:
        if self.raises:
            raise ValueError("a fault")
        return total

    def pair(self, one: Hit, other: Hit) -> int:
        return self.value(one.size + other.size)

    def total(self) -> agg.Aggregator[int, int]:
        return agg.Aggregator(
            int, lambda: 0, lambda a, record: a + record.value.size, lambda a, b: a + b, self.value, int
        )


def at(seconds: int) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + mw.seconds(seconds))


def harness_of(build: Callable[[Any, Fault], Any]) -> tuple[TopologyHarness, Fault]:
    """A program with step "out", whose timer was given up at 10 s: it has a record of 2 s, with size 1."""
    topology, fault = mw.Topology("t"), Fault()
    build(topology.source("hits", Hit).key_by("page"), fault)
    harness = TopologyHarness(topology)
    harness.send("hits", Hit("a"), timestamp=at(2))
    harness.advance(at(21))
    assert len(harness.values("dead-letters")) == 1
    fault.raises = False
    return harness, fault


def window(**options: Any) -> Callable[[Any, Fault], Any]:
    def build(hits: Any, fault: Fault) -> None:
        late = mw.Late.PROCESS
        hits.window(windows.tumbling(SIZE)).aggregate(
            "out", fault.total(), options={"on_failure": POLICY, "late": late}, **options
        )

    return build


def session(**options: Any) -> Callable[[Any, Fault], Any]:
    def build(hits: Any, fault: Fault) -> None:
        hits.window(windows.session(SIZE)).aggregate("out", fault.total(), options={"on_failure": POLICY}, **options)

    return build


def complete(hits: Any, fault: Fault) -> None:
    def total(group: list[Hit]) -> list[int]:
        return [fault.value(len(group))]

    hits.complete("out", total, on_failure=POLICY)


def timeout(hits: Any, fault: Fault) -> None:
    hits.timeout("out", SIZE, lambda hit: fault.value(hit.size), int, on_failure=POLICY)


def cogroup(hits: Any, fault: Fault) -> None:
    def total(group: list[Hit], other: list[Hit]) -> list[int]:
        return [fault.value(len(group) + len(other))]

    hits.window(windows.tumbling(SIZE)).cogroup("out", hits, total, on_failure=POLICY)


KEPT: dict[str, Callable[[Any, Fault], Any]] = {
    "kept": window(allowed_lateness=mw.minutes(1)),
    "early and kept": window(early=windows.every(mw.hours(1)), allowed_lateness=mw.minutes(1)),
    "early session kept": session(early=windows.every(mw.hours(1)), allowed_lateness=mw.minutes(1)),
    "session kept": session(allowed_lateness=mw.minutes(1)),
    "spread kept": window(spread=2, allowed_lateness=mw.minutes(1)),
    "spread session kept": session(spread=2, allowed_lateness=mw.minutes(1)),
}
FORGOTTEN: dict[str, Callable[[Any, Fault], Any]] = {
    "tumbling": window(),
    "early": window(early=windows.every(mw.hours(1))),
    "spread": window(spread=2),
    "session": session(),
    "spread session": session(spread=2),
    "early session": session(early=windows.every(mw.hours(1))),
    "complete": complete,
    "timeout": timeout,
    "cogroup": cogroup,
}


@pytest.mark.guarantee("G1", section="4.5")
@pytest.mark.parametrize("build", FORGOTTEN.values(), ids=FORGOTTEN)
def test_what_was_given_up_is_forgotten(build: Callable[[Any, Fault], Any]) -> None:
    harness, _ = harness_of(build)
    assert harness.state("out", "a") is None
    assert harness.timers("out", "a") == {}
    harness.send("hits", Hit("a", 2), timestamp=at(3))
    assert harness.values("out") == []
    harness.send("hits", Hit("a", 4), timestamp=at(30))
    harness.finish()
    assert len(harness.values("out")) == 1


@pytest.mark.guarantee("G1", section="4.5")
def test_a_silent_key_that_was_given_up_is_forgotten() -> None:
    topology, fault = mw.Topology("t"), Fault()
    hits, clock = topology.source("hits", Hit).key_by("page"), mw.TimeDomain.PROCESSING_TIME
    hits.timeout("out", SIZE, lambda hit: fault.value(hit.size), int, domain=clock, on_failure=POLICY)
    harness = TopologyHarness(topology)
    harness.send("hits", Hit("a"), timestamp=at(2))
    harness.advance_clock(SIZE)
    assert len(harness.values("dead-letters")) == 1
    assert harness.state("out", "a") is None


@pytest.mark.guarantee("G1", section="4.5")
@pytest.mark.parametrize("build", KEPT.values(), ids=KEPT)
def test_a_given_up_window_is_kept_for_its_lateness(build: Callable[[Any, Fault], Any]) -> None:
    harness, _ = harness_of(build)
    assert harness.state("out", "a") is not None
    harness.finish()
    assert harness.state("out", "a") is None
    assert harness.timers("out", "a") == {}


@pytest.mark.guarantee("G1", section="4.5")
@pytest.mark.parametrize("build", KEPT.values(), ids=KEPT)
def test_a_late_record_wakes_a_window_that_was_given_up(build: Callable[[Any, Fault], Any]) -> None:
    harness, _ = harness_of(build)
    harness.send("hits", Hit("a", 2), timestamp=at(3))
    assert [one.value for one in harness.values("out")] == [3]
    harness.finish()
    assert harness.state("out", "a") is None
    assert harness.timers("out", "a") == {}


@pytest.mark.guarantee("G1", section="4.5")
def test_a_kept_window_with_early_results_is_deleted_at_last() -> None:
    """The early result is out, and the last one was given up. A late record corrects it."""
    topology, fault = mw.Topology("t"), Fault()
    window(early=windows.each_change(), allowed_lateness=mw.minutes(1))(
        topology.source("hits", Hit).key_by("page"), fault
    )
    harness = TopologyHarness(topology)
    fault.raises = False
    harness.send("hits", Hit("a"), timestamp=at(2))
    fault.raises = True
    harness.advance(at(21))
    fault.raises = False
    harness.send("hits", Hit("a", 2), timestamp=at(3))
    assert [one.value for one in harness.values("out")] == [1, 3]
    harness.advance(at(80))
    assert harness.state("out", "a") is None


@pytest.mark.guarantee("G1", section="4.5")
def test_an_early_result_that_was_given_up_comes_later() -> None:
    topology, fault = mw.Topology("t"), Fault()
    window(early=windows.every(mw.seconds(2)))(topology.source("hits", Hit).key_by("page"), fault)
    harness = TopologyHarness(topology)
    harness.send("hits", Hit("a"), timestamp=at(2))
    harness.advance_clock(mw.seconds(3))
    assert len(harness.values("dead-letters")) == 1
    fault.raises = False
    harness.send("hits", Hit("a", 2), timestamp=at(3))
    harness.advance_clock(mw.seconds(1))
    assert [one.value for one in harness.values("out")] == [3]


@pytest.mark.guarantee("G1", section="4.5")
def test_a_window_join_forgets_what_was_given_up() -> None:
    topology, fault = mw.Topology("t"), Fault()
    left, right = (topology.source(side, Hit).key_by("page") for side in ("left", "right"))
    left.window(windows.tumbling(SIZE)).join("out", right, fault.pair, int, on_failure=POLICY)
    harness = TopologyHarness(topology)
    for side in ("left", "right"):
        harness.send(side, Hit("a"), timestamp=at(2))
    harness.advance(at(21))
    assert len(harness.values("dead-letters")) == 1
    fault.raises = False
    assert harness.state("out", "a") is None
    harness.send("left", Hit("a", 9), timestamp=at(3))
    assert harness.values("out") == []
    assert harness.counts("out")["dropped"] == 1
    assert harness.state("out", "a") is None


def test_options_among_the_aggregates_are_refused() -> None:
    keyed = mw.Topology("t").source("hits", Hit).key_by("page")
    windowed: Any = keyed.window(windows.tumbling(SIZE))
    with pytest.raises(
        mw.UsageError, match=r"gets one aggregator and also on_failure: .* options of the computation as"
    ):
        windowed.aggregate("out", agg.count(), on_failure=POLICY)
    with pytest.raises(mw.UsageError, match=r"is no aggregate, such as .*; options are given by options="):
        windowed.aggregate("out", n=agg.count(), on_failure=POLICY)


@pytest.mark.guarantee("G1", section="4.5")
def test_a_record_wakes_a_count_window_that_was_given_up() -> None:
    def build(hits: Any, fault: Fault) -> None:
        hits.count_window(5, within=SIZE).aggregate("out", total=fault.total(), options={"on_failure": POLICY})

    harness, _ = harness_of(build)
    harness.send("hits", Hit("a", 2), timestamp=at(30))
    assert [one.total for one in harness.values("out")] == [3]
    assert harness.state("out", "a") is None


def test_a_purged_window_leaves_no_early_timer() -> None:
    """The timer at the window's end was dropped, so it has not cancelled the timer of the early result."""
    topology, fault = mw.Topology("t"), Fault()
    window(early=windows.every(mw.minutes(10)), allowed_lateness=mw.minutes(1))(
        topology.source("hits", Hit).key_by("page"), fault
    )
    harness = TopologyHarness(topology)
    fault.raises = False
    harness.send("hits", Hit("a"), timestamp=at(1))
    harness.advance_clock(mw.minutes(10))
    harness.send("hits", Hit("a"), timestamp=at(2))
    fault.raises = True
    harness.advance(at(21))
    fault.raises = False
    harness.send("hits", Hit("a"), timestamp=at(3))
    assert [one.value for one in harness.values("out")] == [1, 3]
    harness.advance(at(80))
    harness.advance_clock(mw.minutes(10))
    assert (harness.state("out", "a"), harness.timers("out", "a")) == (None, {})
    assert len(harness.values("dead-letters")) == 1
