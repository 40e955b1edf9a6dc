"""The files of the checkout and its pyproject.toml, for the house tests."""

from __future__ import annotations

import ast
import os
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ROLES = ("authority", "injectors", "master", "worker")
STUBS = (ROOT / "millwheel" / "rpc" / "v1", ROOT / "millwheel" / "coordination" / "etcd" / "v3")

_TEXT = {".md", ".proto", ".py", ".sh", ".sql", ".toml", ".txt", ".yaml", ".yml"}
_NOT_OURS = {"__pycache__", "build", "dist", "node_modules"}


@cache
def pyproject() -> dict[str, Any]:
    """The parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def text_files() -> Iterator[Path]:
    """Every text file that people write. Generated stubs, caches and hidden folders other than .ci are left out."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if _ours(Path(folder, name)))
        for name in sorted(files):
            path = Path(folder, name)
            if path.suffix in _TEXT or name == "Makefile" or path.parent.name == ".ci":
                yield path


def python_files() -> list[Path]:
    """Every Python file that people write."""
    return [path for path in text_files() if path.suffix == ".py"]


def package_modules() -> list[Path]:
    """The modules that are installed: those of millwheel and of the roles."""
    folders = {"millwheel", *ROLES}
    return [path for path in python_files() if path.relative_to(ROOT).parts[0] in folders]


def parse(path: Path) -> ast.Module:
    """The syntax tree of one module."""
    return ast.parse(path.read_text(), filename=str(path))


def _ours(folder: Path) -> bool:
    if folder in STUBS or folder.name in _NOT_OURS or folder.name.endswith(".egg-info"):
        return False
    return folder.name == ".ci" or not folder.name.startswith(".")
