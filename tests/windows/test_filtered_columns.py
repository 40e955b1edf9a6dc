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
from millwheel.worker.interval.receiver import IntervalReceiver
from tests.sdk.test_expressions import Tree, conditions, expression, floats, has_fields, ints, numbers, texts
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
selections = numbers.filter(has_fields)
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


class Again(msgspec.Struct):
    """The fields of a sale under other names, so a step may follow a step."""

    auction: str
    item: str
    price: int
    weight: float
    paid: bool
    size: int | None
    note: str | None = None


def field_for(kind: Any) -> str:
    """The field that has results of this type."""
    return {int: "price", float: "weight", bool: "paid"}[kind]


def program(*steps: Any) -> mw.Topology:
    """``steps``: conditions of filters, and the fields of selections."""
    topology = mw.Topology("totals")
    sales: Any = topology.source("bids", Sale)
    for one in steps:
        sales = sales.select(Again, **one) if isinstance(one, dict) else sales.filter(one)
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
@given(actions, limits, st.lists(st.one_of(trees, trees, selections), min_size=1, max_size=4))
@example(TWO_KEYS, COLUMNS, [("!=", ("price",), ("const", 0)), (">", DIVIDED, ("const", 1))])
@example(TWO_KEYS, COLUMNS, [(">", DIVIDED, ("const", 1)), ("!=", ("price",), ("const", 0))])
@example(TWO_KEYS, replace(COLUMNS, batch_records=1), [("!=", ("price",), ("const", 0))])
@example(TWO_KEYS, COLUMNS, [("-", ("const", 5), ("price",)), ("<", ("price",), ("const", 5))])
@example(TWO_KEYS, COLUMNS, [DIVIDED, ("!=", ("price",), ("const", 0))])
@example(TWO_KEYS, COLUMNS, [("!=", ("price",), ("const", 0)), DIVIDED])
def test_steps_have_the_effects_they_have_on_records(
    actions: list[Any], limits: IntervalSettings, steps: list[Tree]
) -> None:
    topology = program(*map(step, steps))
    expected = results(topology, actions, replace(HOOKS, batch_records=limits.batch_records), False, Sale)
    assert results(topology, actions, limits, True, Sale) == expected


def step(tree: Tree) -> Any:
    """A filter by a condition. A number and each second condition are computed as a field."""
    written = expression(tree)
    kind = written.type_in(Sale)
    return written if kind is bool and tree[0] != "in" else {field_for(kind): written}


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


PLAIN = [Sale("b", "jam", 0, float("nan"), False, 2, "y"), Sale("a", "tea", 7, 0.5, True, 1, "x")]
"""The filters drop the first one."""


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


class Income(msgspec.Struct, rename={"worth": "w"}):
    store: str
    worth: float
    price: int
    paid: bool = True
    size: int | None = None


def test_selected_fields_need_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = mw.Topology("totals")
    sales = topology.source("bids", Sale).filter(mw.col("price") != 0)
    incomes = sales.select(Income, store="auction", worth=14 / mw.col("price"), price=mw.col("price") * 2)
    again = incomes.filter(mw.col("worth") > 1).select(Again, auction="store", item="store", weight="worth")
    windowed = again.filter(mw.col("weight") < 9).key_by("auction").window(windows.tumbling(mw.seconds(10)))
    windowed.aggregate("totals", n=agg.count(), worth=agg.sum("price"), paid=agg.sum("weight"))
    assert not topology.validate()
    assert topology.plan().computations["totals"].inputs["bids"] == mw.key("auction")
    assert made(topology, monkeypatch, PLAIN) == (0, [("a", 1, 14, 2.0)])


class Ranked(msgspec.Struct):
    auction: str
    rank: int = 3


