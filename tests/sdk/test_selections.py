"""Selections make what the same functions of Python make, and name mistakes when a program is built (section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.sdk.errors import UsageError
from millwheel.sdk.selections import Selection, selection_of
from millwheel.testing import TopologyHarness

NOON = mw.Timestamp(1_767_268_800_000_000)


class User(msgspec.Struct):
    name: str


class Sale(msgspec.Struct, rename={"cents": "price"}):
    shop: str
    cents: int
    user: User
    note: str | None = None


class Income(msgspec.Struct, frozen=True):
    shop: str
    euros: float
    name: str = "?"
    rank: int = 7


@dataclass
class Plain:
    shop: str
    dear: bool


class Named(TypedDict):
    shop: str
    dear: bool


SALE = Sale("north", 250, User("ann"))


def test_fields_are_taken_over_or_computed() -> None:
    selected = Selection(Income, {"euros": mw.col("cents") / 100, "name": "user.name"}, Sale)
    function = selected.function()
    assert function(SALE) == Income("north", 2.5, "ann")
    assert selection_of(function) is selected
    assert [selected.source_of(path) for path in ("shop", "name", "euros", "rank")] == ["shop", "user.name", None, None]
    assert Selection(Plain, {"dear": mw.col("cents") > 5}, Sale).function()(SALE) == Plain("north", True)
    made = Selection(Named, {"dear": mw.col("cents") > 5}, Sale).function()(SALE)
    assert made == {"shop": "north", "dear": True}
    as_dict = {"shop": "south", "cents": 3}
    assert Selection(Plain, {"dear": mw.col("cents") > 5}, Any).function()(as_dict) == Plain("south", False)


@pytest.mark.parametrize(
    ("to", "given", "message"),
    [
        (Income, {"euro": mw.col("cents")}, "Income has no field 'euro' (did you mean 'euros'?)"),
        (Income, {}, "Income needs the field 'euros', which Sale has not"),
        (Income, {"euros": mw.col("price") / 2}, "Sale has no field 'price'"),
        (Income, {"euros": 5}, "euros= takes an expression or the name of a field, not 5: call map"),
        (Income, {"euros": "shop"}, "the field 'euros' of Income is float, and col('shop') is str"),
        (int, {}, "structs, dataclasses and other types with named fields, and int is none"),
    ],
)
def test_mistakes_are_named(to: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        mw.Topology("shop").source("sales", Sale).select(to, **given)
    assert message in str(caught.value)


def test_a_key_that_is_taken_over_is_that_of_the_source() -> None:
    shop = mw.Topology("shop")
    sales = shop.source("sales", Sale)
    incomes = sales.select(Income, euros=mw.col("cents") / 100, name="user.name").filter(mw.col("euros") > 1)
    for key, name in (("shop", "a"), ("name", "b"), ("rank", "c")):
        incomes.key_by(key).window(windows.tumbling(mw.minutes(1))).aggregate(name, n=agg.count())
    assert not shop.validate()
    inputs = [shop.plan().computations[name].inputs["sales"] for name in "abc"]
    assert inputs[:2] == [mw.key("shop"), mw.key("user.name")]
    assert inputs[2].function is not None
    with TopologyHarness(shop) as harness:
        harness.send("sales", SALE, timestamp=NOON)
        harness.finish()
        assert [(one.shop, one.n) for one in harness.values("a")] == [("north", 1)]
        assert [(one.name, one.n) for one in harness.values("b")] == [("ann", 1)]
        assert [(one.rank, one.n) for one in harness.values("c")] == [(7, 1)]
