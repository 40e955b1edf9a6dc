"""Aggregates that choose among the values: the smallest, the first, the best few, the distinct ones.

A result depends on the records alone, and not on the order in which they arrived. Of two equally good records, the one
with the earlier timestamp comes first, then the one with the smaller encoding.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from operator import attrgetter, ne
from typing import Any, Final, Literal, TypeVar, overload

from millwheel.agg.aggregator import Aggregator, adding
from millwheel.agg.cardinality import distinct_count
from millwheel.agg.folds import ExtremeFold, foldable, plain_number, present
from millwheel.agg.numbers import counting, of_chosen
from millwheel.agg.reading import NUMBER, Of, Reader, Where, same
from millwheel.sdk.columns import Fold
from millwheel.sdk.errors import UsageError
from millwheel.sdk.ranking import rank_bytes
from millwheel.sdk.records import Record

__all__ = ["best", "collect", "distinct", "first", "last", "max", "max_by", "min", "min_by", "top"]

T = TypeVar("T")
LIMIT: Final = 10_000
"""The most items that a window keeps by default."""


def min(of: Of = None, item: Any = None, *, where: Where = None) -> Aggregator[Any, Any]:
    """The smallest value of a field. None if no record counts.

    Args:
        of: The field, or a function of the value. By default the value itself.
        item: The type of the field, if the records do not state it: a number, or another type with an order.
        where: Which records count, by their values.
    """
    return _extreme(of, where, item, smallest=True)


def max(of: Of = None, item: Any = None, *, where: Where = None) -> Aggregator[Any, Any]:
    """The largest value of a field. None if no record counts.

    Args:
        of: The field, or a function of the value. By default the value itself.
        item: The type of the field, if the records do not state it: a number, or another type with an order.
        where: Which records count, by their values.
    """
    return _extreme(of, where, item, smallest=False)


def _extreme(of: Of, where: Where, item: Any, *, smallest: bool) -> Aggregator[Any, Any]:
    reader = Reader(of, item)

    merge = _smaller if smallest else _larger

    def make(kind: Any, record_type: Any = Any) -> Aggregator[Any, Any]:
        get = reader.of_records(record_type)
        add = counting(lambda a, record: merge(a, get(record)), where)
        result = kind if where is None else kind | None
        source = reader.source(record_type)
        fold = _extreme_fold(kind, reader, record_type, smallest=smallest) if source else None
        return adding(
            source if where is None else "",
            Aggregator(kind | None, lambda: None, add, merge, same, result, specialise, ne),
            of_chosen(fold, where, record_type),
        )

    def specialise(record_type: Any) -> Aggregator[Any, Any]:
        return make(reader.type_in(record_type), record_type)

    return make(NUMBER if item is None else item)


def _extreme_fold(kind: Any, reader: Reader, record_type: Any, *, smallest: bool) -> Fold | None:
    """How it adds by columns. A record with None is left out."""
    plain = plain_number(kind)
    if not foldable(plain):
        return None
    fold = ExtremeFold(plain, reader, record_type, smallest=smallest)
    return fold if plain is kind else present(fold, reader, record_type)


def _smaller(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return a if a <= b else b


def _larger(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return a if a >= b else b


def min_by(of: Of, *, where: Where = None) -> Aggregator[Any, Any]:
    """The value with the smallest field. None if no record counts.

    Args:
        of: The field, or a function of the value.
        where: Which records count, by their values.
    """
    return _only(top(1, of, smallest=True, where=where), where)


def max_by(of: Of, *, where: Where = None) -> Aggregator[Any, Any]:
    """The value with the largest field. None if no record counts.

    Args:
        of: The field, or a function of the value.
        where: Which records count, by their values.
    """
    return _only(top(1, of, where=where), where)


def first(*, where: Where = None) -> Aggregator[Any, Any]:
    """The value with the smallest timestamp. None if no record counts.

    Args:
        where: Which records count, by their values.
    """
    return _only(_ranked(1, lambda record_type: lambda record: 0, int, False, where), where)


def last(*, where: Where = None) -> Aggregator[Any, Any]:
    """The value with the largest timestamp. None if no record counts.

    Args:
        where: Which records count, by their values.
    """
    return _only(_ranked(1, lambda record_type: attrgetter("timestamp"), int, False, where), where)


def top(count: int, by: Of, *, smallest: bool = False, where: Where = None) -> Aggregator[Any, Any]:
    """The ``count`` values with the largest field, the largest first.

    Args:
        count: How many values; at most 10,000.
        by: The field, or a function of the value.
        smallest: Whether those with the smallest field are chosen instead, the smallest first.
        where: Which records count, by their values.

    Raises:
        UsageError: ``count`` is not from 1 to 10,000.
    """
    if not 1 <= count <= LIMIT:
        raise UsageError(f"top takes a count from 1 to {LIMIT:,}, not {count}")
    reader = Reader(by)
    return _ranked(count, reader.of_records, reader, smallest, where)


def _ranked(
    count: int, ranking: Callable[[Any], Callable[[Record[Any]], Any]], kind: Any, smallest: bool, where: Where
) -> Aggregator[Any, Any]:
    """The best ``count`` values. An accumulator is a list of (rank, timestamp, value), the best first.

    ``ranking`` returns the function that ranks records of a type.
    """

    def merge(best: list[Any], others: list[Any]) -> list[Any]:
        for one in others:
            best = _inserted(best, one, count, smallest)
        return best

    def make(rank_type: Any, value_type: Any) -> Aggregator[Any, Any]:
        rank = ranking(value_type)

        def add(best: list[Any], record: Record[Any]) -> list[Any]:
            ranked = rank(record)
            # Most records of a full list end here.
            if len(best) == count and (ranked > best[-1][0] if smallest else ranked < best[-1][0]):
                return best
            return _inserted(best, (ranked, record.timestamp, record.value), count, smallest)

        return Aggregator(
            list[tuple[rank_type, int, value_type]],
            list,
            counting(add, where),
            merge,
            lambda best: [value for _, _, value in best],
            list[value_type],
            specialise,
            _values_differ,
        )

    def specialise(record_type: Any) -> Aggregator[Any, Any]:
        return make(kind.type_in(record_type) if isinstance(kind, Reader) else kind, record_type)

    return make(NUMBER if isinstance(kind, Reader) else kind, Any)


Ranked = tuple[Any, int, Any]
"""(rank, timestamp, value)"""


def _inserted(best: list[Ranked], new: Ranked, count: int, smallest: bool) -> list[Ranked]:
    """The best ``count`` with another one. The list itself if that is not among them."""
    low, high, rank = 0, len(best), new[0]
    if high == count and not _is_before(new, best[-1], smallest):
        return best
    while low < high:
        middle = (low + high) // 2
        other = best[middle]
        # Most ranks differ. Then no call compares them.
        before = bool(rank < other[0]) is smallest if rank != other[0] else _is_before(new, other, smallest)
        low, high = (low, middle) if before else (middle + 1, high)
    return [*best[:low], new, *best[low : count - 1]]


def _is_before(one: Ranked, other: Ranked, smallest: bool) -> bool:
    if one[0] != other[0]:
        return bool(one[0] < other[0]) is smallest
    if one[1] != other[1]:
        return one[1] < other[1]
    return bool(rank_bytes(one[2]) < rank_bytes(other[2]))


def _values_differ(best: list[Ranked], other: list[Ranked]) -> bool:
    if best is other or len(best) != len(other):
        return best is not other
    # By their encodings, because a user's type may have an ``==`` of its own. Most of the values are the same objects.
    for (_, _, one), (_, _, two) in zip(best, other, strict=True):
        if one is not two and rank_bytes(one) != rank_bytes(two):
            return True
    return False


def _only(ranked: Aggregator[Any, Any], where: Where) -> Aggregator[Any, Any]:
    """The first of the ranked values."""

    def make(several: Aggregator[Any, Any]) -> Aggregator[Any, Any]:
        (value_type,) = several.result_type.__args__
        return Aggregator(
            several.accumulator,
            several.new,
            several.add,
            several.merge,
            lambda best: best[0][2] if best else None,
            value_type if where is None or value_type is Any else value_type | None,
            lambda record_type: make(ranked.bind(record_type)),
            several.differ,
        )

    return make(ranked)


def best(group: Iterable[T], by: Callable[[T], Any]) -> list[T]:
    """All values of a group with the largest ``by(value)``, in their order. This is a plain function, and no aggregate.

    Args:
        group: The values.
        by: Returns what is compared.
    """
    found: list[T] = []
    for one in group:
        if found and by(one) < by(found[0]):
            continue
        found = [*found, one] if found and by(one) == by(found[0]) else [one]
    return found


def collect(of: Of = None, item: Any = None, *, limit: int = LIMIT, where: Where = None) -> Aggregator[Any, Any]:
    """All values of a field, sorted. Values of a type without an order, such as most structs, are by their encodings.

    Args:
        of: The field, or a function of the value. By default the value itself.
        item: The type of the field, if the records do not state it.
        limit: The most items of a window. The hook raises ValueError for a record beyond it.
        where: Which records count, by their values.
    """

    def join(items: list[Any], more: list[Any]) -> None:
        items += more

    return _listed(of, item, limit, where, join, _sorted, "collect")


def _sorted(items: list[Any]) -> list[Any]:
    try:
        return sorted(items)
    except (TypeError, ValueError):  # ValueError: by arrays
        return sorted(items, key=rank_bytes)


@overload
def distinct(
    of: Of = ..., item: Any = ..., *, exact: Literal[True] = ..., limit: int = ..., where: Where = ...
) -> Aggregator[Any, list[Any]]: ...
@overload
def distinct(
    of: Of = ..., *, exact: Literal[False], error: float = ..., where: Where = ...
) -> Aggregator[Any, int]: ...
def distinct(
    of: Of = None,
    item: Any = None,
    *,
    exact: bool = True,
    limit: int = LIMIT,
    error: float = 0.02,
    where: Where = None,
) -> Aggregator[Any, Any]:
    """The distinct values of a field, sorted. With ``exact=False``: about how many there are, of any number of values.

    Values of a type without an order, such as most structs, are sorted by their encodings.

    The number does not depend on the order of the records. For example::

        >>> from millwheel import agg
        >>> visitors = agg.distinct("user", exact=False)

    Args:
        of: The field, or a function of the value. By default the value itself.
        item: The type of the field, if the records do not state it, as those of a union do not:
            ``agg.distinct("user", str)``.
        exact: Whether all values are kept. Otherwise a sketch of them is kept, HyperLogLog.
        limit: The most items of a window. The hook raises ValueError for a record beyond it.
        error: The relative standard error of the number, from 0.005 to 0.25: 95% of all results differ from the exact
            one by less than twice this. A window keeps at most (1.04 / error)² bytes, rounded up to a power of two:
            4 KiB for 2%, and less where the values are few.
        where: Which records count, by their values.

    Raises:
        UsageError: ``error`` is out of its range.
    """
    if not exact:
        return distinct_count(of, error, where)

    def join(items: list[Any], more: list[Any]) -> None:
        for one in more:
            place, found = _place(items, one)
            if not found:
                items.insert(place, one)

    return _listed(of, item, limit, where, join, _unique, "distinct")


def _place(items: list[Any], one: Any) -> tuple[int, bool]:
    """The place of a value in a sorted list, and whether it is there."""
    try:
        place = bisect_left(items, one)
        return place, place < len(items) and bool(items[place] == one)
    except (TypeError, ValueError):  # ValueError: by arrays
        encoded = rank_bytes(one)
        place = bisect_left(items, encoded, key=rank_bytes)
        return place, place < len(items) and rank_bytes(items[place]) == encoded


def _unique(items: list[Any]) -> list[Any]:
    """The items in order. Where only some have an order among each other, one may be there twice."""
    try:
        return sorted(items)
    except (TypeError, ValueError):
        found = {rank_bytes(one): one for one in items}
        return [found[encoded] for encoded in sorted(found)]


def _listed(
    of: Of,
    item: Any,
    limit: int,
    where: Where,
    join: Callable[[list[Any], list[Any]], None],
    result: Callable[[list[Any]], list[Any]],
    name: str,
) -> Aggregator[Any, Any]:
    reader = Reader(of, item)

    def merge(items: list[Any], more: list[Any]) -> list[Any]:
        join(items, more)
        if len(items) > limit:
            raise ValueError(
                f"the window would hold {len(items)} items, and {name}'s limit is {limit}: raise the limit, or "
                "aggregate otherwise"
            )
        return items

    def make(kind: Any, record_type: Any = Any) -> Aggregator[Any, Any]:
        get = reader.of_records(record_type)
        add = counting(lambda items, record: merge(items, [get(record)]), where)
        return Aggregator(list[kind], list, add, merge, result, list[kind], specialise)

    def specialise(record_type: Any) -> Aggregator[Any, Any]:
        return make(reader.type_in(record_type), record_type)

    return make(NUMBER if item is None else item)
