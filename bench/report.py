"""Output of the figures: a table for people, and build/bench.json for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

__all__ = ["Figure", "print_figures", "write_figures"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure. It is the best of its ``runs``, because other load on the machine disturbs runs."""

    name: str
    value: float
    unit: str
    runs: tuple[float, ...]


def print_figures(figures: Sequence[Figure]) -> None:
    """Print a table: each figure, and all the runs of which it is the best."""
    table = Table(box=None, header_style="bold")
    for title in ("FIGURE", "BEST", "UNIT", "RUNS"):
        table.add_column(title, justify="right" if title == "BEST" else "left")
    for figure in figures:
        table.add_row(figure.name, _shown(figure.value), figure.unit, "  ".join(_shown(one) for one in figure.runs))
    Console().print(table)


def write_figures(figures: Sequence[Figure], path: Path) -> None:
    """Write the figures as a list of {"name", "value", "unit"}."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"name": figure.name, "value": round(figure.value, 3), "unit": figure.unit} for figure in figures]
    path.write_text(json.dumps(rows, indent=2) + "\n")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.2f}"
