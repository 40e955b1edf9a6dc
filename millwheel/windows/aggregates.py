"""How the records of a window become one value: incrementally, and mergeable for sessions and two phases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from millwheel.sdk.model import Record

__all__ = ["Aggregator", "collect", "count", "largest", "mean", "smallest", "total"]

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True)
class Aggregator(Generic[A, R]):
    """An aggregation over accumulators of type ``accumulator``, which must be one that states can hold.

    ``add(accumulator, record)`` returns the accumulator with the record in it (it may change and return
    the same object); ``merge`` joins two; ``result`` is what the window produces. ``merge`` must not
    depend on the order of its arguments, nor ``result`` on that of the records, if results are to be a
    function of the data alone.
    """

    accumulator: Any
    new: Callable[[], A]
    add: Callable[[A, Record[Any]], A]
    merge: Callable[[A, A], A]
    result: Callable[[A], R]


def _same(value: Any) -> Any:
    return value


def _add_one(counted: int, record: Record[Any]) -> int:
    return counted + 1


def count() -> Aggregator[int, int]:
    """How many records. Their values are not even decoded."""
    return Aggregator(int, int, _add_one, lambda a, b: a + b, _same)


def total(of: Callable[[Any], float]) -> Aggregator[float, float]:
    """The sum of ``of(value)``. Sums of floats depend on the order of records; of integers they do not."""
    return Aggregator(int | float, lambda: 0, lambda a, record: a + of(record.value), lambda a, b: a + b, _same)


def mean(of: Callable[[Any], float]) -> Aggregator[tuple[int, float], float]:
    """The mean of ``of(value)``."""
    return Aggregator(
        tuple[int, int | float],
        lambda: (0, 0),
        lambda a, record: (a[0] + 1, a[1] + of(record.value)),
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
        lambda a: a[1] / a[0],
    )


def largest(of: Callable[[Any], float]) -> Aggregator[float | None, float]:
    """The largest ``of(value)``."""
    return _extreme(of, max)


def smallest(of: Callable[[Any], float]) -> Aggregator[float | None, float]:
    """The smallest ``of(value)``."""
    return _extreme(of, min)


def _extreme(of: Callable[[Any], float], choose: Callable[[float, float], float]) -> Aggregator[Any, Any]:
    def merge(a: float | None, b: float | None) -> float | None:
        if a is None or b is None:
            return b if a is None else a
        return choose(a, b)

    return Aggregator(int | float | None, lambda: None, lambda a, record: merge(a, of(record.value)), merge, _same)


def collect(of: Callable[[Any], Any], item: Any, *, limit: int = 10_000) -> Aggregator[list[Any], list[Any]]:
    """All ``of(value)``, sorted, of type ``item``: up to ``limit`` a window, beyond which the record fails by name."""

    def add(items: list[Any], record: Record[Any]) -> list[Any]:
        if len(items) >= limit:
            raise ValueError(f"the window holds {limit} items already: raise collect's limit, or aggregate otherwise")
        items.append(of(record.value))
        return items

    return Aggregator(list[item], list, add, lambda a, b: a + b, sorted)
