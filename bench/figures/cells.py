"""Tables of Markdown, and figures as their cells. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.readings import Readings

__all__ = ["number", "percentiles", "runs_of", "table"]


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table. Without lines it says that they were not measured.

    >>> table(["a", "b"], [["1", "2"]])
    '| a | b |\\n| --- | --- |\\n| 1 | 2 |\\n'
    """
    rows = [heads, ["---"] * len(heads), *lines]
    if len(rows) == 2:
        return f"Not in this run: {heads[0]}.\n"
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def number(value: float) -> str:
    """Three digits that count, or all of a whole number.

    >>> [number(one) for one in (1234567.8, 12.34, 1.234)]
    ['1,234,568', '12.3', '1.23']
    """
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def runs_of(found: Readings, name: str) -> str:
    """All runs of a figure."""
    return " · ".join(map(number, found.runs[name]))


def percentiles(found: Readings, prefix: str, names: Sequence[str] = ("p50", "p95", "p99")) -> list[str]:
    """Latencies in milliseconds."""
    return [number(found.value(f"{prefix}{name}_ms")) for name in names]
