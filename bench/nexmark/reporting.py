"""What all runs showed: a table in Markdown, and figures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bench.nexmark.running import QueryRun
from bench.report import Figure

__all__ = ["QueryRuns", "figures", "report_table"]


class QueryRuns(msgspec.Struct):
    """A query by a system.

    Attributes:
        query: Such as ``q5``.
        system: The system.
        records: How many events each run reads.
        start: A run of q0 with few events. Its processor time is the price of the start, and not counted.
        runs: All runs, in their order.
    """

    query: str
    system: str
    records: int
    start: QueryRun
    runs: list[QueryRun] = []

    @property
    def best(self) -> QueryRun | None:
        """The run with the least processor time. None unless all runs are right."""
        if not self.runs or not all(run.right for run in self.runs):
            return None
        return min(self.runs, key=lambda run: run.cpu_s)

    def a_core(self, run: QueryRun) -> float:
        """Records per second of processor time."""
        return self.records / max(run.cpu_s - self.start.cpu_s, 0.01)

    def a_second(self, run: QueryRun) -> float:
        """Records per second of the clock, the start included."""
        return self.records / run.whole_s

    @property
    def verdict(self) -> str:
        """What is wrong with any run."""
        return "; ".join(dict.fromkeys(run.error or run.wrong for run in self.runs if not run.right)) or "right"


def figures(found: Iterable[QueryRuns]) -> list[Figure]:
    """The figures of what is right."""
    made: list[Figure] = []
    for one in found:
        if best := one.best:
            prefix = f"nexmark.{one.query}.{one.system}"
            rates = tuple(one.a_core(run) for run in one.runs)
            made.append(Figure(f"{prefix}.records_per_core_s", one.a_core(best), "records/s a core", rates))
            times = tuple(one.a_second(run) for run in one.runs)
            made.append(Figure(f"{prefix}.records_per_s", max(times), "records/s", times))
            made.append(Figure(f"{prefix}.peak_mb", best.peak_mb, "MB", tuple(run.peak_mb for run in one.runs)))
    return made


def report_table(found: Sequence[QueryRuns], versions: Mapping[str, Mapping[str, str]]) -> str:
    """A line for each query and system, and the versions below."""
    heads = ("query", "system", "records/s a core", "records/s", "CPU", "time", "memory", "rows", "results")
    lines = [heads, ("---",) * len(heads), *map(_cells, found)]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    said = "".join(f"- {name}: {', '.join(f'{k} {v}' for k, v in parts.items())}\n" for name, parts in versions.items())
    return f"{table}\n{said}"


def _cells(one: QueryRuns) -> tuple[str, ...]:
    done = [run for run in one.runs if not run.error]
    if not done:
        return one.query, one.system, *("–",) * 6, _flat(one.verdict)
    run = one.best or done[0]
    return (
        one.query,
        one.system,
        f"{one.a_core(run):,.0f}",
        f"{one.a_second(run):,.0f}",
        f"{run.cpu_s:.1f} s",
        f"{run.whole_s:.1f} s",
        f"{run.peak_mb:,.0f} MB",
        f"{run.rows:,}",
        _flat(one.verdict),
    )


def _flat(text: str) -> str:
    """Text that fits into a cell."""
    return " ".join(text.replace("|", "/").split())[:400]
