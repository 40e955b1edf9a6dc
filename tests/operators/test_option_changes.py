"""A running program is updated to other options of a step, while records wait under the old ones (4.1, 4.6, G1)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000 - 1_700_000_000_000_000 % mw.hours(1)
HOUR = mw.hours(1)
EVENT_TIME, PROCESSING_TIME = mw.TimeDomain.EVENT_TIME, mw.TimeDomain.PROCESSING_TIME


class Item(msgspec.Struct):
    id: str
    number: int


Options = dict[str, Any]
Build = Callable[[Any, Any, Options], Any]


def pair(one: Item | None, other: Item | None) -> str:
    return f"{one and one.number}:{other and other.number}"


def sizes(left: list[Item], right: list[Item]) -> list[str]:
    return [f"{len(left)}:{len(right)}"]


def count(so_far: int, item: Item) -> tuple[int, list[int]]:
    return so_far + 1, [so_far + 1]


def at(hours: float) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + round(hours * HOUR))


def program(build: Build, options: Options) -> mw.Topology:
    topology = mw.Topology("items")
    left, right = (topology.source(side, Item).key_by("id") for side in ("left", "right"))
    build(left, right, options)
    return topology


def window(left: Any, _: Any, options: Options) -> Any:
    return left.window(windows.tumbling(HOUR)).aggregate("out", agg.count(), **options)


def count_window(left: Any, _: Any, options: Options) -> Any:
    return left.count_window(options["size"], within=options.get("within")).aggregate("out", n=agg.count())


OUTER: list[Options] = [{"outer": outer} for outer in ("", "left", "right", "both")]
KEEP: list[Options] = [{}, {"keep": HOUR}, {"keep": 3 * HOUR}]
STEPS: dict[str, tuple[Build, list[Options]]] = {
    "join within": (
        lambda left, right, options: left.join_within("out", right, pair, **options),
        [
            {"before": HOUR, "after": after, "allowed_lateness": late, **outer}
            for after, late in ((0, 0), (2 * HOUR, 0), (0, 2 * HOUR))
            for outer in OUTER
        ],
    ),
    "join": (
        lambda left, right, options: left.join("out", right, pair, **options),
        KEEP,
    ),
    "join as of": (
        lambda left, right, options: left.join_as_of("out", right, pair, **options),
        [{"outer": False}, {"outer": True}],
    ),
    "join latest": (
        lambda left, right, options: left.join_latest("out", right, pair, **options),
        [*KEEP, {"outer": True}],
    ),
    "join tables": (
        lambda left, right, options: left.join_tables("out", right, pair, **options),
        [*KEEP, *OUTER[1:]],
    ),
    "join windows": (
        lambda left, right, options: left.window(windows.tumbling(HOUR)).join("out", right, pair, **options),
        [{**outer, "allowed_lateness": late} for late in (0, HOUR, 3 * HOUR) for outer in OUTER],
    ),
    "cogroup": (
        lambda left, right, options: left.window(windows.tumbling(HOUR)).cogroup("out", right, sizes, **options),
        [{"allowed_lateness": late} for late in (0, HOUR, 3 * HOUR)],
    ),
    "latest": (lambda left, _, options: left.latest("out", **options), [*KEEP, {"ties": "number"}]),
    "changes": (lambda left, _, options: left.changes("out", **options), KEEP),
    "update": (
        lambda left, _, options: left.update("out", 0, count, int, **options),
        [{"keep": keep, "domain": domain} for keep in (HOUR, 3 * HOUR) for domain in (EVENT_TIME, PROCESSING_TIME)],
    ),
    "deduplicate": (
        lambda left, _, options: left.deduplicate("out", **options),
        [{}, {"within": HOUR}, {"within": 3 * HOUR}],
    ),
    "until": (
        lambda left, _, options: left.until("out", lambda item: item.number % 2 == 0, **options),
        KEEP,
    ),
    "throttle": (
        lambda left, _, options: left.throttle("out", options["count"], options["per"]),
        [{"count": most, "per": per} for most in (1, 3) for per in (HOUR, 3 * HOUR)],
    ),
    "timeout": (
        lambda left, _, options: left.timeout("out", options["after"], lambda item: item.number, int),
        [{"after": HOUR}, {"after": 3 * HOUR}],
    ),
    "complete": (
        lambda left, _, options: left.complete("out", lambda items: [len(items)], int, **options),
        [{}, {"late": mw.Late.PROCESS}],
    ),
    "window": (
        window,
        [
            {},
            {"allowed_lateness": HOUR},
            {"early": windows.each_change()},
            {"early": windows.every(mw.seconds(10)), "allowed_lateness": 3 * HOUR},
        ],
    ),
    "session": (
        lambda left, _, options: left.window(windows.session(options["gap"])).aggregate(
            "out", agg.count(), allowed_lateness=options.get("lateness", 0), early=options.get("early")
        ),
        [
            {"gap": HOUR},
            {"gap": 3 * HOUR},
            {"gap": HOUR, "lateness": HOUR},
            {"gap": 3 * HOUR, "lateness": 3 * HOUR, "early": windows.each_change()},
            {"gap": HOUR, "early": windows.every(mw.seconds(10))},
        ],
    ),
    "count window": (count_window, [{"size": size, **within} for size in (2, 3) for within in ({}, {"within": HOUR})]),
    "in order": (
        lambda left, _, options: left.ordered_by_time(options.get("ties")).update("out", 0, count, int),
        [{}, {"ties": "number"}],
    ),
}

BOTH_SIDES = [("left", "a"), ("right", "b"), ("left", "c"), ("right", "c")]


@pytest.mark.guarantee("G1", section="4.1")
@pytest.mark.parametrize(("build", "forms"), STEPS.values(), ids=STEPS)
def test_records_wait_while_a_step_gets_other_options(build: Build, forms: list[Options]) -> None:
    """No hook fails, and no timer is left at the end. Each key has other records that wait."""
    for before, after in permutations(forms, 2):
        harness = TopologyHarness(program(build, before))
        for number, (side, key) in enumerate([*BOTH_SIDES, ("left", "d"), ("left", "d")]):
            harness.send(side, Item(key, number), at(number / 10))
        harness.update(program(build, after))
        for key in "abcd":
            harness.send("left", Item(key, 7), at(0.7))
        for hours in (0.75, 1.75, 2.75, 3.75):
            harness.advance(at(hours))
            harness.advance_clock(HOUR)
            for side, key in BOTH_SIDES:
                harness.send(side, Item(key, 9), at(hours))
        harness.finish()
        harness.advance_clock(mw.hours(5))
        assert harness.failures == [], f"from {before} to {after}"
        assert not any(harness.timers("out", key) for key in "abcd"), f"from {before} to {after}"


def updated(step: str, before: Options, after: Options, *sent: tuple[str, float]) -> TopologyHarness:
    """A program that had records of one key before its update: their sides, and their times in hours."""
    build = STEPS[step][0]
    harness = TopologyHarness(program(build, before))
    for number, (side, hours) in enumerate(sent):
        harness.send(side, Item("a", number), at(hours))
    harness.update(program(build, after))
    return harness


INNER, LEFT, BOTH = ({"after": HOUR, "outer": outer} for outer in ("", "left", "both"))


@pytest.mark.guarantee("G7", section="4.6")
@pytest.mark.parametrize(
    ("before", "after", "side", "result"),
    [(INNER, LEFT, "left", "0:None"), (INNER, BOTH, "right", "None:0"), (LEFT, BOTH, "right", "None:0")],
)
def test_a_record_of_an_inner_join_becomes_outer(before: Options, after: Options, side: str, result: str) -> None:
    """Nothing has held the watermark for the record. So its result has the time of its timer."""
    harness = updated("join within", before, after, (side, 0))
    harness.advance(at(2))
    (one,) = harness.produced("out")
    assert one.value == result
    assert one.timestamp == at(1 if side == "left" else 0) + 1
    assert harness.state("out", "a") is None


@pytest.mark.guarantee("G7", section="4.6")
def test_what_an_outer_join_keeps_becomes_inner_and_outer_again() -> None:
    harness = updated("join within", LEFT, INNER, ("left", 0))
    harness.update(program(STEPS["join within"][0], LEFT))
    harness.advance(at(2))
    assert [(one.value, one.timestamp) for one in harness.produced("out")] == [("0:None", at(0))]


@pytest.mark.guarantee("G13", section="4.6")
def test_the_next_record_ends_what_a_join_kept_for_ever() -> None:
    """The timer of a join that keeps all records is at the end of time. The next record sets the right one."""
    harness = updated("join", {}, {"keep": HOUR}, ("left", 0), ("left", 5))
    harness.advance(at(2))
    assert len(harness.state("out", "a").left) == 2
    harness.send("left", Item("a", 7), at(6))
    assert len(harness.state("out", "a").left) == 2, "the first one is gone"
    harness.advance(at(8))
    assert harness.state("out", "a") is None


KEPT: list[tuple[str, Options, Options, str]] = [
    ("latest", {"keep": HOUR}, {}, "left"),
    ("changes", {"keep": HOUR}, {}, "left"),
    ("join latest", {"keep": HOUR}, {}, "right"),
    ("join tables", {"keep": HOUR}, {}, "left"),
    ("deduplicate", {"within": HOUR}, {}, "left"),
    ("until", {"keep": HOUR}, {}, "left"),
]


@pytest.mark.guarantee("G13", section="4.6")
@pytest.mark.parametrize(("step", "before", "after", "side"), KEPT, ids=[one[0] for one in KEPT])
def test_a_timer_of_an_earlier_form_deletes_nothing(step: str, before: Options, after: Options, side: str) -> None:
    harness = updated(step, before, after, (side, 0))
    harness.send(side, Item("a", 9), at(0.5))
    state = harness.state("out", "a")
    harness.advance(at(9))
    assert harness.state("out", "a") == state is not None


@pytest.mark.guarantee("G13", section="4.6")
@pytest.mark.parametrize(
    ("step", "before", "after"),
    [
        ("latest", {"keep": HOUR}, {"keep": 3 * HOUR}),
        ("changes", {"keep": HOUR}, {"keep": 3 * HOUR}),
        ("join tables", {"keep": HOUR}, {"keep": 3 * HOUR}),
        ("throttle", {"count": 1, "per": HOUR}, {"count": 1, "per": 3 * HOUR}),
    ],
)
def test_a_longer_time_holds_for_what_is_kept(step: str, before: Options, after: Options) -> None:
    harness = updated(step, before, after, ("left", 0))
    harness.advance(at(2))
    assert harness.state("out", "a") is not None
    harness.advance(at(4))
    assert harness.state("out", "a") is None


@pytest.mark.guarantee("G13", section="4.6")
def test_another_domain_forgets_by_its_own_clock() -> None:
    before, after = ({"keep": HOUR, "domain": domain} for domain in (EVENT_TIME, PROCESSING_TIME))
    harness = updated("update", before, after, ("left", 0))
    harness.advance_clock(mw.Duration(max(0, at(0) - harness.now)))
    harness.send("left", Item("a", 1), at(0))
    harness.advance(at(5))
    assert harness.state("out", "a") is not None
    harness.advance_clock(HOUR)
    assert harness.state("out", "a") is None


@pytest.mark.guarantee("G1", section="4.1")
def test_a_count_window_may_become_smaller() -> None:
    harness = updated("count window", {"size": 3}, {"size": 2}, ("left", 0), ("left", 0))
    harness.send("left", Item("a", 1), at(0))
    assert [one.n for one in harness.values("out")] == [3]
