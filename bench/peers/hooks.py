"""`python -m bench.peers.hooks`: one keyed count that is written by hand, by MillWheel and by Bytewax, by turns.

No broker is between. MillWheel's records come over gRPC from another process, and its results go to a subscriber, as in
:mod:`bench.keyed_count`. Bytewax makes the same records in its own process, and its results stay there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from bench.build import choose
from bench.keyed_count import FORMS, run
from bench.load import MAX_LATE_US, batches, expected_results
from bench.machine import Machine
from bench.peers.environments import BYTEWAX
from bench.report import Figure, print_figures, write_figures

__all__ = ["BytewaxHooks", "main"]

_PROGRAM: Final = Path(__file__).with_name("programs") / "bytewax_hooks.py"
_MAKING_SECONDS: Final = 60.0
_RUN_SECONDS: Final = 300.0
_FORMS: Final = ("exactly_once", "plain")


class BytewaxHooks:
    """The count by a logic of Bytewax: one process, with recovery on. A commit is a snapshot of all changed keys."""

    def __init__(self, records: int, commit_seconds: int) -> None:
        self._records = records
        self._wanted = expected_results(records)
        self._commit_seconds = commit_seconds

    def run(self) -> tuple[float, float]:
        """Run it once.

        Returns:
            Records per second, from the first one until all results are there. And the microseconds of processor time
            of its process for each record meanwhile.

        Raises:
            RuntimeError: It fails, or its results are wrong.
        """
        with tempfile.TemporaryDirectory(prefix="millwheel-bench-") as folder:
            place = Path(folder)
            result = place / "result"
            job: dict[str, object] = {
                "records": str(self._written(place / "records")),
                "result": str(result),
                "payload_bytes": len(next(batches(1))[1][0].payload),
                "out_of_order_us": MAX_LATE_US,
            }
            store = place / "recovery"
            store.mkdir()
            self._python(job, _MAKING_SECONDS, "-m", "bytewax.recovery", str(store), "1")
            kept = ("-r", str(store), "-s", str(self._commit_seconds), "-b", "0")
            self._python(job, _RUN_SECONDS, "-m", "bytewax.run", f"{_PROGRAM}:flow", *kept)
            seconds, spent, results, counted = msgspec.json.decode(result.read_bytes())
        if (results, counted) != (self._wanted, self._records):
            raise RuntimeError(f"bytewax: {results} results that count {counted} records of {self._records}")
        return self._records / seconds, spent / self._records * 1e6

    def _written(self, path: Path) -> Path:
        """The keys and the times of all records, a line for each batch."""
        encode = msgspec.json.encode
        with path.open("wb") as lines:
            lines.writelines(encode((keys, stamps)) + b"\n" for keys, _, stamps in batches(self._records))
        return path

    def _python(self, job: dict[str, object], limit: float, *arguments: str) -> None:
        # It does not see this checkout.
        given = {"PYTHONPATH": "", "PYTHONSAFEPATH": "", "PEER_JOB": msgspec.json.encode(job).decode()}
        command, environment = [str(BYTEWAX.python), *arguments], {**os.environ, **given}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"bytewax ended with {done.returncode}: {(done.stdout + done.stderr)[-2_000:]}")


def main() -> None:
    """Measure by turns, print and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.hooks", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="records that each run counts")
    parser.add_argument("--runs", type=int, default=3, help="turns, of which the best counts")
    parser.add_argument("--commit-seconds", type=int, default=1, help="seconds between two snapshots of Bytewax")
    parser.add_argument("--pure", action="store_true", help="the Python tree, though a compiled one is there")
    parser.add_argument("--out", type=Path, default=Path("build/bench-peers-hooks.json"))
    options = parser.parse_args()
    figures = [choose(options.pure)]
    BYTEWAX.install()
    other, machine = BytewaxHooks(options.records, options.commit_seconds), Machine()
    found: dict[str, list[tuple[float, float]]] = {}
    for turn in range(1, options.runs + 1):
        machine.look()
        runs = {f"millwheel.{form}": _millwheel(form, options.records) for form in _FORMS} | {"bytewax": other.run()}
        for name, one in runs.items():
            found.setdefault(name, []).append(one)
            print(f"{turn} of {options.runs}, {name}: {one[0]:,.0f} records/s, {one[1]:.2f} µs a record", flush=True)
    for name, measured in found.items():
        rates, spent = zip(*measured, strict=True)
        figures.append(Figure(f"hooks.{name}", max(rates), "records/s", rates))
        figures.append(Figure(f"hooks.{name}.cpu_us", min(spent), "µs", spent))
    figures += machine.figures()
    print_figures(figures)
    write_figures(figures, options.out)
    print(f"written to {options.out}")


def _millwheel(form: str, records: int) -> tuple[float, float]:
    """As ``BytewaxHooks.run``. The processor time is that of the server, which runs the hooks."""
    seconds, spent = run(FORMS[f"keyed_count.{form}"], records, expected_results(records))
    return records / seconds, spent / records * 1e6


if __name__ == "__main__":
    main()
