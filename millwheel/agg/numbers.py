"""Aggregates of numbers: how many, their sum, mean, variance and distribution."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import ne
from typing import Any, TypeVar, cast

from millwheel.agg.aggregator import Aggregator, adding, objecting
from millwheel.agg.folds import ChosenFold, CountFold, MeanFold, SumFold, foldable, plain_number
from millwheel.agg.reading import NUMBER, Of, Reader, Where, same
from millwheel.sdk.columns import Fold
from millwheel.sdk.errors import UsageError
from millwheel.sdk.expressions import plain_function
from millwheel.sdk.records import Record

__all__ = ["count", "counting", "histogram", "mean", "of_chosen", "one_more", "plus", "sum", "variance"]

A = TypeVar("A")
Add = Callable[[Any, Record[Any]], Any]


def counting(add: Add, where: Where) -> Add:
    """``add`` for the records that count, and the same accumulator for the others."""
    if where is None:
        return add
    counts = plain_function(where)
    chosen: Any = lambda accumulator, record: add(accumulator, record) if counts(record.value) else accumulator  # noqa: E731
    chosen.where = where  # ``Aggregator.bind`` checks the fields of an expression
    return cast("Add", chosen)


def of_chosen(fold: Fold | None, where: Where, record_type: Any) -> Fold | None:
    """The fold for the records that count."""
    return fold if fold is None or where is None else ChosenFold(fold, where, record_type)


def plus(a: Any, b: Any) -> Any:
    """The sum of both."""
    return a + b


def one_more(counted: int, record: Record[Any]) -> int:
    """The number of records with another one."""
    return counted + 1


def count(*, where: Where = None) -> Aggregator[int, int]:
    """The number of records. Without ``where``, their values are not decoded.

    Args:
        where: Which records count, by their values.
    """
    item = "1" if where is None else ""

    def make(record_type: Any = Any) -> Aggregator[int, int]:
        one = Aggregator(int, int, counting(one_more, where), plus, same, int, make, ne)
        return adding(item, one, of_chosen(CountFold(), where, record_type))

    return make()


def sum(of: Of = None, item: Any = None, *, where: Where = None) -> Aggregator[Any, Any]:
    """The sum of a field. A sum of floats depends on the order of the records; a sum of integers does not.

    Args:
        of: The field, a function of the value, or an expression. By default the value itself.
        item: The type of the numbers and of the sum. By default that of the field.
        where: Which records count, by their values.
    """

    def make(reader: Reader, kind: Any, record_type: Any = Any) -> Aggregator[Any, Any]:
        get = reader.of_records(record_type)
        add = counting(lambda total, record: total + get(record), where)
        source = reader.source(record_type)
        read, plain = plain_number(reader.type_in(record_type)), plain_number(kind)
        fold = SumFold(plain, reader, record_type) if source and foldable(read) else None
        new = plain if foldable(plain) else lambda: 0  # a column of floats begins with 0.0
        return adding(
            source if where is None else "",
            Aggregator(kind, new, add, plus, same, kind, specialise, ne),
            of_chosen(fold, where, record_type),
        )

    def specialise(record_type: Any) -> Aggregator[Any, Any]:
        reader = Reader(of, item).of_numbers("sum", record_type, where)
        kind = reader.type_in(record_type)
        # True and True are 2.
        return objecting(reader.objection, make(reader, int if kind is bool else kind, record_type))

    return make(Reader(of, item), item or NUMBER)


def mean(of: Of = None, *, where: Where = None) -> Aggregator[tuple[int, float], Any]:
    """The mean of a field. None if no record counts.

    Args:
        of: The field, or a function of the value. By default the value itself.
        where: Which records count, by their values.
    """

    def result(a: tuple[int, float]) -> Any:
        return a[1] / a[0] if a[0] else None

    def make(reader: Reader, fold: Fold | None = None) -> Aggregator[tuple[int, float], Any]:
        get = reader.get
        one: Aggregator[tuple[int, float], Any] = Aggregator(
            tuple[int, int | float],
            lambda: (0, 0),
            counting(lambda a, record: (a[0] + 1, a[1] + get(record.value)), where),
            lambda a, b: (a[0] + b[0], a[1] + b[1]),
            result,
            float if where is None else float | None,
            specialise,
            lambda a, b: result(a) != result(b),
        )
        return adding("", one, fold)

    def specialise(record_type: Any) -> Aggregator[tuple[int, float], Any]:
        reader = Reader(of).of_numbers("mean", record_type, where)
        kind = plain_number(reader.type_in(record_type))
        fold = MeanFold(kind, reader, record_type) if foldable(kind) else None
        return objecting(reader.objection, make(reader, of_chosen(fold, where, record_type)))

    return make(Reader(of))


def variance(of: Of = None, *, where: Where = None) -> Aggregator[tuple[int, float, float], Any]:
    """The population variance of a field. None if no record counts.

    Its last digits depend on the order of the records.

    Args:
        of: The field, or a function of the value. By default the value itself.
        where: Which records count, by their values.
    """

    def adder(get: Callable[[Any], Any]) -> Add:
        def add(a: tuple[int, float, float], record: Record[Any]) -> tuple[int, float, float]:
            # Welford's method: it stays exact where a difference of two large sums would not.
            number, average, squares = a[0] + 1, a[1], a[2]
            distance = get(record.value) - average
            average += distance / number
            return number, average, squares + distance * (get(record.value) - average)

        return add

    def merge(a: tuple[int, float, float], b: tuple[int, float, float]) -> tuple[int, float, float]:
        number = a[0] + b[0]
        if not number:
            return a
        distance = b[1] - a[1]
        return number, a[1] + distance * b[0] / number, a[2] + b[2] + distance * distance * a[0] * b[0] / number

    def result(a: tuple[int, float, float]) -> Any:
        return a[2] / a[0] if a[0] else None

    def make(get: Callable[[Any], Any]) -> Aggregator[tuple[int, float, float], Any]:
        return Aggregator(
            tuple[int, float, float],
            lambda: (0, 0.0, 0.0),
            counting(adder(get), where),
            merge,
            result,
            float if where is None else float | None,
            differ=lambda a, b: result(a) != result(b),
        )

    return _of_numbers("variance", of, where, make)


def histogram(of: Of, edges: Sequence[float], *, where: Where = None) -> Aggregator[list[int], list[int]]:
    """How many records have a field below the first edge, between each two edges, and from the last edge on.

    Args:
        of: The field, or a function of the value.
        edges: The edges, in increasing order. A number at an edge counts above it.
        where: Which records count, by their values.

    Raises:
        UsageError: There are no edges, or they do not increase.
    """
    if not edges or any(a >= b for a, b in pairwise(edges)):
        raise UsageError(f"histogram takes edges in increasing order, not {list(edges)!r:.80}")

    def adder(get: Callable[[Any], Any]) -> Add:
        def add(counts: list[int], record: Record[Any]) -> list[int]:
            counts[bisect_right(edges, get(record.value))] += 1
            return counts

        return add

    def merge(a: list[int], b: list[int]) -> list[int]:
        return [one + other for one, other in zip(a, b, strict=True)]

    def make(get: Callable[[Any], Any]) -> Aggregator[list[int], list[int]]:
        return Aggregator(
            list[int], lambda: [0] * (len(edges) + 1), counting(adder(get), where), merge, same, list[int]
        )

    return _of_numbers("histogram", of, where, make)


def _of_numbers(
    called: str, of: Of, where: Where, make: Callable[[Callable[[Any], Any]], Aggregator[A, Any]]
) -> Aggregator[A, Any]:
    """The aggregator that ``make`` returns for a function that reads ``of``. It takes numbers alone."""

    def specialise(record_type: Any) -> Aggregator[A, Any]:
        return of_reader(Reader(of).of_numbers(called, record_type, where))

    def of_reader(reader: Reader) -> Aggregator[A, Any]:
        aggregator = objecting(reader.objection, make(reader.get))
        aggregator.specialise = specialise
        return aggregator

    return of_reader(Reader(of))
