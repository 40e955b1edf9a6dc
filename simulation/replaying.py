"""Starts Python programs as a replay needs them: with fixed hashes, because hashes decide the order of sets."""

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
    """Restart the interpreter for ``python -m module``, unless it has fixed hashes already."""
    if os.environ.get(_HASHES) != "0":
        os.environ[_HASHES] = "0"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def run_module(
    module: str, *arguments: str, seconds: float | None = None, root: Path = _ROOT
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m module`` as from a shell: with hashes of its own.

    ``root`` is the folder of the project, which may have several names.

    Raises:
        subprocess.TimeoutExpired: the program takes longer than ``seconds``.
    """
    environment = {name: value for name, value in os.environ.items() if name != _HASHES} | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=seconds
    )
