"""The interface is typed: a strict checker passes what is right, and catches what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("typed_program.py")


def test_a_users_program_is_checked_strictly(tmp_path: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "-m", "tests.sdk.typed_program"],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROGRAM.parents[2],
    )
    found = re.findall(r"typed_program\.py:(\d+): error: .*\[([a-z-]+)\]", checked.stdout)
    expected = [
        (str(number), code)
        for number, line in enumerate(PROGRAM.read_text().splitlines(), 1)
        for code in re.findall(r"# error: ([a-z-]+)", line)
    ]
    assert found == expected, checked.stdout + checked.stderr
