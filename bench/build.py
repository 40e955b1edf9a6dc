"""Selects the tree that is measured: the compiled tree if it exists and is up to date, otherwise the checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from bench.report import Figure

__all__ = ["choose"]

_ROOT: Final = Path(__file__).parents[1]
_COMPILED: Final = _ROOT / "build" / "compiled"


def choose(pure: bool) -> Figure:
    """Set the tree for all processes that this process starts from now on, and print it.

    This process itself continues on the checkout. The figure is the number of compiled modules.
    """
    fresh = not pure and subprocess.run([_ROOT / "tools" / "compile.sh", "--fresh"], check=False).returncode == 0
    # PYTHONSAFEPATH: otherwise Python searches the current directory before PYTHONPATH.
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, [_COMPILED, _ROOT] if fresh else [_ROOT]))
    modules = len(list((_COMPILED / "millwheel").rglob("*.so"))) if fresh else 0
    print(f"measuring the core compiled: {modules} modules" if fresh else "measuring pure Python", flush=True)
    return Figure("build.compiled_modules", float(modules), "modules", (float(modules),))
