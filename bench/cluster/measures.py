"""Figures computed from times and durations: percentiles, gaps, added lag. Pure functions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

__all__ = ["added_lags", "longest_gap", "percentile", "worst_gap"]


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which a share of ``share`` of all values lies. ValueError if there are no values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a percentile of nothing")
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def longest_gap(moments: Sequence[float], begin: float, end: float) -> float:
    """The longest gap between neighbours in the rising ``moments``, of those gaps that overlap ``begin`` .. ``end``.

    A gap that is still open at ``end`` counts up to the next moment. ValueError if there is no moment before ``begin``,
    or none from ``end`` on.
    """
    first, last = bisect_left(moments, begin), bisect_left(moments, end)
    if first == 0 or last == len(moments):
        raise ValueError(f"nothing was seen {'before' if first == 0 else 'since'}")
    return max(moments[at] - moments[at - 1] for at in range(first, last + 1))


def worst_gap(moments: Mapping[str, Sequence[float]], begin: float, end: float) -> float:
    """The longest gap of any key. It is the longest time for which a key was unavailable."""
    return max(longest_gap(seen, begin, end) for seen in moments.values())


def added_lags(samples: Sequence[Sequence[float]]) -> list[float]:
    """By stage: the lag that it adds to the lag of the stage before it, as the median over the samples.

    Each of ``samples`` has the lags of all stages. The first lag is that of the stream's source.
    """
    if not samples:
        raise ValueError("no samples of the lag")
    return [median(sample[stage] - sample[stage - 1] for sample in samples) for stage in range(1, len(samples[0]))]
