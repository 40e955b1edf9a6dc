"""Each aggregate computes what a plain function of all records computes, in any order and through any merges."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import reduce
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg
from millwheel.agg.aggregator import result_type_of
from millwheel.model.time import Timestamp


class Item(msgspec.Struct, frozen=True):
    price: int
    name: str = ""


Model = Callable[[list[tuple[int, Item]]], Any]


def prices(records: list[tuple[int, Item]]) -> list[int]:
    return [item.price for _, item in records]


def ranked(records: list[tuple[int, Item]]) -> list[Item]:
    return [one for at, one in sorted(records, key=lambda one: (-one[1].price, one[0], msgspec.msgpack.encode(one[1])))]


def timed(records: list[tuple[int, Item]], sign: int) -> Item:
    return min(records, key=lambda one: (sign * one[0], msgspec.msgpack.encode(one[1])))[1]


def dear(item: Item) -> bool:
    return item.price > 5


def in_part_ordered(pairs: set[tuple[int, Item]]) -> list[tuple[int, Item]]:
    """By the numbers alone, if these differ."""
    key = msgspec.msgpack.encode if len({one for one, _ in pairs}) < len(pairs) else None
    return sorted(pairs, key=key)


CASES: dict[str, tuple[Any, Model]] = {
    "count": (agg.count(), len),
    "count where": (agg.count(where=dear), lambda records: sum(dear(item) for _, item in records)),
    "sum": (agg.sum("price"), lambda records: sum(prices(records))),
    "sum of a function": (agg.sum(lambda item: item.price * 2), lambda records: 2 * sum(prices(records))),
    "mean": (agg.mean("price"), lambda records: statistics.mean(prices(records))),
    "variance": (agg.variance("price"), lambda records: statistics.pvariance(prices(records))),
    "min": (agg.min("price"), lambda records: min(prices(records))),
    "max": (agg.max("name"), lambda records: max(item.name for _, item in records)),
    "max where": (agg.max("price", where=dear), lambda found: max(filter((5).__lt__, prices(found)), default=None)),
    "max_by": (agg.max_by("price"), lambda records: ranked(records)[0]),
    "min_by": (
        agg.min_by("price"),
        lambda found: min(found, key=lambda one: (one[1].price, one[0], msgspec.msgpack.encode(one[1])))[1],
    ),
    "top": (agg.top(3, "price"), lambda records: ranked(records)[:3]),
    "first": (agg.first(), lambda records: timed(records, 1)),
    "last": (agg.last(), lambda records: timed(records, -1)),
    "collect": (agg.collect("name"), lambda records: sorted(item.name for _, item in records)),
    "collect records": (
        agg.collect(),
        lambda records: sorted((item for _, item in records), key=msgspec.msgpack.encode),
    ),
    "distinct": (agg.distinct("price"), lambda records: sorted(set(prices(records)))),
    "distinct records": (
        agg.distinct(),
        lambda records: sorted({item for _, item in records}, key=msgspec.msgpack.encode),
    ),
    "distinct in part ordered": (
        agg.distinct(lambda item: (item.price, item), tuple[int, Item]),
        lambda records: in_part_ordered({(item.price, item) for _, item in records}),
    ),
    "histogram": (
        agg.histogram("price", [2, 5]),
        lambda found: [sum(low <= one < high for one in prices(found)) for low, high in ((-99, 2), (2, 5), (5, 99))],
    ),
    "several": (
        agg.several({"n": agg.count(), "best": agg.max("price")}),
        lambda records: {"n": len(records), "best": max(prices(records))},
    ),
}
records_of = st.lists(
    st.tuples(st.integers(0, 5), st.builds(Item, st.integers(0, 9), st.sampled_from(["", "a", "b"]))), min_size=1
)


def record(at: int, item: Item) -> mw.Record[Item]:
    return mw.Record(b"", b"", Timestamp(at), "items", lambda _: item, False, item)


@pytest.mark.parametrize("name", CASES)
@given(records=records_of, seed=st.integers(0, 99), cuts=st.integers(1, 4))
def test_an_aggregate_is_its_model_in_any_order(
    name: str, records: list[tuple[int, Item]], seed: int, cuts: int
) -> None:
    given_aggregate, model = CASES[name]
    aggregate = given_aggregate.bind(Item)
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(aggregate.accumulator)
    chance, parts = Random(seed), [aggregate.new() for _ in range(cuts)]
    shuffled = chance.sample(records, len(records))
    for at, item in shuffled:
        place = chance.randrange(cuts)
        parts[place] = aggregate.add(parts[place], record(at, item))
        parts[place] = decoder.decode(encoder.encode(parts[place]))  # as a state is stored
    chance.shuffle(parts)
    found = aggregate.result(reduce(aggregate.merge, parts))
    expected = model(records)
    assert found == (pytest.approx(expected) if isinstance(found, float) else expected)
    kind = result_type_of(aggregate)
    msgspec.convert(found, kind, from_attributes=True)


@pytest.mark.parametrize(
    "aggregate",
    [agg.max_by(lambda item: item.name), agg.top(2, lambda item: (item.price, item.name)), agg.max(lambda _: "a")],
)
def test_a_function_without_a_type_returns_numbers(aggregate: Any) -> None:
    bound = aggregate.bind(Item)
    with pytest.raises(TypeError, match="states no type, so it is taken for a number: name a field instead, or write"):
        bound.add(bound.new(), record(0, Item(1, "a")))


def test_an_annotated_function_ranks_by_any_type_with_an_order() -> None:
    def by(item: Item) -> tuple[str, int]:
        return item.name, -item.price

    best = agg.top(2, by).bind(Item)
    found: Any = best.new()
    for item in (Item(2, "a"), Item(1, "b"), Item(2, "b")):
        found = best.add(found, record(0, item))
    assert best.result(found) == [Item(1, "b"), Item(2, "b")]
    stored = msgspec.msgpack.encode(found)
    assert msgspec.msgpack.decode(stored, type=best.accumulator) == found


@pytest.mark.parametrize("name", CASES)
@given(records=records_of)
def test_a_merge_with_nothing_changes_nothing(name: str, records: list[tuple[int, Item]]) -> None:
    aggregate = CASES[name][0].bind(Item)
    added = reduce(lambda parts, one: aggregate.add(parts, record(*one)), records, aggregate.new())
    alone = reduce(lambda parts, one: aggregate.add(parts, record(*one)), records, aggregate.new())
    expected = aggregate.result(alone)
    assert aggregate.result(aggregate.merge(added, aggregate.new())) == expected
    added = reduce(lambda parts, one: aggregate.add(parts, record(*one)), records, aggregate.new())
    assert aggregate.result(aggregate.merge(aggregate.new(), added)) == expected


def test_an_aggregate_of_a_missing_field_says_so() -> None:
    with pytest.raises(mw.UsageError, match=r"reads 'cost', but Item has no field 'cost' \(its fields are"):
        agg.sum("cost").bind(Item)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: agg.top(0, "price"), "from 1 to 10,000"),
        (lambda: agg.histogram("price", []), "edges in increasing order"),
        (lambda: agg.histogram("price", [2, 2]), "edges in increasing order"),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(mw.UsageError, match=message):
        make()


def test_arrays_are_collected_in_one_order() -> None:
    aggregate = agg.collect(item=np.ndarray)
    arrays = [np.array([number, 0.0]) for number in (2.0, 1.0)]
    one, other = ([array.tolist() for array in aggregate.result(given)] for given in (arrays, arrays[::-1]))
    assert one == other


def test_a_limit_is_an_error_that_says_what_to_do() -> None:
    aggregate = agg.collect("price", limit=1).bind(Item)
    one = aggregate.add(aggregate.new(), record(0, Item(1)))
    with pytest.raises(ValueError, match="collect's limit is 1: raise the limit"):
        aggregate.add(one, record(0, Item(1)))
