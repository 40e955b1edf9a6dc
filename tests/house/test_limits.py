"""The limits of waits are multiplied, so that a slow or busy machine changes no outcome (tests/patience.py)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house.tree import ROOT, parse, python_files

LIMITS = {"asyncio.timeout": 0, "asyncio.wait_for": 1, "run_cli": None, "subprocess.run": None, "until": 1}
"""By function: the place of the limit among its arguments. Each may also have it by name."""
NAMES = {"delay", "seconds", "timeout"}
CALLED = re.compile(rf"\b({'|'.join(map(re.escape, LIMITS))})\(")


def test_no_wait_has_a_fixed_limit() -> None:
    """A limit below a second is that of a wait which is to fail."""
    assert [
        f"{path.relative_to(ROOT)}:{limit.lineno}: {limit.value}"
        for path in python_files()
        if path.relative_to(ROOT).parts[0] == "tests" and CALLED.search(path.read_text())
        for limit in _limits(parse(path))
        if isinstance(limit.value, int | float) and limit.value >= 1
    ] == []


def _limits(tree: ast.Module) -> Iterator[ast.Constant]:
    """The limits that are written as a number."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and (name := _name(call.func)) in LIMITS:
            place = LIMITS[name]
            given = [one.value for one in call.keywords if one.arg in NAMES]
            given += [] if place is None else call.args[place : place + 1]
            yield from (one for one in given if isinstance(one, ast.Constant))


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""
