"""Mistakes that a step names when it is declared, or when a function returns a wrong value."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import millwheel as mw
from millwheel import windows
from millwheel.testing import TopologyHarness

NOON = mw.Timestamp(1_767_268_800_000_000)
MINUTE = mw.minutes(1)


def add(one: int, other: int) -> int:
    return one + other


def none(*groups: list[int]) -> list[int]:
    return None  # type: ignore[return-value]


JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "join": lambda keyed, other: keyed.join("out", other, add),
    "join_within": lambda keyed, other: keyed.join_within("out", other, add),
    "join_as_of": lambda keyed, other: keyed.join_as_of("out", other, add),
    "join_latest": lambda keyed, other: keyed.join_latest("out", other, add),
    "join_tables": lambda keyed, other: keyed.join_tables("out", other, add),
    "join_broadcast": lambda keyed, other: keyed.join_broadcast("out", other, lambda one, table: one, int),
    "window": lambda keyed, other: keyed.window(windows.tumbling(MINUTE)).join("out", other, add),
    "cogroup": lambda keyed, other: keyed.window(windows.tumbling(MINUTE)).cogroup("out", other, none),
    "cogroup of three": lambda keyed, other: keyed.window(windows.tumbling(MINUTE)).cogroup(
        "out", (keyed, other), none
    ),
}


def numbers() -> tuple[mw.Topology, Any]:
    topology = mw.Topology("t")
    return topology, topology.source("numbers", int)


@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
def test_the_other_side_has_a_key(join: Callable[[Any, Any], Any]) -> None:
    _, stream = numbers()
    with pytest.raises(mw.UsageError, match=r"step 'out' takes another stream with a key, not Stream: add \.key_by"):
        join(stream.key_by(mw.everything), stream)


@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
def test_the_other_side_is_not_ordered(join: Callable[[Any, Any], Any]) -> None:
    """Regression: the order of the other side was ignored without an error."""
    _, stream = numbers()
    keyed = stream.key_by(mw.everything)
    with pytest.raises(mw.UsageError, match=r"step 'out' ignores ordered_by_time\(\) of another stream: leave it out"):
        join(keyed, keyed.ordered_by_time())


@pytest.mark.parametrize("count", [1.5, True, 0])
def test_throttle_takes_a_whole_number(count: Any) -> None:
    _, stream = numbers()
    with pytest.raises(
        mw.UsageError, match=f"throttle takes (a count from 1 to 1,000|count= as a whole number), not {count}"
    ):
        stream.key_by(mw.everything).throttle("out", count, MINUTE)


def test_cached_takes_an_asynchronous_function() -> None:
    cached: Any = mw.cached(lambda number: number, keep=MINUTE)
    with pytest.raises(mw.UsageError, match="cached takes an asynchronous function, and this one returned int"):
        asyncio.run(cached(1))


@pytest.mark.parametrize("step", ["cogroup", "complete"])
def test_a_function_of_groups_returns_a_list(step: str) -> None:
    topology, stream = numbers()
    keyed = stream.key_by(mw.everything)
    if step == "complete":
        keyed.complete("out", none)
    else:
        keyed.window(windows.tumbling(MINUTE)).cogroup("out", keyed, none)
    harness = TopologyHarness(topology)
    harness.send("numbers", 1, timestamp=NOON)
    with pytest.raises(mw.UsageError, match="returned None as its results: return a list"):
        harness.advance(mw.Timestamp(NOON + MINUTE))
