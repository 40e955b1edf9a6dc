"""Output of the figures: a table for people, and build/bench.json for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from rich.console import Console
from rich.table import Table

__all__ = ["Figure", "Row", "Series", "print_figures", "write_figures"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure. It is the best of its ``runs``, because other load on the machine disturbs runs."""

    name: str
    value: float
    unit: str
    runs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """Points of a plot: what belongs to each place on the horizontal axis."""

    name: str
    unit: str
    points: tuple[tuple[float, float], ...]


Row: TypeAlias = Figure | Series


def print_figures(rows: Sequence[Row]) -> None:
    """Print a table: each figure, and all the runs of which it is the best. Series are for plots."""
    table = Table(box=None, header_style="bold")
    for title in ("FIGURE", "BEST", "UNIT", "RUNS"):
        table.add_column(title, justify="right" if title == "BEST" else "left")
    for figure in (one for one in rows if isinstance(one, Figure)):
        table.add_row(figure.name, _shown(figure.value), figure.unit, "  ".join(_shown(one) for one in figure.runs))
    Console().print(table)


def write_figures(rows: Sequence[Row], path: Path) -> None:
    """Write figures as {"name", "value", "unit", "runs"} and series as {"name", "unit", "points"}, in one list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([_written(row) for row in rows], indent=2) + "\n")


def _written(row: Row) -> dict[str, object]:
    if isinstance(row, Series):
        points = [[round(x, 3), round(y, 6)] for x, y in row.points]
        return {"name": row.name, "unit": row.unit, "points": points}
    runs = [round(run, 3) for run in row.runs]
    return {"name": row.name, "value": round(row.value, 3), "unit": row.unit, "runs": runs}


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.2f}"
