"""`python -m bench.scale`: figure 14 with 20 to 2,000 workers, simulated with service times that were measured here.

The processor time of a record and the time of an append come from the figures of `bench.cluster`, and the load of the
authority from those of `bench.authority`. So run those first, or give their files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from bench.cluster.measures import percentile
from bench.cluster.stage_latency import RATE
from bench.readings import Readings, read
from bench.report import Figure, Row, Series, print_figures, write_figures
from bench.scale.model import ServiceTimes, simulate

__all__ = ["main", "measure"]

_WORKERS: Final = (20, 50, 100, 200, 500, 1_000, 2_000)
_INTERVALS: Final = 250
"""Intervals of a worker: 500,000 of 2,000 workers."""
_BUSY: Final = 0.5
_HOP_MS: Final = 0.2
_PACE_S: Final = 0.02
"""The least time between two appends of a shard of the authority in a cluster."""
_SHARES: Final = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))


def measure(cluster: Readings, authority: Readings, records: int) -> list[Row]:
    """The latency of both forms by the number of workers, and what the authority gets."""
    found: list[Row] = []
    for form in ("strong", "plain"):
        append = cluster.points("append.quantiles") if form == "strong" else ()
        cpu = cluster.value(f"stage_latency.{form}.cores.worker") / RATE * 1e3
        times = ServiceTimes(cpu, append, _HOP_MS)
        lines: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in _SHARES}
        for workers in _WORKERS:
            taken = simulate(workers, _INTERVALS, times, _BUSY, max(records, 60 * workers))
            for name, share in _SHARES:
                value = percentile(taken, share)
                lines[name].append((workers, value))
                found.append(Figure(f"scale.{form}.{workers}.{name}_ms", value, "ms", (value,)))
            rate = workers * _BUSY / cpu * 1e3
            found.append(Figure(f"scale.{form}.{workers}.records_per_s", rate, "records/s", (rate,)))
        found += [Series(f"scale.{form}.{name}", "ms by workers", tuple(line)) for name, line in lines.items()]
        found.append(Figure(f"scale.{form}.cpu_ms", cpu, "ms", (cpu,)))
    served = authority.value("authority.served_reports_per_s")
    for workers in _WORKERS:
        took = max(_PACE_S, workers * _INTERVALS / served)
        found.append(Figure(f"scale.authority.{workers}.round_s", took, "s", (took,)))
    return found


def main() -> int:
    """Simulate, print and write the figures. The exit code is 1 if a measured figure is missing."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--cluster", type=Path, default=Path("build/bench-cluster.json"))
    parser.add_argument("--authority", type=Path, default=Path("build/bench-authority.json"))
    parser.add_argument("--records", type=int, default=100_000, help="records of a simulation, at least")
    parser.add_argument("--quick", action="store_true", help="few records, to see that it works")
    parser.add_argument("--out", type=Path, default=Path("build/bench-scale.json"))
    options = parser.parse_args()
    try:
        cluster, authority = read(options.cluster), read(options.authority)
        figures = measure(cluster, authority, 2_000 if options.quick else options.records)
    except (OSError, KeyError, ValueError) as error:
        print(f"{error}: measure it with `python -m bench.cluster` and `python -m bench.authority`", file=sys.stderr)
        return 1
    print_figures(figures)
    write_figures(figures, options.out)
    print(f"written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
