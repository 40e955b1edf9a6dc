"""Run the tests that failed again, alone: ``python -m tests.again``, as `make test` does after a run with failures.

Tests of real processes share a small machine with other tests, and one may wait longer than it allows for. A few that
failed have a second try, each alone. What the run finds is not hidden by it: a test that fails again fails the run, a
random example that failed is tried again, and a test that passes only alone is named at the end. That is a defect, too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

MOST: Final = 3
"""How many failed tests have a second try. If more fail, no single delay was the cause."""
LIST: Final = Path("build", "failed-tests.txt")
"""Where the names of failed tests are, below the root of the tests."""
_ROOT: Final = Path(__file__).parent.parent


def write(root: Path, failed: list[str]) -> None:
    """Write down the names of the tests that failed in a run. ``root``: that of the tests."""
    path = root / LIST
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{name}\n" for name in dict.fromkeys(failed)))


def again(failed: list[str], run: Callable[[str], bool]) -> int:
    """Try again what failed.

    Args:
        failed: The names of the tests.
        run: Runs a test alone, and returns whether it passed.

    Returns:
        The exit code of the whole run.
    """
    if not 0 < len(failed) <= MOST:
        return 1
    print(f"\n{len(failed)} failed beside the others. Each is run again, alone:", flush=True)
    passed = [run(name) for name in failed]
    if not all(passed):
        return 1
    for name in failed:
        print(f"PASSED ONLY ALONE {name}")
    return 0


def _passes(name: str) -> bool:
    done = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", name], cwd=_ROOT, check=False)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(again((_ROOT / LIST).read_text().splitlines(), _passes))
