"""`python -m bench.authority`: the watermark authority with 500,000 key intervals, as in the paper's section 7.2.

The core alone, whose appends are built but not written. Then the service: reports and broadcasts over gRPC on loopback,
with a store in memory. One interval that reports, and its listener, are in the service's process. All others report
from another process.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import uvloop

from bench.authority import core, service
from bench.report import print_figures, write_figures
from millwheel.server.startup import settle_memory

__all__ = ["main"]


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.authority", description=__doc__)
    parser.add_argument("--intervals", type=int, default=500_000)
    parser.add_argument("--quick", action="store_true", help="little of everything, to see that it works")
    parser.add_argument("--out", type=Path, default=Path("build/bench-authority.json"))
    options = parser.parse_args()
    settle_memory()  # as the daemon does
    intervals = 5_000 if options.quick else options.intervals
    figures = core.measure(intervals, rounds=1 if options.quick else 2)
    figures += uvloop.run(service.measure(intervals, 100 if options.quick else 500))
    print_figures(figures)
    write_figures(figures, options.out)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
