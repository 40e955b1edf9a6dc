"""Filters by expressions have the effects on columns that they have on records (sections 4.2, 6.1.1; G1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.rpc.columns import RecordColumns
from millwheel.testing import TopologyHarness
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.intake import IntervalReceiver
from tests.sdk.test_expressions import Tree, conditions, expression, floats, has_fields, ints, texts
from tests.windows.test_by_column_fields import results
from tests.windows.test_by_columns import COLUMNS, HOOKS, NOON, as_table


class Sale(msgspec.Struct):
    auction: str
    item: str
    price: int
    weight: float
    paid: bool
    size: int | None = None
    note: str | None = None


NONE = ("const", None)
with_none: st.SearchStrategy[Tree] = st.one_of(
    st.tuples(st.sampled_from(["==", "!="]), st.sampled_from([("size",), ("note",), ("price",)]), st.just(NONE)),
    st.tuples(st.sampled_from(["<", ">=", "=="]), st.just(("size",)), st.tuples(st.just("const"), st.integers(-2, 2))),
    st.tuples(st.sampled_from(["<", "!="]), st.just(("note",)), st.tuples(st.just("const"), texts)),
    st.tuples(st.just("in"), st.just(("note",)), st.lists(texts, min_size=1)),
)
either = st.one_of(conditions, with_none)
trees = st.one_of(either, either, st.tuples(st.sampled_from(["&", "|"]), either, either)).filter(has_fields)
key, at, paid = st.sampled_from("abc"), st.integers(0, 25), st.booleans()
sales = st.tuples(
    key,
    at,
    texts,
    st.one_of(st.integers(-3, 3), ints),
    floats,
    paid,
    st.one_of(st.integers(-2, 2), st.none()),
    st.one_of(texts, st.none()),
)
whole = st.tuples(key, at, texts, st.integers(-3, 3), floats, paid, st.integers(1, 2), texts)
table = st.tuples(st.just("send"), st.one_of(st.lists(whole, min_size=1, max_size=8), st.lists(sales, max_size=4)))
advance = st.tuples(st.just("advance"), st.integers(0, 30))
actions = st.lists(st.one_of(table, table, advance, st.just(("crash", None))), min_size=1, max_size=8)
limits = st.builds(
    replace, st.just(COLUMNS), columns_from=st.integers(1, 3), batch_records=st.sampled_from([1, 3, 8_192])
)


def program(*filters: Any) -> mw.Topology:
    topology = mw.Topology("totals")
    sales: Any = topology.source("bids", Sale)
    for one in filters:
        sales = sales.filter(one)
    windowed = sales.key_by("auction").window(windows.tumbling(mw.seconds(10)))
    aggregates = {"n": agg.count(), "worth": agg.max(mw.col("price")), "paid": agg.count(where=mw.col("size") != None)}  # noqa: E711
    windowed.aggregate("totals", **aggregates, too_late="late", options={"on_failure": mw.dead_letter(after=1)})
    return topology


DIVIDED = ("/", ("const", 6), ("price",))
TWO_KEYS = [
    (
        "send",
        [
            ("a", 1, "tea", 0, 0.5, True, 1, "x"),
            ("a", 2, "tea", 3, 0.5, True, 1, "x"),
            ("b", 3, "", 0, 0.5, True, 1, ""),
        ],
    )
]
"""The first two are of one key. A filter that divides by their price fails for one of them."""


@pytest.mark.guarantee("G1", section="4.2")
@settings(max_examples=200)
@given(actions, limits, st.lists(trees, min_size=1, max_size=3))
@example(TWO_KEYS, COLUMNS, [("!=", ("price",), ("const", 0)), (">", DIVIDED, ("const", 1))])
@example(TWO_KEYS, COLUMNS, [(">", DIVIDED, ("const", 1)), ("!=", ("price",), ("const", 0))])
@example(TWO_KEYS, replace(COLUMNS, batch_records=1), [("!=", ("price",), ("const", 0))])
def test_filters_have_the_effects_they_have_on_records(
    actions: list[Any], limits: IntervalSettings, filters: list[Tree]
) -> None:
    topology = program(*map(expression, filters))
    expected = results(topology, actions, replace(HOOKS, batch_records=limits.batch_records), False, Sale)
    assert results(topology, actions, limits, True, Sale) == expected


def made(topology: mw.Topology, monkeypatch: pytest.MonkeyPatch, rows: list[Sale]) -> tuple[int, Any]:
    """How many values of records were made, and the harness's results."""
    read, made = RecordColumns.__getitem__, list[int]()

    def counted(records: RecordColumns, index: Any) -> Any:
        made.append(index)
        return read(records, index)

    def delivered(receiver: IntervalReceiver, delivery: Any) -> Any:
        found = as_table(receiver, delivery)
        made.clear()  # it has compared the values
        return found

    monkeypatch.setattr(RecordColumns, "__getitem__", counted)
    monkeypatch.setattr(IntervalReceiver, "deliver", delivered)
    with TopologyHarness(topology, now=mw.Timestamp(NOON), settings=COLUMNS) as harness:
        harness.send_all("bids", [(row, mw.Timestamp(NOON)) for row in rows])
        harness.finish()
        return len(made), sorted((one.auction, one.n, one.worth, one.paid) for one in harness.values("totals"))


PLAIN = [Sale("a", "tea", 7, 0.5, True, 1, "x"), Sale("b", "jam", 0, float("nan"), False, 2, "y")]


@pytest.mark.parametrize(
    "filters",
    [
        (mw.col("price") != 0, 14 / mw.col("price") > 1),
        ((mw.col("price") != 0) & (14 / mw.col("price") > 1),),
        (mw.col("size") < 2, mw.col("size") != None),  # noqa: E711 - as a user writes it
        (mw.col("note").is_in(["x", "z"]), mw.col("paid")),
        (mw.col("weight") <= 0.5,),
        (mw.col("price"),),
    ],
)
def test_filters_by_expressions_need_no_values(filters: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(program(*filters), monkeypatch, PLAIN) == (0, [("a", 1, 7, 1)])


def test_a_table_of_which_no_row_passes_begins_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(program(mw.col("item") == "rum"), monkeypatch, PLAIN) == (0, [])


@pytest.mark.parametrize("filters", [(lambda sale: sale.price != 0,), (mw.col("item"), mw.col("price"))])
def test_other_filters_read_values(filters: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    count, found = made(program(*filters), monkeypatch, PLAIN)
    assert count > 0
    assert found == [("a", 1, 7, 1)]


def test_both_parts_of_a_split_need_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = mw.Topology("totals")
    for part, name in zip(topology.source("bids", Sale).split(mw.col("price") > 5), ("dear", "totals"), strict=True):
        windowed = part.key_by("auction").window(windows.tumbling(mw.seconds(10)))
        windowed.aggregate(name, n=agg.count(), worth=agg.max("price"), paid=agg.count())
    assert made(topology, monkeypatch, PLAIN) == (0, [("b", 1, 0, 1)])
