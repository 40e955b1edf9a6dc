"""An error names a function that returns one value to a step that needs a list of results."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.testing import TopologyHarness

NOON = mw.Timestamp(1_700_000_000_000_000)


def values_of(results: Any, *, step: str) -> list[Any]:
    topology = mw.Topology("shop")
    keyed: Any = topology.source("sales", int).key_by(mw.everything)
    if step == "complete":
        keyed.complete("found", lambda group: results, str)
    else:
        options = {"keep": mw.hours(1)} if step == "expiring" else {}
        keyed.update("found", 0, lambda state, cents: (state + cents, results), str, **options)
    harness = TopologyHarness(topology)
    harness.send("sales", 5, timestamp=NOON)
    harness.finish()
    return harness.values("found")


@pytest.mark.parametrize("step", ["update", "expiring", "complete"])
@pytest.mark.parametrize(
    ("results", "said"),
    [
        (5, r"<lambda> returned 5 as its results: return a list, such as \[5\] or \[\]"),
        ("abc", r"<lambda> returned 'abc' as its results: return a list, such as \['abc'\] or \[\]"),
        (b"abc", r"<lambda> returned b'abc' as its results"),
        (None, r"<lambda> returned None as its results: return a list"),
    ],
)
def test_one_value_is_no_list_of_results(step: str, results: Any, said: str) -> None:
    with pytest.raises(mw.UsageError, match=said):
        values_of(results, step=step)


@pytest.mark.parametrize("step", ["update", "expiring", "complete"])
def test_results_are_any_collection(step: str) -> None:
    for results in (["a", "b"], ("a", "b"), {"a": 1, "b": 2}.keys()):
        assert values_of(results, step=step) == ["a", "b"]
