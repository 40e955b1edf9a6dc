"""Programs of Python's, as a replay needs them: with fixed hashes, which decide the order of sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ["run_module", "with_fixed_hashes"]

_ROOT: Final = Path(__file__).parents[1]
_HASHES: Final = "PYTHONHASHSEED"


def with_fixed_hashes(module: str) -> None:
    """Start the interpreter again for ``python -m module`` if it was not started as a replay needs it."""
    if os.environ.get(_HASHES) != "0":
        os.environ[_HASHES] = "0"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def run_module(module: str, *arguments: str, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """``python -m module``, as from a shell, whatever hashes this process has; subprocess.TimeoutExpired if it takes
    longer."""
    environment = {name: value for name, value in os.environ.items() if name != _HASHES}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False, timeout=seconds
    )
