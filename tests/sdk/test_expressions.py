"""Expressions of fields mean what the same functions of Python mean (section 2)."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.testing import TopologyHarness

NOON = mw.Timestamp(1_767_268_800_000_000)


class User(msgspec.Struct):
    age: int
    tags: dict[str, int] = {}


class Bid(msgspec.Struct, rename={"price": "cents"}):
    item: str
    price: int
    weight: float
    paid: bool
    user: User
    note: str | None = None


Tree = tuple[Any, ...]
"""An operator and its operands, a field's name, or a constant."""
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
ints = st.one_of(st.integers(-3, 3), st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63)]))
floats = st.one_of(st.sampled_from([0.0, -0.0, 1.5, 2.0**53, -(2.0**53), 2.0**63, 1e308]), st.floats())
real_floats = floats.filter(lambda number: number == number)
texts = st.sampled_from(["", "tea", "jam", "é", "'", "{}"])
fields = st.sampled_from([("price",), ("weight",), ("paid",)])
items = st.one_of(st.lists(st.integers(-3, 3), min_size=1), st.just([2**53 + 1, 2**70]))
numbers: st.SearchStrategy[Tree] = st.recursive(
    st.one_of(fields, fields, st.tuples(st.just("const"), st.one_of(ints, real_floats, st.booleans()))),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "/"]), inner, inner), st.tuples(st.just("-x"), inner)
    ),
    max_leaves=4,
)
compared = st.tuples(st.sampled_from([*BINARY][:6]), numbers, numbers)
of_texts = st.tuples(st.sampled_from([*BINARY][:6]), st.just(("item",)), st.tuples(st.just("const"), texts))
chosen = st.one_of(
    st.tuples(st.just("in"), numbers, items),
    st.tuples(st.just("in"), st.just(("item",)), st.lists(texts, min_size=1)),
)
conditions: st.SearchStrategy[Tree] = st.recursive(
    st.one_of(compared, of_texts, chosen, st.just(("paid",))),
    lambda inner: st.one_of(st.tuples(st.sampled_from(["&", "|"]), inner, inner), st.tuples(st.just("~"), inner)),
    max_leaves=4,
)
prices = st.one_of(ints, st.integers(-5, 5))
bids = st.builds(Bid, texts, prices, floats, st.booleans(), st.builds(User, st.integers(0, 9)))


def expression(tree: Tree) -> Any:
    """As a user writes it."""
    kind, *parts = tree
    if kind == "const":
        return parts[0]
    if not parts:
        return mw.col(kind)
    if kind == "in":
        return expression(parts[0]).is_in(parts[1])
    operands = [expression(part) for part in parts]
    if kind in ("-x", "~"):
        return -operands[0] if kind == "-x" else ~operands[0]
    return {"&": operator.and_, "|": operator.or_, **BINARY}[kind](*operands)


def in_python(tree: Tree, value: Any) -> Any:
    """What the same function of Python returns."""
    kind, *parts = tree
    if kind == "const":
        return parts[0]
    if not parts:
        return value[kind] if isinstance(value, dict) else getattr(value, kind)
    first = in_python(parts[0], value)
    if kind == "in":
        return first in parts[1]
    if kind in ("-x", "~"):
        return -first if kind == "-x" else not first
    if kind in ("&", "|"):
        return first if bool(first) is (kind == "|") else in_python(parts[1], value)
    return BINARY[kind](first, in_python(parts[1], value))


def outcome(function: Callable[[Any], Any], value: Any) -> str:
    """The result, so that NaN and zeros with signs can be compared, or the error."""
    try:
        return repr(function(value))
    except ArithmeticError as error:
        return type(error).__name__


def doubled(one: Any, times: int) -> Any:
    return doubled(one + one, times - 1) if times else one


def has_fields(tree: Tree) -> bool:
    """Whether it reads a field in each place where Python would else compute a constant."""
    kind, *parts = tree
    if kind == "const":
        return False
    inner = [part for part in parts if isinstance(part, tuple)]
    return not parts or (any(map(has_fields, inner)) and all(part[0] == "const" or has_fields(part) for part in inner))


@given(st.one_of(conditions, numbers).filter(has_fields), st.lists(bids, min_size=1, max_size=4))
def test_an_expression_means_what_a_function_means(tree: Tree, values: list[Bid]) -> None:
    written = expression(tree)
    assert written.type_in(Bid) in (bool, int, float)
    specialised = written.function(Bid)
    for value in values:
        expected = outcome(lambda value: in_python(tree, value), value)
        as_dict = {name: getattr(value, name) for name in ("item", "price", "weight", "paid")}
        assert outcome(written, value) == outcome(specialised, value) == outcome(written, as_dict) == expected


