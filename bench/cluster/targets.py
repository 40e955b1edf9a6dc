"""The targets of the figures on two cores, and whether the figures meet them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bench.report import Figure

__all__ = ["TARGETS", "Target", "verdicts"]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound of a figure: a maximum or a minimum."""

    bound: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        """Whether a figure is within the bound."""
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.bound:,g}"


TARGETS: Final = {
    "stage_latency.strong.p50_ms": Target(4),
    "stage_latency.strong.p95_ms": Target(12),
    "stage_latency.strong_over_plain": Target(3),
    "stage_latency.plain.p50_ms": Target(3),
    "group_commit.share_of_bare": Target(0.40, at_least=True),
    "group_commit.records_per_s": Target(150_000, at_least=True),
    "cluster.keyed_count.columns": Target(500_000, at_least=True),
    "watermark_lag.per_stage_ms": Target(50),
    "takeover.first_record_ms": Target(2_000),
    **{f"interval_{change}.unavailable_p50_ms": Target(100) for change in ("move", "split", "merge")},
    **{f"interval_{change}.unavailable_max_ms": Target(500) for change in ("move", "split", "merge")},
}


def verdicts(figures: Iterable[Figure]) -> list[str]:
    """One line for each figure that has a target."""
    return [
        f"{'met   ' if TARGETS[one.name].met(one.value) else 'MISSED'}  {one.name} = {one.value:.2f}{one.unit and ' '}"
        f"{one.unit} ({TARGETS[one.name]})"
        for one in figures
        if one.name in TARGETS
    ]