@pytest.mark.parametrize("filters", [(), (mw.col("rank") == 3,)])
def test_a_default_of_a_selection_needs_values(filters: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    topology = mw.Topology("totals")
    ranked: Any = topology.source("bids", Sale).filter(mw.col("price") != 0).select(Ranked)
    for one in filters:
        ranked = ranked.filter(one)
    windowed = ranked.key_by("auction").window(windows.tumbling(mw.seconds(10)))
    windowed.aggregate("totals", n=agg.count(), worth=agg.sum("rank"), paid=agg.count())
    count, found = made(topology, monkeypatch, PLAIN)
    assert count > 0
    assert found == [("a", 1, 3, 1)]


class Made(msgspec.Struct):
    auction: str
    price: int
    weight: float
    paid: bool


OTHER_TYPES = {
    "float as int": agg.sum("weight", int),
    "least float as int": agg.min("weight", int),
    "int as float": agg.max("price", float),
    "bool as int": agg.max("paid", int),
    "bool as float": agg.min("paid", float),
    "sum of bool": agg.sum("paid"),
}


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize("name", OTHER_TYPES)
@pytest.mark.parametrize("twice", [False, True])
def test_a_computed_field_has_the_type_that_is_wanted(name: str, twice: bool) -> None:
    """Regression: NumPy converted what ``select`` had computed, where a record is refused or keeps its number."""
    topology = mw.Topology("totals")
    sales: Any = topology.source("bids", Sale)
    made = sales.select(Made, price=mw.col("price") + 0, weight=mw.col("weight") * 2, paid=mw.col("price") > 2)
    keyed = (made.select(Made) if twice else made).key_by("auction").window(windows.tumbling(mw.seconds(10)))
    keyed.aggregate("totals", n=OTHER_TYPES[name], too_late="late", options={"on_failure": mw.dead_letter(after=1)})
    rows = [("a", 1, "", 3, 0.75, True, 1, ""), ("b", 2, "", 2**53 + 1, 8.25, True, 1, "")]
    actions: list[Any] = [("send", rows), ("advance", 11)]
    assert results(topology, actions, COLUMNS, True, Sale) == results(topology, actions, HOOKS, False, Sale)


def failing() -> int:
    raise ValueError("no default")


class Defaulted(msgspec.Struct):
    auction: str
    price: int
    made: int = msgspec.field(default_factory=failing)


class Refusing(type(msgspec.Struct)):  # type: ignore[misc]  # msgspec's metaclass has no name in its stubs
    def __call__(cls, *arguments: Any, **given: Any) -> Any:
        if given["price"] < 5:
            raise ValueError("too cheap")
        return super().__call__(*arguments, **given)


class Refused(msgspec.Struct, metaclass=Refusing):
    auction: str
    price: int


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize("to", [Defaulted, Refused])
def test_a_value_that_cannot_be_made_is_no_record(to: Any) -> None:
    """Regression: windows by columns counted records whose values a function or a class of the user's refuses."""
    topology = mw.Topology("totals")
    keyed = topology.source("bids", Sale).select(to).key_by("auction").window(windows.tumbling(mw.seconds(10)))
    keyed.aggregate("totals", n=agg.count(), too_late="late", options={"on_failure": mw.dead_letter(after=1)})
    rows = [("a", 1, "", 3, 0.5, True, 1, ""), ("b", 2, "", 7, 0.5, True, 1, "")]
    actions: list[Any] = [("send", rows), ("advance", 11)]
    found = results(topology, actions, COLUMNS, True, Sale)
    assert found == results(topology, actions, HOOKS, False, Sale)
    assert found[1]["dead_letters"] > 0


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


def all_of(conditions: list[Any]) -> Any:
    """They are joined in pairs, so there are few levels."""
    half = len(conditions) // 2
    return conditions[0] if not half else all_of(conditions[:half]) & all_of(conditions[half:])


LARGEST = {
    "levels": sum([1] * 98, start=mw.col("price")) > 100,
    "parts": ~all_of([mw.col("price") > number for number in range(250)]),
}


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_expression_can_be_split(name: str) -> None:
    """Regression: the other stream's filter has one level and one part more, which no expression may have."""
    topology = mw.Topology("totals")
    for part, output in zip(topology.source("bids", Sale).split(LARGEST[name]), ("one", "other"), strict=True):
        part.key_by("auction").window(windows.tumbling(mw.seconds(10))).aggregate(output, n=agg.count())
    with TopologyHarness(topology, now=mw.Timestamp(NOON)) as harness:
        for price in (1, 500):
            harness.send("bids", Sale("a", "tea", price, 0.5, True), timestamp=mw.Timestamp(NOON))
        harness.finish()
        assert [[one.n for one in harness.values(output)] for output in ("one", "other")] == [[1], [1]]
