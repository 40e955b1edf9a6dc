"""Folds come to the accumulators of their aggregators, whatever the records and their batches (section 4.2; G1)."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg
from millwheel.agg.aggregator import Aggregator, fold_of
from millwheel.agg.several import combined
from millwheel.model.time import Timestamp
from millwheel.sdk.columns import Fold, NotFoldedError
from millwheel.sdk.records import Record


class Bid(msgspec.Struct):
    price: float
    size: int


AGGREGATORS: dict[str, Aggregator[Any, Any]] = {
    "count": agg.count(),
    "sum of ints": agg.sum("size"),
    "sum of floats": agg.sum("price"),
    "mean of ints": agg.mean("size"),
    "mean of floats": agg.mean("price"),
    "smallest int": agg.min("size"),
    "largest float": agg.max("price"),
    "smallest float": agg.min("price"),
    "several": combined({"n": agg.count(), "total": agg.sum("size"), "highest": agg.max("price")}),
}

ints = st.one_of(st.integers(-9, 9), st.integers(2**62, 2**63 - 1), st.integers(-(2**63), 2**66))
bids = st.builds(Bid, st.floats(), ints)
records = st.lists(st.tuples(st.integers(0, 4), bids), max_size=12)
CHOSEN: dict[str, Aggregator[Any, Any]] = {
    "count of some": agg.count(where=mw.col("size") > 0),
    "sum of some ints": agg.sum("size", where=lambda bid: bid.size % 2),
    "sum of some floats": agg.sum("price", where=mw.col("size") < 0),
    "mean of some floats": agg.mean("price", where=mw.col("price") > mw.col("size")),
    "least of some ints": agg.min("size", where=mw.col("price") >= 0),
    "sum of an expression": agg.sum(mw.col("size") * 2 + 1),
    "mean of an expression": agg.mean(mw.col("price") * mw.col("size"), where=lambda bid: bid.price),
    "several of some": combined({"n": agg.count(where=mw.col("size") > 0), "total": agg.sum("size"), "m": agg.count()}),
}


def same(a: Any, b: Any) -> bool:
    """Equality for which NaN equals itself."""
    if isinstance(a, msgspec.Struct):
        return same(msgspec.structs.astuple(a), msgspec.structs.astuple(b))
    if isinstance(a, tuple):
        return all(same(one, other) for one, other in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return repr(a) == repr(b) or (math.isnan(a) and math.isnan(b))
    return bool(a == b) and isinstance(a, type(b)) == isinstance(b, type(a))


def beyond(fold: Fold, columns: list[Any], rows: Any, given: list[Any]) -> bool:
    """Whether an integer of a row may leave 62 bits."""
    reach, steps = fold.reach(columns), fold.steps(given)
    if reach is None or steps is None:
        return False
    np.add.at(reach, rows, steps)
    return bool(reach.max() > 2**62)


@pytest.mark.parametrize("name", [*AGGREGATORS, *CHOSEN])
@given(batches=st.lists(records, max_size=4))
def test_a_fold_adds_what_its_aggregator_adds(name: str, batches: list[list[tuple[int, Bid]]]) -> None:
    """A batch that a fold refuses, or after which its sums may not fit into the machine's integers, has no effect."""
    aggregator = {**AGGREGATORS, **CHOSEN}[name].bind(Bid)
    fold = fold_of(aggregator)
    assert fold is not None
    columns, expected = [np.zeros(5, kind) for kind in fold.kinds], [aggregator.new() for _ in range(5)]
    for batch in batches:
        try:
            given = fold.read([bid for _, bid in batch])
        except NotFoldedError:
            assert any(not -(2**63) <= 2 * abs(bid.size) + 1 < 2**63 for _, bid in batch)
            continue
        rows = np.array([row for row, _ in batch], np.int64)
        if not batch or beyond(fold, columns, rows, given):
            continue
        fold.add(columns, rows, given)
        for row, bid in batch:
            record = Record(b"key", b"", Timestamp(0), "bids", lambda data: None, False, bid)
            expected[row] = aggregator.add(expected[row], record)
    found = fold.accumulators(columns)
    assert all(same(one, other) for one, other in zip(found, expected, strict=True)), (found, expected)


@pytest.mark.parametrize("aggregator", [agg.sum("size"), agg.min("size"), agg.mean("size")])
@pytest.mark.parametrize("size", ["many", True, 2.0, np.int64(2), 2**63])
def test_what_is_no_exact_integer_is_left_to_the_aggregator(aggregator: Aggregator[Any, Any], size: Any) -> None:
    fold = fold_of(aggregator.bind(Bid))
    assert fold is not None
    with pytest.raises(NotFoldedError):
        fold.read([Bid(1.0, 2), Bid(1.0, size)])


