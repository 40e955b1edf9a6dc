"""The states of the library's steps have the types that docs/lookups.md gives to those who look them up (4.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.testing import TopologyHarness
from tests.house.tree import ROOT

AT = mw.Timestamp(1_700_000_000_000_000)
HOUR = mw.hours(1)
NAMES: dict[str, Any] = {"T": tuple[str, int], "R": tuple[str, float], "S": bool}


def function(*_: Any) -> Any:
    return None


def count(state: bool, _: Any) -> tuple[bool, list[int]]:
    return True, []


Build = Callable[[Any, Any], Any]
STEPS: dict[str, Build] = {
    "`update`": lambda left, _: left.update("out", False, count, int),
    "`update(keep=)`": lambda left, _: left.update("out", False, count, int, keep=HOUR),
    "`latest`": lambda left, _: left.latest("out"),
    "`changes`": lambda left, _: left.changes("out"),
    "`deduplicate`": lambda left, _: left.deduplicate("out"),
    "`until`": lambda left, _: left.until("out", bool),
    "`throttle`": lambda left, _: left.throttle("out", 1, HOUR),
    "`timeout`": lambda left, _: left.timeout("out", HOUR, function, int),
    "`complete`": lambda left, _: left.complete("out", function, int),
    "`join`, `join_within`": lambda left, right: left.join_within("out", right, function, int, after=HOUR, before=-1),
    "`join_as_of`": lambda left, right: left.join_as_of("out", right, function, int),
    "`join_latest`": lambda left, right: left.join_latest("out", right, lambda *_: 1, int),
    "`join_tables`": lambda left, right: left.join_tables("out", right, lambda *_: 1, int),
    "any step after `ordered_by_time()`": lambda left, _: left.ordered_by_time().update("out", False, count, int),
}


def documented() -> dict[str, str]:
    """The first type in the row of each step."""
    _, _, table = (ROOT / "docs/lookups.md").read_text().partition("## The states of the library's steps")
    lines = table.partition("\n## ")[0].splitlines()
    rows = [line.split(" | ", 2) for line in lines if line[:2] == "| "]
    steps = [(row[0].removeprefix("| "), row[1].split("`")) for row in rows if "`" in row[0]]
    return {step: kind[1].replace("\\", "") for step, kind in steps if len(kind) > 1}


@pytest.mark.paper(section="4.4")
@pytest.mark.parametrize(("step", "build"), STEPS.items(), ids=[one.replace("`", "") for one in STEPS])
def test_a_state_has_the_type_of_the_documentation(step: str, build: Build) -> None:
    topology = mw.Topology("steps")
    left, right = topology.source("left", NAMES["T"]), topology.source("right", NAMES["R"])
    build(left.key_by(lambda value: value[0]), right.key_by(lambda value: value[0]))
    harness = TopologyHarness(topology)
    harness.send("left", ("a", 1), AT)
    if "join" in step:
        harness.send("right", ("a", 0.5), AT)
    row = next(kind for name, kind in documented().items() if name.startswith(step))
    kind = eval(row, {**NAMES})
    state = msgspec.msgpack.encode(harness.state("out", "a"))
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(state, type=kind)) == state


def test_every_step_of_the_table_is_tried() -> None:
    assert {step for step in documented() if not step.startswith("`join_broadcast`")} == set(STEPS)
