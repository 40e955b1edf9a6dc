"""`python -m bench.staged`: windows by columns whose results go to another computation, in CPU time.

Interval cores in this process count bids by auction and second. Then others add the counts by another key, in windows
or in hooks. Each result also goes to a log. The store is memory, and nothing goes over a network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import millwheel as mw
from bench.filtered import SECOND, Bid, TablesByWindows, report, spent_in_turns, tables_of
from millwheel import agg, windows
from millwheel.model.incarnation import IncarnationId
from millwheel.windows import Result
from millwheel.worker.interval import IntervalConfig

__all__ = ["PROGRAMS", "measure"]

Counts = mw.Stream[Result[int]]


class Add(mw.Computation[Result[int], int]):
    """Adds the counts of a key."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Result[int]]) -> None:
        """Add a count."""
        ctx.state += record.value.value


def by_end_of_key(result: Result[int]) -> str:
    """A hundred keys."""
    return result.key[-2:]


def _windows(counts: Counts) -> None:
    counts.key_by(by_end_of_key).window(windows.tumbling(mw.minutes(1))).aggregate("total", agg.sum("value"))


PROGRAMS: Final[dict[str, Callable[[Counts], Any]]] = {
    "a log": lambda counts: None,
    "windows": _windows,
    "hooks": lambda counts: counts.key_by(by_end_of_key).process("total", Add(), {}),
}
"""Where the counts go."""


class _Staged(TablesByWindows):
    """Counts by windows, and what gets the results. ``runs`` False: results are rows, as before format 4."""

    def __init__(self, program: str, runs: bool) -> None:
        topology = mw.Topology("staged")
        counts = topology.source("bids", Bid).key_by("auction").window(windows.tumbling(SECOND))
        PROGRAMS[program](counts.aggregate("out", agg.count()))
        self._runs = runs
        self._journal: dict[str, str] = {}
        super().__init__(topology)

    def _config(self, *arguments: Any, **named: Any) -> IntervalConfig:
        return replace(super()._config(*arguments, **named), result_columns=self._runs)

    def locate(self, consumer: IncarnationId, key: bytes) -> str:
        """The only interval of the consumer. As in a worker, that is a look-up in memory."""
        journal = self._journal.get(consumer)
        if journal is None:
            journal = self._journal[consumer] = super().locate(consumer, key)
        return journal

    def results(self) -> int:
        """How many results the first windows had."""
        return sum(len(one.values) for one in self.kept if one.stream == "out")


def measure(records: int, rows: int, runs: int) -> dict[str, list[float]]:
    """Microseconds for a result of the first windows, of each program, for each run. All get the same tables, in turns.

    Args:
        records: How many records.
        rows: How many of them a table has.
        runs: How often.
    """
    tables = tables_of(records, rows)
    forms = {f"{name}, {form}": (name, form == "runs") for name in PROGRAMS for form in ("rows", "runs")}
    found: dict[str, list[float]] = {name: [] for name in forms}
    for run in range(runs):
        clusters = {name: _Staged(*form) for name, form in forms.items()}
        spent = spent_in_turns(clusters, tables, run)
        counts = {cluster.results() for cluster in clusters.values()}
        if len(counts) != 1:
            raise RuntimeError(f"the programs have other numbers of results: {sorted(counts)}")
        for name, cluster in clusters.items():
            found[name].append(spent[name] / max(counts) * 1e6)
            cluster.driver.close()
    return found


if __name__ == "__main__":
    report("staged", measure, 80_000)
