"""Quantiles with a stated relative error, from counts of records by the size of their numbers.

Decision 29 says why this sketch, and why it is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from math import ceil, frexp, inf, isfinite, ldexp
from typing import Any, Final

import msgspec

from millwheel.agg.aggregator import Aggregator, objecting
from millwheel.agg.numbers import counting
from millwheel.agg.reading import Of, Reader, Where
from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record

__all__ = ["quantile", "quantiles"]


class NumberCounts(msgspec.Struct, array_like=True):
    """How many numbers each bucket has.

    Invariant: this depends on the numbers alone, and not on their order or on merges. Counts are only added.

    It keeps its own precision. So an update may change the error of an aggregate: open windows go on with the former.
    """

    parts: int
    """The number of buckets between two powers of two."""
    counts: dict[int, int] = msgspec.field(default_factory=dict)
    """By bucket. A bucket with larger numbers has a larger key, also among negative ones. Zero has bucket 0."""
    low: float = inf
    high: float = -inf


_LOWEST_EXPONENT: Final = 1075
"""More than the largest negative exponent of a float, 1073. So each bucket of a positive number is positive."""


class _Buckets:
    """Divides the numbers from each power of two to the next one into ``parts`` buckets of equal width.

    A bucket's middle differs from each of its numbers by at most 1/(2 * parts) of the number. Only exact operations of
    floats are used, so each machine chooses the same bucket. A logarithm may differ in its last bit.
    """

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._offset = _LOWEST_EXPONENT * self._parts

    def bucket_of(self, number: float) -> int:
        if not number:
            return 0
        mantissa, exponent = frexp(abs(number))  # 0.5 <= mantissa < 1
        bucket = self._offset + exponent * self._parts + int((2 * mantissa - 1) * self._parts)
        return bucket if number > 0 else -bucket

    def middle_of(self, bucket: int) -> float:
        if not bucket:
            return 0.0
        exponent, part = divmod(abs(bucket) - self._offset, self._parts)
        middle = ldexp((self._parts + part + 0.5) / (2 * self._parts), exponent)
        return middle if bucket > 0 else -middle


_buckets_of = lru_cache(_Buckets)


def quantile(of: Of, q: float, *, error: float = 0.01, where: Where = None) -> Aggregator[NumberCounts, Any]:
    """About the smallest number that is not less than a share ``q`` of all numbers. None if no record counts.

    The result differs from the exact one by at most ``error`` of it. It does not depend on the order of the records.
    For example::

        >>> from millwheel import agg
        >>> slow = agg.quantile("seconds", 0.99)

    Args:
        of: The field, or a function of the value: a finite number. The hook raises ValueError for another one.
        q: The share, from 0 (the smallest number) to 1 (the largest one). 0.5 is the median.
        error: The largest relative error, from 0.001 to 0.5. A window keeps 1/(2 * error) counts for each doubling
            between its smallest and its largest number: for 1%, about 500 between one and a thousand.
        where: Which records count, by their values.

    Raises:
        UsageError: ``q`` or ``error`` is out of its range.
    """

    def only(results: list[float]) -> float | None:
        return results[0] if results else None

    return _sketch(of, [q], error, where, only, float if where is None else float | None)


def quantiles(
    of: Of, qs: Sequence[float], *, error: float = 0.01, where: Where = None
) -> Aggregator[NumberCounts, list[float]]:
    """Several quantiles of the same numbers, in the order of ``qs``. An empty list if no record counts.

    They cost as much as one :func:`quantile`. For example::

        >>> from millwheel import agg
        >>> slow = agg.quantiles("seconds", [0.5, 0.95, 0.99])

    Args:
        of: The field, or a function of the value: a finite number. The hook raises ValueError for another one.
        qs: The shares, each from 0 to 1.
        error: The largest relative error, as for :func:`quantile`.
        where: Which records count, by their values.

    Raises:
        UsageError: ``qs`` is empty, or one of them or ``error`` is out of its range.
    """
    return _sketch(of, qs, error, where, lambda results: results, list[float])


def _sketch(
    of: Of, qs: Sequence[float], error: float, where: Where, shape: Callable[[list[float]], Any], result_type: Any
) -> Aggregator[NumberCounts, Any]:
    if not qs or not all(0 <= q <= 1 for q in qs):
        raise UsageError(f"a quantile is from 0 to 1, such as 0.99, not {list(qs)!r:.80}")
    if not 0.001 <= error <= 0.5:
        raise UsageError(f"the error of a quantile is from 0.001 to 0.5, not {error}")
    shares = [Fraction(str(q)) for q in qs]  # as it is written: 0.07 of 100 numbers are 7, in floats a little more
    parts = ceil(1 / (2 * Fraction(str(error))))

    def new() -> NumberCounts:
        return NumberCounts(parts)

    def adder(get: Callable[[Any], Any]) -> Callable[[NumberCounts, Record[Any]], NumberCounts]:
        def add(sketch: NumberCounts, record: Record[Any]) -> NumberCounts:
            number = float(get(record.value)) + 0.0  # -0.0 becomes 0.0: they are equal, and low is one of them
            if not isfinite(number):
                raise ValueError(f"a quantile has no place for {number}: exclude it, by where=")
            bucket = _buckets_of(sketch.parts).bucket_of(number)
            sketch.counts[bucket] = sketch.counts.get(bucket, 0) + 1
            sketch.low, sketch.high = min(sketch.low, number), max(sketch.high, number)
            return sketch

        return add

    def results(sketch: NumberCounts) -> Any:
        middle_of = _buckets_of(sketch.parts).middle_of
        wanted = _at(sketch.counts, shares)
        return shape([min(max(middle_of(bucket), sketch.low), sketch.high) for bucket in wanted])

    def make(reader: Reader) -> Aggregator[NumberCounts, Any]:
        add = counting(adder(reader.get), where)
        made = Aggregator(NumberCounts, new, add, _merge, results, result_type, specialise)
        return objecting(reader.objection, made)

    def specialise(record_type: Any) -> Aggregator[NumberCounts, Any]:
        return make(Reader(of).of_numbers("quantile", record_type, where))

    return make(Reader(of))


def _merge(one: NumberCounts, other: NumberCounts) -> NumberCounts:
    if one.parts > other.parts:
        one, other = other, one
    if one.parts < other.parts:
        other = _coarser(other, one.parts)
    for bucket, counted in other.counts.items():
        one.counts[bucket] = one.counts.get(bucket, 0) + counted
    one.low, one.high = min(one.low, other.low), max(one.high, other.high)
    return one


def _coarser(sketch: NumberCounts, parts: int) -> NumberCounts:
    """The sketch with fewer buckets. A number may get into the bucket beside its own: both errors add up."""
    middle_of, bucket_of = _buckets_of(sketch.parts).middle_of, _buckets_of(parts).bucket_of
    coarser = NumberCounts(parts, {}, sketch.low, sketch.high)
    for bucket, counted in sketch.counts.items():
        place = bucket_of(middle_of(bucket))
        coarser.counts[place] = coarser.counts.get(place, 0) + counted
    return coarser


def _at(counts: dict[int, int], shares: list[Fraction]) -> list[int]:
    """The bucket of the number at each share: the smallest one with at least this share of all numbers up to it."""
    total = sum(counts.values())
    if not total:
        return []
    ranks = [max(1, ceil(share * total)) for share in shares]
    found, seen = dict.fromkeys(ranks, 0), 0
    for bucket in sorted(counts):
        for rank in ranks:
            if seen < rank <= seen + counts[bucket]:
                found[rank] = bucket
        seen += counts[bucket]
    return [found[rank] for rank in ranks]
