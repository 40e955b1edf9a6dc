"""A sequential A/B test: two pages are shown to visitors until one of them is clearly better.

A decision at any moment depends on the order of the visitors: ``ordered_by_time``. ``aggregate`` without a window gives
the counts after each of them. The first verdict of a test passes; the others are dropped.
"""

from __future__ import annotations

import msgspec

import millwheel as mw
from millwheel import agg

__all__ = ["Counts", "Verdict", "Visitor", "ab_test", "verdict"]


class Visitor(msgspec.Struct, frozen=True):
    """Somebody has seen page ``a`` or ``b`` of a test, and bought something or not."""

    test: str
    page: str
    bought: bool


class Counts(msgspec.Struct, frozen=True):
    """By page: the visitors so far who did not buy, and those who did."""

    test: str
    a: list[int]
    b: list[int]


class Verdict(msgspec.Struct, frozen=True):
    """Which page is better, after how many visitors."""

    test: str
    better: str
    visitors: int


def verdict(so_far: Counts) -> list[Verdict]:
    """A verdict if both rates are three standard deviations apart, after 50 visitors of each page."""
    (no_a, yes_a), (no_b, yes_b) = so_far.a, so_far.b
    if min(n_a := no_a + yes_a, n_b := no_b + yes_b) < 50:
        return []
    both, apart = (yes_a + yes_b) / (n_a + n_b), yes_a / n_a - yes_b / n_b
    if abs(apart) <= 3 * (both * (1 - both) * (1 / n_a + 1 / n_b)) ** 0.5:
        return []
    return [Verdict(so_far.test, "a" if apart > 0 else "b", n_a + n_b)]


def outcomes(page: str) -> agg.Aggregator[list[int], list[int]]:
    return agg.histogram("bought", [1], where=lambda one: one.page == page)


ab_test = mw.Topology("ab-test")
visitors = ab_test.source("visitors", Visitor).key_by("test").ordered_by_time()
counts = visitors.aggregate("counts", Counts, a=outcomes("a"), b=outcomes("b"))
counts.flat_map(verdict).named("decided").key_by("test").deduplicate("verdicts")
