"""The lists of tests in docs/guarantees.md, made from the tests' markers.

``python -m tests.house.guarantees --write`` renews them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Final

from tests.house.tree import ROOT, parse

PAGE: Final = ROOT / "docs" / "guarantees.md"
_LIST: Final = re.compile(r"(<!-- tests of (G\d+): begin -->\n).*?(<!-- tests of \2: end -->)", flags=re.DOTALL)


@dataclass(frozen=True)
class MarkedTest:
    """A test function, or the test case of a state machine, with the contents of its marker, if it has one."""

    file: str
    name: str
    guarantees: tuple[str, ...] = ()
    section: str = ""

    @property
    def place(self) -> str:
        """As pytest names it: "tests/x/test_y.py::test_z"."""
        return f"{self.file}::{self.name}"

    def in_words(self) -> str:
        """The behaviour and the section: "a deposed owner changes nothing (6.2)"."""
        behaviour = self.name.removeprefix("test_").replace("_", " ") if "_" in self.name else f"`{self.name}`"
        return f"{behaviour} ({self.section})" if self.section else behaviour


@cache
def all_tests() -> tuple[MarkedTest, ...]:
    """Every test of the tests folder, file by file, in the order in which the files define them."""
    return tuple(_found())


def _found() -> Iterator[MarkedTest]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = str(path.relative_to(ROOT))
        body = parse(path).body
        for top in body:
            if isinstance(top, ast.ClassDef) and top.name.startswith("Test"):  # its tests may be inherited
                yield _marked(file, top.name, top.decorator_list)
        for node in (one for top in body for one in (top.body if isinstance(top, ast.ClassDef) else [top])):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield _marked(file, node.name, node.decorator_list)
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("Test"):
                call = [node.value.func] if isinstance(node.value, ast.Call) else []
                yield _marked(file, ast.unparse(node.targets[0]), call)


def _marked(file: str, name: str, decorators: list[ast.expr]) -> MarkedTest:
    for one in decorators:
        if isinstance(one, ast.Call) and ast.unparse(one.func) in ("pytest.mark.guarantee", "pytest.mark.paper"):
            section = "".join(ast.literal_eval(item.value) for item in one.keywords if item.arg == "section")
            return MarkedTest(file, name, tuple(ast.literal_eval(item) for item in one.args), section)
    return MarkedTest(file, name)


def page_with_lists(text: str) -> str:
    """The text of docs/guarantees.md, with the list of each guarantee's tests between its two marks."""

    def listed(match: re.Match[str]) -> str:
        held = (test for test in all_tests() if match[2] in test.guarantees)
        lines = (
            f"- [{file.removeprefix('tests/')}](../{file}): {'; '.join(test.in_words() for test in group)}\n"
            for file, group in groupby(held, key=lambda test: test.file)
        )
        return match[1] + "".join(lines) + match[3]

    return _LIST.sub(listed, text)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    PAGE.write_text(page_with_lists(PAGE.read_text()))
