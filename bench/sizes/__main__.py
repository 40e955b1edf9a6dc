"""`python -m bench.sizes`: what a record costs by keys, by size, by consumers, and with skewed keys.

Each case runs on a fresh development server, with exactly-once and strong productions. Another process injects. The
hook counts the records of its key. All keys have a state before the measured part begins, and all rows are written: the
server is quiet. A figure is the rate until all records are committed and ACKed, and the CPU time of the server for each
record: until then (``cpu_us``), and until the rows of these records are written, too (``cpu_us_with_rows``).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil

from bench.build import choose
from bench.report import Figure, print_figures, write_figures
from bench.server import ServerProcess, submit

__all__ = ["CASES", "Case", "main", "measure"]

_PATIENCE: Final = 300.0
_ROWS_DUE: Final = 6.0
"""Seconds after which a development server has begun to write all rows."""
_QUIET: Final = 0.1
"""A server is quiet if it takes so little of a processor for a second: nothing is written or compacted any more."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured at once."""

    name: str
    records: int = 300_000
    keys: int = 10_000
    value_bytes: int = 100
    consumers: int = 1
    zipf: float = 0.0
    cache_mib: int = 256


CASES: Final = (
    Case("keys.100", keys=100),
    Case("keys.10000"),
    Case("keys.1000000", 2_000_000, keys=1_000_000),
    Case("zipf.1.2", zipf=1.2),
    Case("value.10", value_bytes=10),
    Case("value.1000", 200_000, value_bytes=1_000),
    Case("value.10000", 20_000, value_bytes=10_000),
    Case("value.100000", 2_000, value_bytes=100_000),
    Case("consumers.10", 60_000, 1_000, consumers=10),
    Case("consumers.100", 6_000, 1_000, consumers=100),
)


def measure(case: Case, rows_due: float = _ROWS_DUE) -> list[Figure]:
    """What a case takes of time, of the server's processor time and of its memory.

    Args:
        case: What is measured.
        rows_due: How long to wait for the server's rows, in seconds, before it is awaited to be quiet. 0: not at all.
    """
    with tempfile.TemporaryDirectory(prefix="millwheel-bench-") as folder:
        server = ServerProcess(Path(folder), "--cache-mib", str(case.cache_mib))
        try:
            submit(server.address, f"consumed_by_{case.consumers}", "bench.sizes.program")
            found = _fed(server, case, rows_due)
        finally:
            server.stop()
    return [Figure(f"sizes.{case.name}.{name}", value, unit, (value,)) for name, (value, unit) in found.items()]


def _fed(server: ServerProcess, case: Case, rows_due: float) -> dict[str, tuple[float, str]]:
    given = (case.consumers, case.records, case.keys, case.value_bytes, case.zipf)
    command = [sys.executable, "-m", "bench.sizes.feed", server.address, *map(str, given)]
    empty = _memory(server.pid)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as feeder:
        try:
            assert feeder.stdout is not None
            filled = feeder.stdout.readline().split()
            if filled[:1] != ["ready"]:
                raise RuntimeError(f"{case.name}: the injector process failed; its output is above")
            _await_quiet(server.pid, rows_due)
            states, before = _memory(server.pid) - empty, _cpu(server.pid)
            answer, _ = feeder.communicate("go\n", timeout=_PATIENCE)
            spent = _cpu(server.pid) - before
            seconds, waited = map(float, answer.split())
            _await_quiet(server.pid, rows_due)
            with_rows = _cpu(server.pid) - before
        finally:
            feeder.kill()  # no effect on a process that has ended
    return {
        "records_per_s": (case.records / seconds, "records/s"),
        "mb_per_s": (case.records * case.value_bytes / seconds / 1e6, "MB/s"),
        "cpu_us": (spent / case.records * 1e6, "µs"),
        "cpu_us_with_rows": (with_rows / case.records * 1e6, "µs"),
        "longest_wait": (waited, "s"),
        "fill.longest_wait": (float(filled[1]), "s"),
        "memory_for_a_key": (states / case.keys, "bytes"),
    }


def _await_quiet(pid: int, rows_due: float) -> None:
    """Return when the server has written all rows and compacted them."""
    time.sleep(rows_due)
    end = time.monotonic() + _PATIENCE
    while rows_due and time.monotonic() < end:
        before = _cpu(pid)
        time.sleep(1)
        if _cpu(pid) - before < _QUIET:
            return
    if rows_due:
        print(f"the server is still busy after {_PATIENCE:.0f} s: the figures that follow include that", flush=True)


def _memory(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.sizes", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose names begin so")
    parser.add_argument("--keys", type=int, help="one case with so many keys, of which each has a state")
    parser.add_argument("--records", type=int, default=2_000_000, help="with --keys: how many are measured")
    parser.add_argument("--quick", action="store_true", help="few records, to see that it works")
    parser.add_argument("--pure", action="store_true", help="the Python tree, though a compiled one is there")
    parser.add_argument("--out", type=Path, default=Path("build/bench-sizes.json"))
    parser.add_argument("--cache-mib", type=int, default=256, help="with --keys: memory for the states")
    options = parser.parse_args()
    cases = [case for case in CASES if case.name.startswith(options.only)]
    if options.keys:
        cases = [Case(f"keys.{options.keys}", options.records, options.keys, cache_mib=options.cache_mib)]
    if options.quick:
        cases = [replace(case, records=case.records // 100, keys=min(case.keys, 10_000)) for case in cases]
    figures = [choose(options.pure)]
    for case in cases:
        print(f"{case.name}: {case.records:,} records …", flush=True)
        figures += measure(case, 0 if options.quick else _ROWS_DUE)
    print_figures(figures)
    write_figures(figures, options.out)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
