"""`python -m bench.peers.hooks`: one keyed count by MillWheel and by Bytewax, by hand and by windows, by turns.

No broker is between. MillWheel's records come over gRPC from another process, and its results go to a subscriber, as in
:mod:`bench.keyed_count`. Bytewax makes the same records in its own process, and its results stay there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench import keyed_count
from bench.build import choose
from bench.load import MAX_LATE_US, batches, expected_results
from bench.machine import Machine
from bench.peers.environments import BYTEWAX
from bench.peers.jobs import PROGRAMS
from bench.report import Figure, print_figures, write_figures

__all__ = ["FORMS", "BytewaxCount", "figures_of", "main"]

_MAKING_SECONDS: Final = 60.0
_RUN_SECONDS: Final = 300.0
_BATCH: Final = 8_192
"""The records that Bytewax gets at once: as many as a table has. With 1,000 its logic takes a seventh longer."""
_LOGIC: Final = "bytewax.logic"
_WINDOWS: Final = "bytewax.windows"
_PROGRAMS: Final = {_LOGIC: "bytewax_hooks.py", _WINDOWS: "bytewax_windows.py"}
_COUNTS: Final = {
    "millwheel.exactly_once": ("keyed_count.exactly_once", _LOGIC),
    "millwheel.plain": ("keyed_count.plain", _LOGIC),
    "millwheel.batch": ("keyed_count.batch.exactly_once", _LOGIC),
    "millwheel.batch.tables": ("keyed_count.batch.tables", _LOGIC),
    "millwheel.columns": ("keyed_count.columns.exactly_once", _WINDOWS),
    "millwheel.columns.tables": ("keyed_count.columns.tables", _WINDOWS),
}
"""By form of MillWheel: its name in :mod:`bench.keyed_count`, and the form of Bytewax that is like it."""
FORMS: Final = (*_COUNTS, *_PROGRAMS)

Rates = tuple[float, float]
"""Records per second, and microseconds of processor time for each."""


class BytewaxCount:
    """The count by a dataflow of Bytewax: one process, with recovery on. A commit is a snapshot of all changed keys."""

    def __init__(self, program: Path, records: int, wanted: int, commit_seconds: int) -> None:
        """
        Args:
            program: The file with the dataflow, ``flow``.
            records: How many it counts.
            wanted: The number of results that it should have.
            commit_seconds: Seconds between two snapshots.
        """
        self._program = program
        self._records = records
        self._wanted = wanted
        self._commit_seconds = commit_seconds

    def run(self) -> Rates:
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
            self._python(job, _RUN_SECONDS, "-m", "bytewax.run", f"{self._program}:flow", *kept)
            seconds, spent, results, counted = msgspec.json.decode(result.read_bytes())
        if (results, counted) != (self._wanted, self._records):
            raise RuntimeError(
                f"{self._program.name}: {results} results that count {counted} records, not {self._wanted} that count "
                f"{self._records}"
            )
        return self._records / seconds, spent / self._records * 1e6

    def _written(self, path: Path) -> Path:
        """The keys and the times of all records, a line for each batch."""
        keys, stamps = list[str](), list[int]()
        for names, _, times in batches(self._records):
            keys += names
            stamps += times
        encode = msgspec.json.encode
        with path.open("wb") as lines:
            for at in range(0, self._records, _BATCH):
                lines.write(encode((keys[at : at + _BATCH], stamps[at : at + _BATCH])) + b"\n")
        return path

    def _python(self, job: dict[str, object], limit: float, *arguments: str) -> None:
        # It does not see the packages of this checkout's environment.
        given = {"PYTHONPATH": "", "PYTHONSAFEPATH": "", "PEER_JOB": msgspec.json.encode(job).decode()}
        command, environment = [str(BYTEWAX.python), *arguments], {**os.environ, **given}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"bytewax ended with {done.returncode}: {(done.stdout + done.stderr)[-2_000:]}")


def figures_of(found: Mapping[str, Sequence[Rates]]) -> list[Figure]:
    """The figures of each form, by its runs: the best rate and the least processor time.

    A form of MillWheel also has its rate as a multiple of Bytewax's, by turns, if both were measured. The value is that
    of the best rates.
    """
    figures = []
    for name, measured in found.items():
        rates, spent = zip(*measured, strict=True)
        figures.append(Figure(f"hooks.{name}", max(rates), "records/s", rates))
        figures.append(Figure(f"hooks.{name}.cpu_us", min(spent), "µs", spent))
    for name, (_, other) in _COUNTS.items():
        if name in found and other in found:
            ours, others = ([rate for rate, _ in found[one]] for one in (name, other))
            turns = tuple(one / beside for one, beside in zip(ours, others, strict=True))
            figures.append(Figure(f"hooks.{name}.beside", max(ours) / max(others), f"× {other}", turns))
    return figures


def main() -> None:
    """Measure by turns, print and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.hooks", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="records that each run counts")
    parser.add_argument("--runs", type=int, default=3, help="turns, of which the best counts")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="what is measured")
    parser.add_argument("--commit-seconds", type=int, default=1, help="seconds between two snapshots of Bytewax")
    parser.add_argument("--pure", action="store_true", help="the Python tree, though a compiled one is there")
    parser.add_argument("--out", type=Path, default=Path("build/bench-peers-hooks.json"))
    options = parser.parse_args()
    figures = [choose(options.pure)]
    BYTEWAX.install()
    wanted, machine = expected_results(options.records), Machine()
    found: dict[str, list[Rates]] = {}
    for turn in range(1, options.runs + 1):
        machine.look()
        for name in options.forms:
            rate, spent = _run(name, options.records, wanted, options.commit_seconds)
            found.setdefault(name, []).append((rate, spent))
            print(f"{turn} of {options.runs}, {name}: {rate:,.0f} records/s, {spent:.2f} µs a record", flush=True)
    figures += figures_of(found) + machine.figures()
    print_figures(figures)
    write_figures(figures, options.out)
    print(f"written to {options.out}")


def _run(name: str, records: int, wanted: int, commit_seconds: int) -> Rates:
    """Run a form once: see ``BytewaxCount.run``. MillWheel's processor time is that of the server, which runs hooks."""
    if name in _PROGRAMS:
        return BytewaxCount(PROGRAMS / _PROGRAMS[name], records, wanted, commit_seconds).run()
    form, _ = _COUNTS[name]
    seconds, spent = keyed_count.run(keyed_count.FORMS[form], records, wanted)
    return records / seconds, spent / records * 1e6


if __name__ == "__main__":
    main()
