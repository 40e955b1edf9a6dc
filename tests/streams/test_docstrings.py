"""The examples in the docstrings of streams, operators and aggregates run, and show what they print."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from millwheel import agg, operators, streams

MODULES = [
    name
    for package in (agg, operators, streams)
    for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", ["millwheel.agg", *MODULES])
def test_the_examples_of_a_module_run(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.failed == 0


def test_each_way_to_write_a_step_has_an_example() -> None:
    shown = [name for name in MODULES if ">>> " in (importlib.import_module(name).__loader__.get_source(name) or "")]  # type: ignore[union-attr]
    assert {"millwheel.streams.ordered", "millwheel.streams.stateful", "millwheel.streams.stream"} <= {*shown}
