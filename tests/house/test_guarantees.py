"""docs/guarantees.md and the tests belong together: each guarantee names tests that are there."""

from __future__ import annotations

import ast
import re

import pytest

from tests.house.tree import ROOT, parse

REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")


def _sections() -> dict[str, str]:
    """The text of each guarantee, by its name ("G1")."""
    text = (ROOT / "docs" / "guarantees.md").read_text()
    parts = re.split(r"^## (G\d+)\b", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def defined_tests(file: str) -> set[str]:
    """The tests of a file as pytest names them: ``test_x``, ``TestY::test_x``, or a state machine's ``TestY``."""
    found: set[str] = set()
    if not (ROOT / file).is_file():
        return found
    for node in parse(ROOT / file).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}::{method.name}" for method in methods}
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in found if name.lower().startswith("test")}


def test_all_fifteen_are_stated() -> None:
    assert list(_sections()) == [f"G{number}" for number in range(1, 16)]


@pytest.mark.parametrize("guarantee", list(_sections()))
def test_the_tests_a_guarantee_names_are_there(guarantee: str) -> None:
    named = REFERENCE.findall(_sections()[guarantee])
    assert [f"{file}::{test}" for file, test in named if test not in defined_tests(file)] == []


def test_every_guarantee_names_a_test() -> None:
    assert {name for name, text in _sections().items() if not REFERENCE.search(text)} == set()


@pytest.mark.parametrize("guarantee", list(_sections()))
def test_a_guarantee_names_a_test_that_is_named_after_it_and_a_section(guarantee: str) -> None:
    """As in ``test_g5_asynchronous_hooks_keep_the_order_of_a_key_4_1``: a failure says what does not hold."""
    after = re.compile(rf"test(?:_g\d+)*_{guarantee.lower()}_\w+?_(?:fig_)?\d+(?:_\d+)*")
    assert [test for _, test in REFERENCE.findall(_sections()[guarantee]) if after.fullmatch(test)]
