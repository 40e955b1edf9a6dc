"""Where a compiled build is isolated, NumPy is missing, and mypyc ends with any error of mypy (setup.py)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.patience import patience

ROOT = Path(__file__).parents[2]


def test_columns_have_types_without_numpy(tmp_path: Path) -> None:
    """All compiled modules that have columns take their types from this one."""
    shutil.copy(ROOT / "millwheel/sdk/columns.py", tmp_path)
    options = ["--config-file=", "--cache-dir=/dev/null", "--ignore-missing-imports", "--no-site-packages"]
    command = [sys.executable, "-m", "mypy", *options, "columns.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
