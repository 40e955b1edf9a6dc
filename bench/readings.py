"""Reads the figures and series that benchmarks have written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["Readings", "read", "readings"]


@dataclass(frozen=True, slots=True)
class Readings:
    """Figures and series by name. ``where``: their file, for errors."""

    where: str
    figures: dict[str, float] = field(default_factory=dict)
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    runs: dict[str, list[float]] = field(default_factory=dict)

    def value(self, name: str) -> float:
        """A figure. KeyError: it is not there."""
        if name not in self.figures:
            raise KeyError(f"{self.where} has no figure {name}")
        return self.figures[name]

    def points(self, name: str) -> list[tuple[float, float]]:
        """A series. KeyError: it is not there."""
        if name not in self.series:
            raise KeyError(f"{self.where} has no series {name}")
        return self.series[name]


def readings(rows: list[dict[str, Any]], where: str) -> Readings:
    """The rows that :func:`bench.report.write_figures` has written."""
    found = Readings(where)
    for row in rows:
        if "points" in row:
            found.series[row["name"]] = [(x, y) for x, y in row["points"]]
        else:
            found.figures[row["name"]] = row["value"]
            found.runs[row["name"]] = row.get("runs", [row["value"]])
    return found


class _Rows(msgspec.Struct):
    """What is read of a file of docs/figures."""

    rows: list[dict[str, Any]]


def read(file: Path) -> Readings:
    """The figures of one benchmark, as it wrote them or as docs/figures has them. ValueError: it has neither form."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=list[dict[str, Any]] | _Rows)
        return readings(found.rows if isinstance(found, _Rows) else found, str(file))
    except (msgspec.DecodeError, KeyError) as error:
        raise ValueError(f"{file} is no file of figures: {error}") from error
