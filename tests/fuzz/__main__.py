"""``python -m tests.fuzz``: all surfaces, with progress and a table; exit code 1 if anything was unclear."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time

from tests.fuzz.runner import SURFACES, replay, run
from tests.fuzz.tally import table

__all__ = ["main"]


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="in all, shared among the surfaces")
    parser.add_argument("--seed", type=int, default=1, help="what the cases are drawn from")
    parser.add_argument("--only", action="append", choices=sorted(SURFACES), help="these surfaces alone")
    parser.add_argument("--case", type=int, help="this one case of the surface that --only names, with what is logged")
    arguments = parser.parse_args()
    names = arguments.only or list(SURFACES)
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("w", prefix="millwheel-fuzz-", suffix=".log", delete=False) as log:
        logging.basicConfig(stream=sys.stderr if arguments.case is not None else log, level=logging.INFO, force=True)
        if arguments.case is not None:
            print(asyncio.run(replay(names[0], arguments.seed, arguments.case)))
            return 0
        tallies = asyncio.run(run(names, arguments.cases, arguments.seed, show=sys.stdout.isatty()))
    print(table(tallies))
    unclear = [f"{one.surface}: {shown}" for one in tallies for shown in one.unclear]
    for shown in unclear[:20]:
        print(f"\nUNCLEAR {shown}")
    print(f"\n{len(unclear):,} unclear, seed {arguments.seed}, {time.monotonic() - began:,.0f} s; log: {log.name}")
    return 1 if unclear else 0


if __name__ == "__main__":
    sys.exit(main())
