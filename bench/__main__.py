"""`make bench`: throughput and latency on this machine, as a table and in build/bench.json."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from bench import keyed_count, latency
from bench.build import choose
from bench.machine import Machine
from bench.report import print_figures, write_figures

__all__ = ["main"]


def main() -> None:
    """Measure, print and write the figures. Each figure is the best of its runs. Each run uses a fresh server."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=main.__doc__)
    parser.add_argument("--records", type=int, default=2_000_000, help="records of the keyed count")
    parser.add_argument("--seconds", type=int, default=30, help="length of a latency run")
    parser.add_argument("--runs", type=int, default=3, help="runs of each guaranteed form; the others get one less")
    parser.add_argument("--only", default="", help="measure only figures whose names begin so")
    parser.add_argument("--pure", action="store_true", help="the Python tree, though a compiled one is there")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    arguments = parser.parse_args()
    began = time.monotonic()
    figures = [choose(arguments.pure)]
    machine = Machine()
    machine.look()
    for name in keyed_count.FORMS:
        if name.startswith(arguments.only):
            runs = arguments.runs if "exactly_once" in name else max(1, arguments.runs - 2)
            print(f"{name}: {runs} runs of {arguments.records:,} records …", flush=True)
            figures += keyed_count.measure(name, arguments.records, runs)
            machine.look()
    for rate in (200, 2_000):
        if f"latency.{rate}.".startswith(arguments.only) or arguments.only.startswith(f"latency.{rate}."):
            runs = max(1, arguments.runs - 2) if rate < 1_000 else arguments.runs
            print(f"latency at {rate:,} records/s: {runs} runs of {arguments.seconds} s …", flush=True)
            figures.extend(latency.measure(rate, arguments.seconds, runs))
            machine.look()
    figures += machine.figures()
    print_figures(figures)
    write_figures(figures, arguments.out)
    print(f"written to {arguments.out} after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
