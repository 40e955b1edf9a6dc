"""The limits of waits are multiplied, so that a slow or busy machine changes no outcome (tests/patience.py)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house.tree import ROOT, parse, python_files

LIMITS = {"asyncio.timeout": 0, "asyncio.wait_for": 1, "run_cli": None, "subprocess.run": None, "until": 1}
"""By function: the place of the limit among its arguments. Each may also have it by name."""
NAMES = {"delay", "seconds", "timeout"}
CALLED = re.compile(rf"\b({'|'.join(map(re.escape, LIMITS))})\(|\b({'|'.join(NAMES)})=")


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
    """The limits that are a number, or a name that the module gives to a number."""
    named = dict(_constants(tree))
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            name = _name(call.func)
            place = LIMITS.get(name)
            given = [one.value for one in call.keywords if one.arg in NAMES]
            given += [] if place is None else call.args[place : place + 1]
            yield from (one for one in given if isinstance(one, ast.Constant) and name in LIMITS)
            # Of other functions, numbers are mostly the settings of what is tested.
            yield from (named[one.id] for one in given if isinstance(one, ast.Name) and one.id in named)


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.Constant]]:
    for one in tree.body:
        if isinstance(one, ast.Assign | ast.AnnAssign) and isinstance(one.value, ast.Constant):
            names = one.targets if isinstance(one, ast.Assign) else [one.target]
            yield from ((name.id, one.value) for name in names if isinstance(name, ast.Name))


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""
