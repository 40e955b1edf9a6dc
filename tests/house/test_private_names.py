"""Tests and the simulator name nothing private of the product, so what is private can change.

ruff finds access to an attribute (SLF001). These are the ways that it does not see.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.tree import ROOT, parse, python_files

PRIVATE = re.compile(r"_(?!_)\w+")
PATH = re.compile(r"(?!self\b)\w+(\.\w+)*\._(?!_)\w+")
TAKES_NAMES = {"delattr", "getattr", "object", "patch", "replace", "setattr"}
ALLOWED = {
    "tests/conftest.py: _extract_caret_anchors_from_line_segment": "of Python: a defect of one release",
    "tests/system/forker.py: typer._adapters": "of Typer, which loads it when a command runs",
}


def test_no_private_name_is_taken_by_string_or_import() -> None:
    """Text of mutations is no name: ``rewrite`` finds it wherever it stands."""
    found = {f"{path.relative_to(ROOT)}: {name}" for path in _readers() for name in _named(parse(path))}
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() <= found, "an exception that is needed no more"


def test_no_function_stands_in_for_a_method_with_private_names() -> None:
    """A function that replaces a method of the product looks like a method, so ruff lets it reach into ``self``."""
    assert [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in _readers()
        for function in _loose_methods(parse(path))
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    ] == []


def _readers() -> Iterator[Path]:
    return (path for path in python_files() if path.relative_to(ROOT).parts[0] in {"simulation", "tests"})


def _named(tree: ast.Module) -> Iterator[str]:
    """The private names that a module imports, patches, or has as the end of a dotted path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if PRIVATE.fullmatch(alias.name))
        elif isinstance(node, ast.Call) and _function(node) in TAKES_NAMES:
            texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            yield from filter(PRIVATE.fullmatch, texts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PATH.fullmatch(node.value):
            yield node.value


def _function(call: ast.Call) -> str:
    """The name of a called function. The method ``replace`` is one of strings."""
    if isinstance(call.func, ast.Attribute):
        return "" if call.func.attr == "replace" else call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _loose_methods(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda]:
    """The functions outside classes whose first parameter is ``self``."""
    methods = {one for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for one in node.body}
    functions = [one for one in ast.walk(tree) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))]
    return (one for one in functions if one not in methods and [arg.arg for arg in one.args.args[:1]] == ["self"])
