"""Whether a figure that was sampled over time is flat. Pure.

The first fifth of the samples is warm-up, and is left out. The rest is flat if the median of its last third is not
much above that of its first third. The allowance is a tenth, or a fixed amount for the kind of figure if that is more.
The growth an hour is the slope of a line by least squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression, median
from typing import Final

FLOORS: Final = {"memory_mb": 16.0, "descriptors": 8.0, "threads": 4.0, "tasks": 16.0, "db_mb": 4.0, "data_mb": 96.0}
"""The fixed allowance, by kind of figure. Cassandra's data: as much as can be written and not compacted yet."""
_CASSANDRA: Final = {**FLOORS, "memory_mb": 64.0, "descriptors": 64.0, "threads": 24.0}
"""Its heap fills up as its collector sees fit, its pools as there is work; tables that wait for compaction are open."""
_WARM: Final = 0.2
_RATIO: Final = 0.1
_LEAST: Final = 6
"""The least number of samples after the warm-up."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``early`` and ``late``: medians of the first third and the last, after the warm-up."""

    name: str
    early: float
    late: float
    most: float
    an_hour: float
    flat: bool

    def __str__(self) -> str:
        return (
            f"{'flat ' if self.flat else 'GROWS'}  {self.name:28} {self.early:10.1f} {self.late:10.1f} "
            f"{self.most:10.1f} {self.an_hour:+10.1f}"
        )


def judge(name: str, times: Sequence[float], values: Sequence[float]) -> Verdict:
    """``name``: its last word is its kind. ``times``: seconds. ValueError if there are too few samples."""
    begin = times[0] + (times[-1] - times[0]) * _WARM if times else 0.0
    kept = [(at, value) for at, value in zip(times, values, strict=True) if at >= begin]
    if len(kept) < _LEAST:
        raise ValueError(f"only {len(kept)} samples of {name} after the warm-up")
    third = len(kept) // 3
    early, late = (median(value for _, value in part) for part in (kept[:third], kept[-third:]))
    slope = linear_regression([at for at, _ in kept], [value for _, value in kept]).slope
    floors = _CASSANDRA if name.startswith("cassandra") else FLOORS
    allowed = max(_RATIO * early, floors[name.rpartition(" ")[2]])
    return Verdict(name, early, late, max(value for _, value in kept), slope * 3_600, late - early <= allowed)
