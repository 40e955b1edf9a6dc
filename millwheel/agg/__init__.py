"""Aggregates: what is computed from the records of a window, or of a key (section 2).

Each of them reads a field by its path, or what a function returns. They can be merged, so sessions and two-phase
aggregation work with all of them. ``where=`` counts only some records. For example::

    >>> from millwheel import agg
    >>> spent, dear = agg.sum("price"), agg.count(where=lambda bid: bid.price >= 10_000)
"""

from millwheel.agg.aggregator import Aggregator, result_type_of
from millwheel.agg.choices import best, collect, distinct, first, last, max, max_by, min, min_by, top
from millwheel.agg.numbers import count, histogram, mean, sum, variance
from millwheel.agg.quantiles import quantile, quantiles
from millwheel.agg.several import several

__all__ = [
    "Aggregator",
    "best",
    "collect",
    "count",
    "distinct",
    "first",
    "histogram",
    "last",
    "max",
    "max_by",
    "mean",
    "min",
    "min_by",
    "quantile",
    "quantiles",
    "result_type_of",
    "several",
    "sum",
    "top",
    "variance",
]