@given(st.one_of(conditions, numbers).filter(has_fields))
def test_what_is_shown_can_be_written(tree: Tree) -> None:
    written = expression(tree)
    assert repr(eval(repr(written), {"col": mw.col, "inf": float("inf")})) == repr(written)


def test_a_path_leads_through_structs_and_dicts() -> None:
    bid = Bid("tea", 3, 0.5, True, User(40, {"a": 7}))
    assert (mw.col("user.age") + mw.col("user.tags.a"))(bid) == 47
    assert (mw.col("note") == None)(bid) is True  # noqa: E711 - as a user writes it
    assert mw.col("from.x")({"from": {"x": 3}}) == 3


def test_the_right_side_is_looked_at_only_if_needed() -> None:
    safe = (mw.col("price") != 0) & (1 / mw.col("price") < 2)
    assert [safe({"price": price}) for price in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda bids: bids.filter(mw.col("prize") > 1), "no field 'prize' (its fields are item, price, weight"),
        (lambda bids: bids.filter(mw.col("user.aeg") > 1), "User has no field 'aeg' (its fields are age, tags)"),
        (lambda bids: bids.map(mw.col("prize")), "no field 'prize'"),
        (lambda bids: bids.split(mw.col("prize") > 1), "no field 'prize'"),
        (lambda bids: bids.filter(mw.col("item") > 1), "compares str with int"),
        (lambda bids: bids.filter(mw.col("item").is_in([1])), "compares str with int"),
        (lambda bids: bids.filter(mw.col("price") & mw.col("paid")), "& takes conditions"),
        (lambda bids: bids.filter(~mw.col("price")), "~ takes conditions"),
        (lambda bids: bids.map(-mw.col("item")), "- takes numbers, but col('item') is str"),
        (lambda bids: mw.col("price") > 1 & mw.col("paid"), "put each comparison in parentheses"),
        (lambda bids: 1 < mw.col("price") < 3, "is true or false for a record only"),
        (lambda bids: mw.col("price") > 1 and mw.col("paid"), "is true or false for a record only"),
        (lambda bids: mw.col("price") == [1], "takes numbers, texts, bytes and None, not [1]"),
        (lambda bids: mw.col("price") > float("nan"), "not nan"),
        (lambda bids: mw.col("item") == "\ud800", r"not '\ud800'"),
        (lambda bids: mw.col("item").is_in("tea"), "a list of texts or a list of whole numbers, not 'tea'"),
        (lambda bids: mw.col("item").is_in(["tea", 1]), "a list of texts or a list of whole numbers"),
        (lambda bids: mw.col("item").is_in([]), "a list of texts or a list of whole numbers"),
        (lambda bids: mw.col("item").is_in(cast(Any, 5)), "a list of texts or a list of whole numbers, not 5"),
        (lambda bids: bids.filter(mw.col("note") is not None), "write == None for is None"),
        (lambda bids: bids.filter(mw.col("item") in {"tea"}), "is_in([...]) for in"),
        (lambda bids: agg.count(where=cast(Any, mw.col("note") is not None)), "True is no function"),
        (lambda bids: bids.key_by(mw.col("prize") + 1), "no field 'prize'"),
        (lambda bids: bids.flat_map(mw.col("prize")), "no field 'prize'"),
        (lambda bids: mw.col(""), "mw.col takes the name of a field"),
        (lambda bids: sum([mw.col("price")] * 200), "at most 100 levels"),
        (lambda bids: doubled(mw.col("price"), 40), "and 1,000 parts"),
    ],
)
def test_a_mistake_is_an_error_that_names_it(make: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(mw.UsageError) as caught:
        make(mw.Topology("shop").source("bids", Bid))
    assert words in str(caught.value)


WHERE = mw.col("prize") > 1


@pytest.mark.parametrize(
    "aggregate",
    [
        agg.count(where=WHERE),
        agg.sum("price", where=WHERE),
        agg.mean("price", where=WHERE),
        agg.variance("price", where=WHERE),
        agg.max("price", where=WHERE),
        agg.top(3, "price", where=WHERE),
        agg.last(where=WHERE),
        agg.max_by("price", where=WHERE),
        agg.collect("item", where=WHERE),
        agg.distinct("item", exact=False, where=WHERE),
        agg.histogram("price", [1], where=WHERE),
        agg.quantile("price", 0.5, where=WHERE),
        agg.sum(mw.col("prize") * 2),
        agg.top(3, mw.col("prize") * 2),
        agg.quantile(mw.col("prize") * 2, 0.5),
        agg.several({"n": agg.count(where=WHERE)}),
    ],
)
def test_an_aggregate_names_the_field_that_is_missing(aggregate: agg.Aggregator[Any, Any]) -> None:
    bids = mw.Topology("shop").source("bids", Bid)
    with pytest.raises(mw.UsageError, match="Bid has no field 'prize'"):
        bids.key_by("item").aggregate("rows", n=aggregate)


def test_the_depth_of_a_long_expression_is_no_fault() -> None:
    total: Any = sum([mw.col("price")] * 98)
    assert total({"price": 2}) == 196


def test_steps_with_expressions_can_be_compared_and_hashed() -> None:
    dear = mw.col("price") > 1
    assert len({dear, mw.col("price") > 1}) == 2
    assert dear in [dear]
    shop = mw.Topology("shop")
    bids = shop.source("bids", Bid)
    some = bids.filter(dear).map(mw.col("price") * 2).key_by(str)
    other = bids.filter(mw.col("paid")).map(mw.col("price") * 3).key_by(str)
    some.join("both", other, lambda one, two: one, int)
    (problem,) = shop.validate()
    assert "read twice with different keys" in problem.message


def test_a_field_alone_is_the_field() -> None:
    bids = mw.Topology("shop").source("bids", Bid)
    assert bids.key_by(mw.col("item")).input.extractor == mw.key("item") == mw.key(mw.col("item"))
    assert agg.max(mw.col("item")).bind(Bid).result_type is str


def test_an_update_finds_another_expression_in_a_key() -> None:
    digests = [
        mw.key(made).to_proto(Bid).code
        for made in (mw.col("price") * 2, mw.col("price") * 2, mw.col("price") * 3, mw.col("weight") * 2)
    ]
    assert digests[0] == digests[1]
    assert len({*digests}) == 3


def test_the_items_of_a_set_have_one_order() -> None:
    names = {f"name {number}" for number in range(9)}
    assert repr(mw.col("item").is_in(names)) == f"col('item').is_in({sorted(names)})"


def test_a_topology_runs_expressions() -> None:
    shop = mw.Topology("shop")
    dear, cheap = shop.source("bids", Bid).filter(mw.col("weight") > 0).split(mw.col("price") >= 100)
    assert str(dear.branches[0]).startswith("bids.filter(col('weight') > 0).filter(col('price') >= 100)")
    cheap.map(mw.col("price") * 2).named("doubled")
    rows = dear.key_by("item").window(windows.tumbling(mw.seconds(10)))
    worth = mw.col("price") * mw.col("weight")
    rows.aggregate(
        "rows",
        n=agg.count(where=mw.col("item").is_in(["tea"]) & ~mw.col("paid")),
        worth=agg.sum(worth),
        most=agg.max(worth, where=mw.col("paid")),
        paid=agg.sum(mw.col("price") > 150),
        ages=agg.distinct(mw.col("user.age") + 1),
    )
    assert shop.validate() == []
    with TopologyHarness(shop) as harness:
        for price, weight, paid in [(5, 1.0, True), (100, 0.5, False), (200, 0.25, False), (300, 0.0, True)]:
            harness.send("bids", Bid("tea", price, weight, paid, User(price)), NOON)
        harness.finish()
        assert harness.values("doubled") == [10]
        (row,) = harness.values("rows")
        assert (row.n, row.worth, row.most, row.paid, row.ages) == (2, 100.0, None, 1, [101, 201])


def test_a_stream_without_a_stated_type_is_not_checked() -> None:
    shop = mw.Topology("shop")
    unknown = shop.source("bids", Bid).map(lambda bid: bid.user)
    unknown.filter(mw.col("age") > 3).key_by(lambda user: user.age).aggregate("ages", n=agg.sum(mw.col("age") * 2))
    with TopologyHarness(shop) as harness:
        for age in (3, 4):
            harness.send("bids", Bid("tea", 1, 1.0, True, User(age)), NOON)
        assert [row.n for row in harness.values("ages")] == [8]


def test_the_items_may_be_read_once() -> None:
    chosen = mw.col("item").is_in(item for item in ("tea", "jam"))
    assert [chosen({"item": item}) for item in ("tea", "nut")] == [True, False]


def test_one_expression_is_one_step() -> None:
    shop = mw.Topology("shop")
    bids, dear, number = shop.source("bids", Bid), mw.col("price") > 1, mw.col("price") + 1
    bids.filter(dear).key_by(number).join("both", bids.filter(dear).key_by(number), lambda one, two: one, Bid)
    assert shop.validate() == []


def test_an_update_finds_another_expression_in_a_key_function() -> None:
    def key_of(read: Any) -> Any:
        return mw.key(lambda bid: read(bid))

    digests = {key_of(mw.col("price") * factor).to_proto(Bid).code for factor in (2, 3)}
    assert len(digests) == 2


def test_an_expression_can_be_pickled_after_a_call() -> None:
    double = mw.col("price") * 2
    assert double({"price": 2}) == pickle.loads(pickle.dumps(double))({"price": 2}) == 4
