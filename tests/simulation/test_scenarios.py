"""The scenarios of tests/scenarios: each is what the cluster does now, line by line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulation.replaying import run_module
from simulation.scenarios.all import SCENARIOS
from simulation.scenarios.page import differences

_ROOT = Path(__file__).parents[2]
_FILES = _ROOT / "tests" / "scenarios"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """The output of ``python -m simulation.scenarios`` for each scenario."""
    done = run_module("simulation.scenarios")
    assert done.returncode in (0, 1), done.stderr[-4_000:]
    found: dict[str, str] = {}
    name = ""
    for line in done.stdout.splitlines():
        name = line.partition(":")[0] if not line.startswith(" ") else name
        found[name] = found.get(name, "") + line + "\n"
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", [one.name for one in SCENARIOS])
def test_a_scenario_is_as_it_is_written(name: str, outcomes: dict[str, str]) -> None:
    """`python -m simulation.scenarios --write` writes the files again after an intended change."""
    assert outcomes[name] == f"{name}: as written\n"


def test_every_file_is_a_scenario() -> None:
    assert {file.stem for file in _FILES.glob("*.txt")} == {one.name for one in SCENARIOS}


def test_guarantees_name_every_scenario_and_no_other() -> None:
    named = re.findall(r"tests/scenarios/([\w-]+)\.txt", (_ROOT / "docs" / "guarantees.md").read_text())
    assert set(named) == {one.name for one in SCENARIOS}


def test_a_line_that_differs_by_more_than_a_time_is_shown() -> None:
    written = "* it is killed\n    1.0 s  store  refuses it\n    2.0 s  worker  lets go\n"
    assert differences(written, written.replace("1.0 s", "1.4 s")) == []
    assert differences(written, written.replace("1.0 s", "1.8 s")) == [
        "-     1.0 s  store  refuses it",
        "+     1.8 s  store  refuses it",
    ]
    assert differences(written, written.replace("refuses", "takes"))[1] == "+     1.0 s  store  takes it"
    assert differences(written, written.replace("    2.0 s  worker  lets go\n", "")) == ["-     2.0 s  worker  lets go"]
