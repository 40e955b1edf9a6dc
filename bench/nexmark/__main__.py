"""`make bench-nexmark`: the queries of Nexmark by several systems by turns, on one file of events.

The table goes to build/bench-nexmark.md, and the figures to build/bench-nexmark.json.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import uvloop

import millwheel as mw
from bench.build import choose
from bench.machine import Machine
from bench.nexmark.models import COMPARED, Row, expected
from bench.nexmark.reporting import QueryRuns, figures, report_table
from bench.nexmark.running import QueryRun, run_query
from bench.nexmark.systems import SYSTEMS, NexmarkSystem, query_job
from bench.report import write_figures
from deploy.local.apt import InstallError
from deploy.local.ending import stoppable
from examples.demo.showing import say
from examples.nexmark.events import Event, generate

__all__ = ["main"]

_SEED: Final = 20_13
_EVERY: Final = mw.milliseconds(1)
_START_RECORDS: Final = 1_000
_START_QUERY: Final = "q0"


@dataclass(frozen=True, slots=True)
class _EventsFile:
    """The events, and the file that has them."""

    events: list[Event]
    path: Path


def main() -> int:
    """Run the command. The exit code is 1 if a system that could be installed gave no results, or wrong ones."""
    parser = argparse.ArgumentParser(prog="python -m bench.nexmark", description=__doc__)
    parser.add_argument("--records", type=int, default=200_000, help="events that each run reads")
    parser.add_argument("--queries", default=",".join(COMPARED), help="with commas between")
    parser.add_argument("--runs", type=int, default=1, help="runs of each query, of which the best counts")
    parser.add_argument("--limit", type=float, default=120, help="the most seconds of one run")
    parser.add_argument("--only", default="", help="systems whose names begin so, with commas between")
    parser.add_argument("--pure", action="store_true", help="the Python tree, though a compiled one is there")
    parser.add_argument("--quick", action="store_true", help="2,000 events, to see that all works")
    parser.add_argument("--out", type=Path, default=Path("build/bench-nexmark.json"))
    parser.add_argument("--place", type=Path, help="where data and logs stay; else they go")
    options = parser.parse_args()
    queries = options.queries.split(",")
    if unknown := set(queries) - set(COMPARED):
        parser.error(f"--queries {','.join(sorted(unknown))}: there is no such query, but {', '.join(COMPARED)}")
    if not (systems := _chosen(options.only)):
        names = ", ".join(one.peer.name for one in SYSTEMS)
        parser.error(f"--only {options.only}: there is no such system, but {names}")
    if options.quick:
        options.records = 2_000
    try:
        return uvloop.run(stoppable(_measured(options, queries, systems)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted: everything is stopped", file=sys.stderr)
        return 130


def _chosen(only: str) -> list[NexmarkSystem]:
    return [one for one in SYSTEMS if one.peer.name.startswith(tuple(only.split(",")))]


async def _measured(options: argparse.Namespace, queries: list[str], systems: list[NexmarkSystem]) -> int:
    build = choose(options.pure)
    versions, missing = _installed(systems)
    ready = [one for one in systems if one.peer.name in versions]
    place = options.place or Path(tempfile.mkdtemp(prefix="millwheel-nexmark-"))
    place.mkdir(parents=True, exist_ok=True)
    machine, found, starts = Machine(), list[QueryRuns](), dict[str, QueryRun]()
    machine.look()
    try:
        some, few = (_written(place, count) for count in (options.records, _START_RECORDS))
        for one in ready:
            starts[one.peer.name] = await _start(options, one, few, place)
        unable = {name: run.error or run.wrong for name, run in starts.items() if not run.right}
        missing |= {name: f"it does not start: {why}" for name, why in unable.items()}
        ready = [one for one in ready if one.peer.name not in missing]
        await _all_runs(options, queries, ready, starts, some, place, found)
        machine.look()
    finally:
        # Also of a run that was interrupted.
        failed = any(not run.right for run in [*starts.values(), *(run for one in found for run in one.runs)])
        if failed:
            say(f"the logs of runs that failed are in {place}")
        elif options.place is None:
            shutil.rmtree(place, ignore_errors=True)
        write_figures([*figures(found), build, *machine.figures()], options.out)
        text = report_table(found, versions) + "".join(f"- {name}: {error}\n" for name, error in missing.items())
        options.out.with_suffix(".md").write_text(text)
        print(f"\n{text}\nwritten to {options.out} and {options.out.with_suffix('.md')}", flush=True)
    return int(failed)


def _installed(systems: Sequence[NexmarkSystem]) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The versions of systems that can run here, and why others cannot."""
    versions, missing = dict[str, dict[str, str]](), dict[str, str]()
    for one in systems:
        try:
            one.peer.install()
            versions[one.peer.name] = one.peer.versions()
        except (InstallError, OSError, subprocess.SubprocessError) as error:
            print(f"{one.peer.name}: {error}", file=sys.stderr)
            missing[one.peer.name] = str(error)
    return versions, missing


def _written(place: Path, count: int) -> _EventsFile:
    """Events, and their file."""
    events, path = list(generate(count, _SEED, _EVERY)), place / f"events-{count}.jsonl"
    path.write_bytes(msgspec.json.Encoder().encode_lines(events))
    return _EventsFile(events, path)


async def _start(options: argparse.Namespace, system: NexmarkSystem, few: _EventsFile, place: Path) -> QueryRun:
    """What the system takes for almost nothing."""
    run = await _run(options, system, _START_QUERY, few, expected(_START_QUERY, few.events), place / "start")
    say(f"{system.peer.name} starts: {run.error or run.wrong or f'{run.whole_s:.1f} s, CPU {run.cpu_s:.1f} s'}")
    return run


async def _all_runs(
    options: argparse.Namespace,
    queries: Sequence[str],
    systems: Sequence[NexmarkSystem],
    starts: dict[str, QueryRun],
    some: _EventsFile,
    place: Path,
    found: list[QueryRuns],
) -> None:
    for query in queries:
        rows = expected(query, some.events)
        for system in systems:
            name = system.peer.name
            measured = QueryRuns(query, name, options.records, starts[name])
            found.append(measured)
            for turn in range(1, options.runs + 1):
                run = await _run(options, system, query, some, rows, place / f"{query}-{turn}")
                measured.runs.append(run)
                said = f"{measured.a_core(run):,.0f} records/s a core, {run.whole_s:.1f} s, {run.wrong or 'right'}"
                say(f"{query}, {name}, {turn} of {options.runs}: {run.error or said}")
                if run.error:
                    break  # it would not end in a later turn either


async def _run(
    options: argparse.Namespace,
    system: NexmarkSystem,
    query: str,
    given: _EventsFile,
    rows: Counter[Row],
    place: Path,
) -> QueryRun:
    """One run in a folder of its own, which goes unless something is wrong."""
    where = place / system.peer.name
    shutil.rmtree(where, ignore_errors=True)
    run = await run_query(system, query_job(query, given.path, where, 1), rows, options.limit)
    if run.right and options.place is None:
        shutil.rmtree(where, ignore_errors=True)
    return run


if __name__ == "__main__":
    sys.exit(main())
