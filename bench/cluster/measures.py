"""What is made of moments and durations: percentiles, gaps, added lag. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

__all__ = ["added_lags", "longest_gap", "percentile", "worst_gap"]


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which ``share`` of all lie; ValueError if there is none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a percentile of nothing")
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def longest_gap(moments: Sequence[float], begin: float, end: float) -> float:
    """The longest time from one of the rising ``moments`` to the next, of those that reach into ``begin`` .. ``end``.

    One that is not over at ``end`` counts with what follows; ValueError if nothing was seen before or nothing since.
    """
    first, last = bisect_left(moments, begin), bisect_left(moments, end)
    if first == 0 or last == len(moments):
        raise ValueError(f"nothing was seen {'before' if first == 0 else 'since'}")
    return max(moments[at] - moments[at - 1] for at in range(first, last + 1))


def worst_gap(moments: Mapping[str, Sequence[float]], begin: float, end: float) -> float:
    """The longest gap of any key: it was away for so long."""
    return max(longest_gap(seen, begin, end) for seen in moments.values())


def added_lags(samples: Sequence[Sequence[float]]) -> list[float]:
    """By stage, what it adds to the lag of the one before it, at the median. ``samples``: each the lags of all stages,
    of which the first is where the stream begins."""
    if not samples:
        raise ValueError("no samples of the lag")
    return [median(sample[stage] - sample[stage - 1] for sample in samples) for stage in range(1, len(samples[0]))]
