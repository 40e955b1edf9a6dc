"""Figures computed from times and durations: percentiles, gaps, added lag. Pure functions."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, log2
from statistics import median

__all__ = ["added_lags", "histogram", "longest_gap", "percentile", "quantiles", "worst_gap"]


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which a share of ``share`` of all values lies. ValueError if there are no values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a percentile of nothing")
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def histogram(values: Iterable[float], steps: int = 6) -> tuple[tuple[float, float], ...]:
    """The share of the values in each bucket, by the bucket's upper edge. ``steps``: the buckets between x and 2x.

    Buckets without values between the first and the last one are there, too.

    >>> histogram([1, 2, 2, 8], steps=1)
    ((1.0, 0.25), (2.0, 0.5), (4.0, 0.0), (8.0, 0.25))
    """
    counts = Counter(ceil(steps * log2(max(value, 1e-9))) for value in values)
    if not counts:
        raise ValueError("a histogram of nothing")
    places = range(min(counts), max(counts) + 1)
    return tuple((2 ** (place / steps), counts[place] / counts.total()) for place in places)


def quantiles(values: Iterable[float], count: int = 100) -> tuple[tuple[float, float], ...]:
    """The value at each of ``count`` equally distant shares, and the greatest at 1. ValueError if there are none.

    >>> quantiles([5, 1, 3, 2], 2)
    ((0.0, 1), (0.5, 3), (1.0, 5))
    """
    ordered = sorted(values)
    return tuple((at / count, percentile(ordered, at / count)) for at in range(count + 1))


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
