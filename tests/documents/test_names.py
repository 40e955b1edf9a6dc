"""Pages and comments name members of classes and messages that exist."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.house.tree import ROOT, parse, python_files, text_files

_IN_PAGES = re.compile(r"`([A-Z]\w+)\.(\w+)[`(]")
_IN_CODE = re.compile(r"``([A-Z]\w+)\.(\w+)[`(]|:(?:attr|class|meth):`~?(?:[\w.]*\.)?(_?[A-Z]\w+)\.(\w+)`")
_OTHERS = frozenset({"CHANGELOG.md", "operators.md"})
"""Pages that name members of the past, and of other systems."""
_MESSAGE = re.compile(r"\s*(?:message|enum|service) (\w+) ")
_FIELD = re.compile(r"\s*(?:rpc (\w+)|(?:[\w.<>, ]+ )?(\w+) = \d+)")


def test_members_that_texts_name_exist() -> None:
    known = _members()
    missing = [
        f"{path.relative_to(ROOT)}: {owner}.{member}"
        for path in text_files()
        for owner, member in _named(path)
        if owner in known and not _has(known, owner, member)
    ]
    assert missing == []


def _named(path: Path) -> Iterator[tuple[str, str]]:
    pattern = {".md": _IN_PAGES, ".py": _IN_CODE}.get(path.suffix)
    for found in pattern.finditer(path.read_text()) if pattern and path.name not in _OTHERS else ():
        owner, member = (part for part in found.groups() if part)
        yield owner, member


def _has(known: dict[str, set[str]], owner: str, member: str) -> bool:
    """Whether a class or one of its bases has the member. Bases are listed as ``(NAME)``; unknown ones have any."""
    members = known[owner]
    bases = {one.strip("()") for one in members if one.startswith("(")}
    return member in members or any(base not in known or _has(known, base, member) for base in bases)


@cache
def _members() -> dict[str, set[str]]:
    """The members of each class and of each message, by its name."""
    known = defaultdict[str, set[str]](set)
    for path in python_files():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                known[node.name].update(_of_class(node))
    for path in (ROOT / "proto").rglob("*.proto"):
        within: list[str] = []
        for line in path.read_text().splitlines():
            if opened := _MESSAGE.match(line):
                within.append(opened[1])
                known[opened[1]].update()
            elif within:
                if field := _FIELD.match(line):
                    known[within[-1]].add(field[1] or field[2])
                if line.rstrip().endswith("{"):  # a call with options, an option of several lines, or a oneof
                    within.append(within[-1])
            if "}" in line and "{" not in line and within:
                within.pop()
    return known


def _of_class(node: ast.ClassDef) -> Iterator[str]:
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        name = plain.attr if isinstance(plain, ast.Attribute) else getattr(plain, "id", "")
        if name not in ("Enum", "Generic", "NamedTuple", "Protocol"):
            yield f"({name})"
    for part in ast.walk(node):
        match part:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case _:
                pass
