"""`python -m simulation.scenarios [NAME…]`: plays scenarios, and compares each with its file; ``--write`` writes it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

from simulation.replaying import with_fixed_hashes

_FILES: Final = Path(__file__).parents[2] / "tests" / "scenarios"


def main() -> int:
    """Play the scenarios and return the exit status: 1 if one differs from its file or breaks a guarantee."""
    from simulation.scenarios.all import SCENARIOS  # after the restart with fixed hashes
    from simulation.scenarios.page import differences
    from simulation.scenarios.play import play_all

    options = _options()
    scenarios = [one for one in SCENARIOS if not options.names or one.name in options.names]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="millwheel-scenarios-") as directory:
        for played in play_all(scenarios, Path(directory)):
            if options.history:
                sys.stdout.write(played.history)
            file = _FILES / f"{played.name}.txt"
            written = file.read_text() if file.exists() else ""
            found = [f"VIOLATION {problem}" for problem in played.problems] or differences(written, played.text)
            if options.write and found and not played.problems:
                file.write_text(played.text)
                print(f"{played.name}: written")
                continue
            failed += bool(found)
            print(f"{played.name}: {'differs' if found else 'as written'}", *found, sep="\n  ")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation.scenarios", description=__doc__)
    parser.add_argument("names", nargs="*", help="which; by default all")
    parser.add_argument("--write", action="store_true", help="write the files of those that differ")
    parser.add_argument("--history", action="store_true", help="show everything that happened")
    return parser.parse_args()


if __name__ == "__main__":
    with_fixed_hashes("simulation.scenarios")
    sys.exit(main())
