"""Where a compiled build is isolated, most packages are missing, and mypyc ends with any error of mypy (setup.py)."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.house.tree import ROOT
from tests.patience import patience


def test_compiled_modules_have_types_without_other_packages(tmp_path: Path) -> None:
    """No gRPC and no NumPy: only what setup.py asks for is there."""
    spec = find_spec("msgspec")
    assert spec is not None
    assert spec.origin is not None
    msgspec = Path(spec.origin).parent
    for package in (msgspec, msgspec.with_name("google-stubs")):
        (tmp_path / package.name).symlink_to(package)
    options, modules = _constant("_OPTIONS"), _constant("_MODULES")
    assert "--ignore-missing-imports" in options
    command = [sys.executable, "-m", "mypy", *options, "--no-site-packages", *modules]
    environment = {**os.environ, "MYPYPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=patience(60))
    assert done.returncode == 0, done.stdout + done.stderr


def _constant(name: str) -> Any:
    """A constant of setup.py."""
    for line in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id == name:
            assert line.value is not None
            return ast.literal_eval(line.value)
    raise AssertionError(f"setup.py has no {name}")
