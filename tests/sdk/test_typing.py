"""The interface is typed: a strict checker accepts correct programs and finds mistakes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = ("tests/sdk/typed_program.py", "tests/streams/typed_steps.py")


def test_users_programs_are_checked_strictly(tmp_path: Path) -> None:
    modules = [part for one in PROGRAMS for part in ("-m", one.removesuffix(".py").replace("/", "."))]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), *modules],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    found = re.findall(r"^(\S+):(\d+): error: .*\[([a-z-]+)\]", checked.stdout, re.MULTILINE)
    expected = [
        (program, str(number), code)
        for program in PROGRAMS
        for number, line in enumerate((ROOT / program).read_text().splitlines(), 1)
        for code in re.findall(r"# error: ([a-z-]+)", line)
    ]
    assert sorted(found) == sorted(expected), checked.stdout + checked.stderr
