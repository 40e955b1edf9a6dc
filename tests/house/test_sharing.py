"""tests/sharing.py names files that exist, and all that share a component."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.sharing import FIRST, TOGETHER, put_in_order, share_of

ROOT = Path(__file__).parents[2]
SHARES = {"cassandra": "Cassandra", "kafka": "Kafka", "schema_registry": "Kafka"}
"""By a function of tests/components.py: the share of the tests that use it."""


def test_all_named_places_exist() -> None:
    places = [place for places in TOGETHER.values() for place in places]
    files = [name for name in FIRST if name not in TOGETHER]
    assert [place for place in (*places, *files) if not (ROOT / place).exists()] == []
    assert TOGETHER.keys() <= set(FIRST)
    assert len(set(FIRST)) == len(FIRST)
    assert [name for name in files if share_of(name) != name] == []


def used_components(file: Path) -> Iterator[str]:
    """The functions of tests/components.py that a file names."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "tests.components":
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "components":
            yield node.attr


def test_tests_of_a_component_are_one_share() -> None:
    """Otherwise another process would start the component as well. Those that run by themselves may start it."""
    apart = [
        f"{file.relative_to(ROOT)} uses {used}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        if "pytest.mark.long" not in (text := file.read_text()) and "components" in text
        for used in used_components(file)
        if used in SHARES and share_of(str(file.relative_to(ROOT))) != SHARES[used]
    ]
    assert apart == []


def test_shares_stay_together_and_the_long_ones_are_first() -> None:
    few, many = "tests/model/test_few.py", "tests/model/test_many.py"
    names = [
        f"{few}::a",
        "tests/contracts/test_x.py::a",
        f"{many}::a",
        f"{many}::b",
        "tests/simulation/test_seeds.py::a",
        "tests/store/cassandra/test_y.py::a",
    ]
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    put_in_order(cast("list[pytest.Item]", items))
    assert [item.nodeid for item in items] == [names[1], names[5], names[4], names[2], names[3], names[0]]
