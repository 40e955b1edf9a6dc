"""A virtual environment with one wheel and its dependencies, and a user's first steps in it."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

from tests.documents.blocks import blocks_of
from tests.documents.reader import Reader
from tests.documents.test_pages import NOT_RUN
from tests.house.tree import ROOT, pyproject
from tests.patience import patience

_IMPORT_ALL: Final = """
import importlib, pkgutil, millwheel
left_out = ("millwheel.injectors.spark",)  # needs the extra [spark]
names = [one.name for one in pkgutil.walk_packages(millwheel.__path__, "millwheel.", onerror=lambda name: None)]
assert len(names) > 100, names
for name in names:
    if not name.startswith(left_out) and not name.endswith("__main__"):
        importlib.import_module(name)
print(millwheel.__file__)
"""

_CORE: Final = "from millwheel.worker.interval import core; print(core.__file__)"

_SIZES: Final = [("cat videos", 1), ("cat videos", 2), ("dog videos", 1)]
"""The results of the README's programs: each window's text and number of queries."""


class BareEnvironment:
    """A virtual environment in a folder, with one wheel."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        self._python = folder / "bin" / "python"
        venv.create(folder, with_pip=True, clear=True)
        constraints = ["--constraint", str(ROOT / "tools" / "constraints.txt")]
        self._run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constraints, str(wheel))

    def check_installed(self, *, compiled: bool) -> None:
        """Check that the command shows its version, no dependency is missing, and every module can be imported."""
        self._run("-m", "pip", "check")
        version = pyproject()["project"]["version"]
        shown = self._call([str(self._folder / "bin" / "millwheel"), "--version"])
        assert shown.startswith(f"millwheel {version} (Python {sys.version_info.major}.{sys.version_info.minor}"), shown
        assert self._run("-c", _IMPORT_ALL).strip().startswith(str(self._folder))
        assert self._run("-c", _CORE).strip().endswith(".so" if compiled else "core.py")

    def take_first_steps(self, place: Path) -> None:
        """Follow the README, except for Spark: a server, a topology, injectors, a subscription, a test."""
        place.mkdir()
        with Reader(place, self._python) as reader:
            for block in blocks_of(ROOT / "README.md"):
                if block.language == "console":
                    reader.type_commands(block, NOT_RUN)
                elif block.language == "python" and block.file:
                    reader.save(block)
                elif block.language == "python" and "pyspark" not in block.code:
                    self._run("-c", block.code, place=place)
            self._check_windows(place)

    def _check_windows(self, place: Path) -> None:
        command = [str(self._folder / "bin" / "millwheel"), "stream", "tail", "windows", "--from", "oldest", "-n", "3"]
        rows = [json.loads(line) for line in self._call([*command, "-o", "json"], place=place).splitlines()]
        assert sorted((row["value"]["text"], row["value"]["queries"]) for row in rows) == _SIZES, rows

    def _run(self, *arguments: str, place: Path | None = None) -> str:
        return self._call([str(self._python), *arguments], place=place)

    def _call(self, command: list[str], *, place: Path | None = None) -> str:
        """Run a command outside the checkout, so that it uses the package of the virtual environment."""
        done = subprocess.run(
            command, cwd=place or self._folder, capture_output=True, text=True, timeout=patience(120), check=False
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout
