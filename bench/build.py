"""Which tree is measured: the compiled one where it is there and of these sources, else the checkout."""

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
    """Decide what processes run that are started from here on, and say so; the figure is how many modules are compiled.

    This process is as it was started, on the checkout.
    """
    fresh = not pure and subprocess.run([_ROOT / "tools" / "compile.sh", "--fresh"], check=False).returncode == 0
    # The first: else a program looks where it was started before it looks where it is told.
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, [_COMPILED, _ROOT] if fresh else [_ROOT]))
    modules = len(list((_COMPILED / "millwheel").rglob("*.so"))) if fresh else 0
    print(f"measuring the core compiled: {modules} modules" if fresh else "measuring pure Python", flush=True)
    return Figure("build.compiled_modules", float(modules), "modules", (float(modules),))
