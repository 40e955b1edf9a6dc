"""The house style, as ordinary tests. Each failure names the places to correct."""

from __future__ import annotations

import ast
import re
import statistics
from collections import defaultdict
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setuptools import find_packages

from tests.house.tree import ROLES, ROOT, STUBS, package_modules, parse, pyproject, python_files, text_files

MAX_LINES = 600
MAX_MEDIAN_LINES = 250
MAX_MEMBERS = 15

# The words are split, so that this file does not contain them.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK|raise NotImple" + r"mentedError)\b")

# Ways to a clock or to chance that need no import of time or random; import-linter holds those.
IMPURE_CALLS = {
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
    ("os", "urandom"),
}


def test_no_file_runs_away() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in python_files()}
    assert {_name(path): count for path, count in lines.items() if count > MAX_LINES} == {}
    assert statistics.median(lines.values()) <= MAX_MEDIAN_LINES


def test_nothing_unfinished_is_left_lying_about() -> None:
    found = [
        f"{_name(path)}:{number}: {match.group()}"
        for path in text_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := UNFINISHED.search(line))
    ]
    assert found == []


def test_every_module_has_a_docstring() -> None:
    """Every module has a docstring; only the empty __init__.py of a test folder goes without."""
    silent = [path for path in python_files() if ast.get_docstring(parse(path)) is None]
    assert [_name(p) for p in silent if not (_is_test(p) and p.name == "__init__.py" and not p.read_text())] == []


def test_a_large_class_says_why() -> None:
    """A class has at most 15 public methods and 15 attributes, or its docstring has a sentence with the reason."""
    silent = [
        f"{_name(path)}: {node.name}"
        for path in package_modules()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef) and not re.search(r"It has many (methods|attributes)", _doc(node))
        if len(_public_methods(node)) > MAX_MEMBERS or len(_attributes(node)) > MAX_MEMBERS
    ]
    assert silent == []


def _doc(node: ast.ClassDef) -> str:
    return ast.get_docstring(node) or ""


def _public_methods(node: ast.ClassDef) -> set[str]:
    """The names of the public methods. An overload counts once."""
    functions = [one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return {one.name for one in functions if not one.name.startswith("_")}


def _attributes(node: ast.ClassDef) -> set[str]:
    """The fields of the class, and what its ``__init__`` sets."""
    fields = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    makers = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    return fields | {
        one.attr
        for maker in makers
        for one in ast.walk(maker)
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and isinstance(one.value, ast.Name)
    }


def test_a_class_name_is_defined_once() -> None:
    """A reader who searches for a class finds one. Those in functions are not found by name, so they are free."""
    places = defaultdict(list)
    for path in package_modules():
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(_name(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_module_defines_dunder_all() -> None:
    """Every installed module has __all__, unless it defines and imports nothing, or is run and not imported."""
    without = [
        _name(path)
        for path in package_modules()
        if path.name != "__main__.py" and (tree := parse(path)).body[1:] and not _assigns_all(tree)
    ]
    assert without == []


def test_modules_of_tests_define_no_dunder_all() -> None:
    """Modules of tests have no public interface."""
    assert [
        _name(path) for path in python_files() if _name(path).startswith("tests/") and _assigns_all(parse(path))
    ] == []


def test_what_is_offered_is_defined() -> None:
    missing = [f"{_name(path)}: {name}" for path in package_modules() for name in _undefined_exports(parse(path))]
    assert missing == []


def test_every_folder_with_modules_is_installed() -> None:
    """setuptools passes over a folder without ``__init__.py``, and over what its patterns leave out."""
    found = find_packages(str(ROOT), include=pyproject()["tool"]["setuptools"]["packages"]["find"]["include"])
    folders = {path.parent for path in package_modules()} | set(STUBS)
    assert {_module(folder / "__init__.py") for folder in folders} == set(found)


def test_role_folders_are_linked_for_type_checkers_and_editors() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "millwheel").iterdir() if path.is_symlink()}
    assert links == {role: ROOT / role for role in ROLES}


def test_pure_cores_read_no_clock_and_draw_no_lots() -> None:
    found = [
        f"{_name(path)}:{node.lineno}: {node.func.value.id}.{node.func.attr}"
        for path in _pure_modules()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
        if (node.func.value.id, node.func.attr) in IMPURE_CALLS
    ]
    assert found == []


def test_every_direct_dependency_is_pinned_and_explained() -> None:
    project = pyproject()["project"]
    wanted = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    names = {canonicalize_name(Requirement(item).name) for item in wanted} - {canonicalize_name(project["name"])}
    pins = (line for line in (ROOT / "tools/constraints.txt").read_text().splitlines() if line and line[0] != "#")
    assert names - {canonicalize_name(Requirement(pin).name) for pin in pins} == set(), "run `make constraints`"
    explained = (ROOT / "docs/decisions/0000-dependencies.md").read_text()
    assert {name for name in names if f"`{name}`" not in explained} == set()


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    linked = set(re.findall(r"\]\(([\w.-]+\.md)\)", (folder / "README.md").read_text()))
    assert linked == {path.name for path in folder.glob("*.md")} - {"README.md"}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _is_test(path: Path) -> bool:
    return path.relative_to(ROOT).parts[0] == "tests"


def _pure_modules() -> list[Path]:
    """The modules under the import rule on pure cores, wildcards and all: one list for both checks."""
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    (contract,) = (c for c in contracts if c["name"].startswith("Pure cores"))
    patterns = [re.compile(p.replace(".", r"\.").replace("*", r"\w+") + r"(\.|$)") for p in contract["source_modules"]]
    found = [path for path in package_modules() if any(pattern.match(_module(path)) for pattern in patterns)]
    assert found, "the import rule on pure cores names no module"
    return found


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "millwheel" else ("millwheel", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _assigns_all(tree: ast.Module) -> bool:
    return any(_is_all(node) for node in tree.body)


def _is_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)


def _undefined_exports(tree: ast.Module) -> set[str]:
    """Names in __all__ that no statement of the module binds; a module that finds names lazily is let off."""
    exports: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _is_all(node):
            exports |= set(ast.literal_eval(node.value))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    return set() if "__getattr__" in bound else exports - bound
