"""Aggregators compute one value from the records of a window, one record at a time.

Their partial results can be merged, which sessions and two-phase aggregation need.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record
from millwheel.sdk.typeinfo import generic_arguments

__all__ = ["Aggregator", "collect", "count", "largest", "mean", "result_type_of", "smallest", "total"]

A = TypeVar("A")
R = TypeVar("R")

_NUMBER: Final[Any] = int | float


@dataclass  # not frozen, so that Aggregator[A, R](...) works: Python 3.11 sets __orig_class__ on the instance
class Aggregator(Generic[A, R]):
    """Computes one value from the records of a window.

    The result depends on the data alone under two conditions: ``merge`` does not depend on the order of its arguments,
    and ``result`` does not depend on the order of the records.

    The type of the result is ``result_type``, if it is given. Otherwise it is ``R`` of ``Aggregator[A, R](...)`` or of
    a subclass. Otherwise it is the annotated return type of ``result``.

    Args:
        accumulator: The type of the accumulators. It must be a valid type for states.
        new: Returns the accumulator of a window without records.
        add: Returns the accumulator with the record added. It may change and return the same object.
        merge: Merges two accumulators. It may change and return one of them.
        result: Returns the value that the window produces.
        result_type: The type of the value that ``result`` returns.

    A median, for example::

        windows.Aggregator[list[float], float](
            list[float], list, lambda values, record: [*values, record.value.size], operator.add, statistics.median
        )
    """

    accumulator: Any
    new: Callable[[], A]
    add: Callable[[A, Record[Any]], A]
    merge: Callable[[A, A], A]
    result: Callable[[A], R]
    result_type: Any = None


def result_type_of(aggregator: Aggregator[Any, Any]) -> Any:
    """The type of the aggregator's results. UsageError if nothing states it."""
    if aggregator.result_type is not None:
        return aggregator.result_type
    owner = getattr(aggregator, "__orig_class__", type(aggregator))
    stated = generic_arguments(owner, Aggregator)
    if stated is not None and not isinstance(stated[1], TypeVar):
        return stated[1]
    returned = _returned(aggregator.result)
    if returned is None or isinstance(returned, TypeVar):
        name = getattr(aggregator.result, "__qualname__", repr(aggregator.result))
        raise UsageError(
            f"the aggregator does not state the type of its results: add result_type=..., write "
            f"Aggregator[Accumulator, Result](...), or annotate what its result function {name} returns"
        )
    return returned


def _returned(function: Any) -> Any:
    """The annotated return type of a callable, or the class itself for a class; None if there is none."""
    if isinstance(function, type):
        return function
    try:
        returned = inspect.signature(function, eval_str=True).return_annotation
    except (NameError, TypeError, ValueError):
        return None
    return None if returned in (inspect.Signature.empty, Any) else returned


def _same(value: Any) -> Any:
    return value


def _add_one(counted: int, record: Record[Any]) -> int:
    return counted + 1


def count() -> Aggregator[int, int]:
    """The number of records. Their values are not decoded."""
    return Aggregator(int, int, _add_one, lambda a, b: a + b, _same, int)


def total(of: Callable[[Any], float], item: Any = _NUMBER) -> Aggregator[Any, Any]:
    """The sum of ``of(value)``. A sum of floats depends on the order of the records; a sum of integers does not.

    Args:
        of: Returns the number to add for a value.
        item: The type of that number and of the sum: ``int``, ``float`` or, by default, ``int | float``.
    """
    return Aggregator(item, lambda: 0, lambda a, record: a + of(record.value), lambda a, b: a + b, _same, item)


def mean(of: Callable[[Any], float]) -> Aggregator[tuple[int, float], float]:
    """The mean of ``of(value)``.

    Args:
        of: Returns the number for a value.
    """
    return Aggregator(
        tuple[int, int | float],
        lambda: (0, 0),
        lambda a, record: (a[0] + 1, a[1] + of(record.value)),
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
        lambda a: a[1] / a[0],
        float,
    )


def largest(of: Callable[[Any], Any], item: Any = _NUMBER) -> Aggregator[Any, Any]:
    """The largest ``of(value)``.

    Args:
        of: Returns the item to compare for a value.
        item: The type of that item: a number, or another type with an order.
    """
    return _extreme(of, max, item)


def smallest(of: Callable[[Any], Any], item: Any = _NUMBER) -> Aggregator[Any, Any]:
    """The smallest ``of(value)``.

    Args:
        of: Returns the item to compare for a value.
        item: The type of that item: a number, or another type with an order.
    """
    return _extreme(of, min, item)


def _extreme(of: Callable[[Any], Any], choose: Callable[[Any, Any], Any], item: Any) -> Aggregator[Any, Any]:
    def merge(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        return choose(a, b)

    return Aggregator(item | None, lambda: None, lambda a, record: merge(a, of(record.value)), merge, _same, item)


def collect(of: Callable[[Any], Any], item: Any, *, limit: int = 10_000) -> Aggregator[list[Any], list[Any]]:
    """All ``of(value)``, sorted.

    Args:
        of: Returns the item for a value.
        item: The type of that item.
        limit: The most items of a window. The hook raises ValueError for a record beyond it.
    """

    def add(items: list[Any], record: Record[Any]) -> list[Any]:
        return merge(items, [of(record.value)])

    def merge(items: list[Any], others: list[Any]) -> list[Any]:
        if len(items) + len(others) > limit:
            raise ValueError(
                f"the window would hold {len(items) + len(others)} items, and collect's limit is {limit}: "
                "raise the limit, or aggregate otherwise"
            )
        items.extend(others)
        return items

    return Aggregator(list[item], list, add, merge, sorted, list[item])
