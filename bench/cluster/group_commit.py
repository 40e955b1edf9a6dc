"""How much of the store's speed remains: the keyed count, compared with its entries as bare fenced appends (5; 6.1.2).

The workers keep the entries that they write. After the run, the workers are stopped. Then the same number of processes
writes the same entries to the same Cassandra again, and does nothing else. Different journals are written at once, the
entries of one journal one after the other.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cluster.keyed_count import COLUMNS, HOOKS, CountRun, run_count
from bench.cluster.measures import percentile
from bench.cluster.recording import Written, read_entries, worker_code
from bench.cluster.system import Components, Say, system
from bench.report import Figure
from millwheel.model.incarnation import incarnation_of_journal

__all__ = ["NAMES", "CountSizes", "measure"]

_PATIENCE: Final = 240.0
_BY_COLUMNS: Final = "cluster.keyed_count.columns"
NAMES: Final = ("group_commit", _BY_COLUMNS)
"""How the names of the figures begin."""


@dataclass(frozen=True, slots=True)
class CountSizes:
    """The numbers of records: of a warm-up, and of what is measured."""

    warm: int
    hooks: int
    columns: int


async def measure(components: Components, say: Say, sizes: CountSizes, only: str = "") -> list[Figure]:
    """The share and the rates from which it is computed, and the rate by columns. ``only``: as of the command."""
    folder = components.place / "entries"
    runs: dict[str, CountRun] = {}
    async with system(components, say, 2, worker_code(folder)) as running:
        for name, form, records in (("group_commit", HOOKS, sizes.hooks), (_BY_COLUMNS, COLUMNS, sizes.columns)):
            if name.startswith(only) or only.startswith(name):
                say(f"keyed count by {form.name}: {sizes.warm:,} records to warm up")
                await run_count(running, form, sizes.warm)
                say(f"keyed count by {form.name}: {records:,} records")
                runs[name] = await run_count(running, form, records)
                say(runs[name].costs)
    written = [one for file in sorted(folder.glob("*.entries")) for one in read_entries(file)]
    figures = []
    if run := runs.get("group_commit"):
        bare = await _replay(components, sorted(folder.glob("*.entries")), run.incarnations, say)
        figures += [*_figures(run, bare), *_profile("group_commit", run, written)]
    if run := runs.get(_BY_COLUMNS):
        rate = run.records / run.seconds
        figures += [Figure(_BY_COLUMNS, rate, "records/s", (rate,)), *_profile(_BY_COLUMNS, run, written)]
    return figures


def _figures(run: CountRun, bare: float) -> list[Figure]:
    share, rate, bare_rate = bare / run.seconds, run.records / run.seconds, run.records / bare
    return [
        Figure("group_commit.share_of_bare", share, "", (share,)),
        Figure("group_commit.records_per_s", rate, "records/s", (rate,)),
        Figure("group_commit.bare_per_s", bare_rate, "records/s", (bare_rate,)),
    ]


def _profile(name: str, run: CountRun, written: Sequence[Written]) -> list[Figure]:
    """A description of the run's commits. It helps to explain a slow run."""
    own = [one for one in written if incarnation_of_journal(one.journal) in run.incarnations]
    spans = [(one.ended - one.began) * 1e3 for one in own]
    values = {
        "cpu_us_per_record": (run.processor_seconds / run.records * 1e6, "µs"),
        "entries": (len(own), ""),
        "entry_kb": (sum(len(one.entry) for one in own) / len(own) / 1e3, "kB"),
        "bytes_per_record": (sum(len(one.entry) for one in own) / run.records, "bytes"),
        "append_p50_ms": (percentile(spans, 0.5), "ms"),
        "in_flight": (sum(spans) / 1e3 / run.seconds, "appends"),
    }
    return [Figure(f"{name}.{what}", value, unit, (value,)) for what, (value, unit) in values.items()]


async def _replay(components: Components, files: Sequence[Path], names: set[str], say: Say) -> float:
    """Seconds from the first append to the end of the last one, over all processes."""
    say("the same entries as bare appends")
    settings = components.store_settings
    command = (sys.executable, "-m", "bench.cluster.replay", settings.contact_points[0], settings.keyspace)
    processes = [
        await asyncio.create_subprocess_exec(
            *(*command, str(file), *sorted(names)), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        for file in files
    ]
    try:
        async with asyncio.timeout(_PATIENCE):
            for process in processes:
                assert process.stdout is not None
                if await process.stdout.readline() != b"ready\n":
                    raise RuntimeError("the entries could not be read, or the store not opened")
            said = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    times = [[float(word) for word in out.split()] for out, _ in said]
    return max(ended for _, ended in times) - min(began for began, _ in times)