def test_the_order_of_aggregates_is_part_of_the_form() -> None:
    both = {"n": agg.count(), "total": agg.sum("size")}
    form, other = (fold_of(combined(dict(names)).bind(Bid)) for names in (both.items(), reversed(both.items())))
    assert form is not None
    assert other is not None
    assert form.form != other.form


def test_what_depends_on_the_value_has_no_fold() -> None:
    for aggregator in (
        agg.sum(lambda bid: bid.size),
        agg.sum(mw.col("size") > 1),
        agg.max(mw.col("size") > 1),
        agg.last(where=mw.col("size") > 1),
    ):
        assert fold_of(aggregator.bind(Bid)) is None


@pytest.mark.parametrize("name", AGGREGATORS)
def test_the_fields_of_a_fold_are_what_it_reads(name: str) -> None:
    fold = fold_of(AGGREGATORS[name].bind(Bid))
    assert fold is not None
    assert fold.fields is not None
    bids = [Bid(-0.0, -(2**63)), Bid(math.nan, 7)]
    found = [column.tolist() for column in fold.read(bids)]
    assert repr(found) == repr([[getattr(bid, field) for bid in bids] for field, _ in fold.fields])
    assert dict(fold.fields).items() <= {"price": float, "size": int}.items()


def test_columns_say_what_counts_if_an_expression_does() -> None:
    bids = [Bid(-0.0, -7), Bid(2.5, 7)]
    given = {"price": np.array([-0.0, 2.5]), "size": np.array([-7, 7])}
    for aggregator in CHOSEN.values():
        fold = fold_of(aggregator.bind(Bid))
        assert fold is not None
        if fold.fields is not None:
            columns = [np.zeros(2, kind) for kind in fold.kinds]
            others = [column.copy() for column in columns]
            fold.add(columns, np.arange(2), fold.take({field: given[field] for field, _ in fold.fields}))
            fold.add(others, np.arange(2), fold.read(bids))
            assert repr(columns) == repr(others)
    by_functions = [name for name, one in CHOSEN.items() if (fold := fold_of(one.bind(Bid))) and fold.fields is None]
    assert by_functions == ["sum of some ints", "mean of an expression"]


def test_a_record_that_does_not_count_is_not_read() -> None:
    fold = fold_of(agg.sum("size", where=mw.col("price") > 0).bind(Bid))
    assert fold is not None
    assert [column.tolist() for column in fold.read([Bid(0.0, 2**70), Bid(1.0, 3)])] == [[0, 3], [False, True]]


class Lot(msgspec.Struct):
    bid: Bid


def test_what_is_no_field_of_the_value_is_in_values_alone() -> None:
    def price(lot: Lot) -> float:
        return lot.bid.price

    for aggregator in (agg.sum("bid.size"), agg.mean(price), combined({"n": agg.count(), "m": agg.mean("bid.price")})):
        fold = fold_of(aggregator.bind(Lot))
        assert fold is not None
        assert fold.fields is None
    fold = fold_of(agg.sum().bind(int))
    assert fold is not None
    assert fold.fields is None


def test_several_integers_reach_as_far_as_the_largest() -> None:
    fold = fold_of(combined({"price": agg.sum("price"), "total": agg.sum("size"), "mean": agg.mean("size")}).bind(Bid))
    assert fold is not None
    steps = fold.steps(fold.read([Bid(1e30, -7), Bid(1.0, 2)]))
    assert steps is not None
    assert steps.tolist() == [7.0, 2.0]
    columns = [np.array(column) for column in ([1e30, 0.0], [-9, 3], [2, 1], [4, 5])]
    reach = fold.reach(columns)
    assert reach is not None
    assert reach.tolist() == [9.0, 5.0]


@pytest.mark.parametrize(
    "aggregator",
    [agg.sum(mw.col("price") * 2, int), agg.max(mw.col("size") > 1, int), agg.max(mw.col("size") * 2, float)],
)
def test_an_expression_of_another_type_is_none_of_a_column(aggregator: Aggregator[Any, Any]) -> None:
    """With ``item=int``, a sum of floats would be cut to integers, without an error."""
    fold = fold_of(aggregator.bind(Bid))
    assert fold is None or fold.fields is None


def test_a_function_that_stops_an_iteration_ends_no_batch() -> None:
    def read(bid: Bid) -> float:
        return next(iter([bid.price] if bid.size else []))

    for aggregator in (agg.mean(read), agg.mean(read, where=lambda bid: True)):
        fold = fold_of(aggregator.bind(Bid))
        assert fold is not None
        with pytest.raises(StopIteration):
            fold.read([Bid(1.0, 1), Bid(2.0, 0), Bid(3.0, 1)])
