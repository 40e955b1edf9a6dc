"""The outcome of all runs: a table in Markdown, and what is written for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from bench.peers.running import PeerRun

__all__ = ["Measured", "table"]

_HEADS: Final = (
    "system", "guarantee", "records/s", "all runs", "first result", "CPU", "memory", "results", "versions",
)  # fmt: skip


class Measured(msgspec.Struct):
    """A system, and its runs.

    Attributes:
        name: The system.
        guarantee: What it promises.
        versions: Of what it is made of.
        settings: What was set, other than by default.
        runs: All runs, in their order.
        missing: Why it cannot be run here. Then nothing else is known.
    """

    name: str
    guarantee: str
    versions: dict[str, str] = {}
    settings: dict[str, str] = {}
    runs: list[PeerRun] = []
    missing: str = ""

    @property
    def best(self) -> PeerRun | None:
        """The fastest run without an error. None if there is none."""
        return max((one for one in self.runs if not one.error), key=lambda one: one.records_per_s, default=None)


def table(measured: Sequence[Measured], records: int) -> str:
    """A line for each system: its best run, beside the rates of all. ``records``: of one run.

    After runs with a kill, the table has one column more.
    """
    killed = any(run.recovery_s for one in measured for run in one.runs)
    heads = (*_HEADS, *(("results again",) if killed else ()))
    found = ((*_cells(one, records), *((_again(one),) if killed else ())) for one in measured)
    lines = [heads, ("---",) * len(heads), *found]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cells(one: Measured, records: int) -> tuple[str, ...]:
    versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
    best = one.best
    if best is None:
        errors = one.missing or "; ".join(run.error for run in one.runs) or "it was not run"
        return one.name, one.guarantee, *("–",) * 5, _flat(errors), versions
    return (
        one.name,
        one.guarantee,
        f"{best.records_per_s:,.0f}",
        " · ".join("failed" if run.error else f"{run.records_per_s:,.0f}" for run in one.runs),
        f"{best.first_result_s:.1f} s",
        f"{best.cpu_s / records * 1e6:.1f} µs",
        f"{best.peak_mb:,.0f} MB",
        _verdict(one.runs),
        versions,
    )


def _again(one: Measured) -> str:
    """The seconds of each run from the kill to the next result."""
    return " · ".join(f"{run.recovery_s:.1f} s" if run.recovery_s else "–" for run in one.runs) or "–"


def _verdict(runs: Iterable[PeerRun]) -> str:
    """What is wrong with the results of any run."""
    wrong = [one for one in runs if not one.error and not one.right]
    names = ("lost", "twice", "results_twice")
    sums = {name: sum(getattr(one, name) for one in wrong) for name in names}
    said = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sums.items() if count)
    failed = "; ".join(_flat(one.error) for one in runs if one.error)
    return "; ".join(filter(None, (said, failed))) or "right"


def _flat(text: str) -> str:
    """Text that fits into a cell."""
    return " ".join(text.replace("|", "/").split())[:300]
