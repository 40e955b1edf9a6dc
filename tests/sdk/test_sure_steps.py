"""Steps that are said to raise for no record raise for none (sections 4.2, 4.3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.sdk.errors import UsageError
from millwheel.sdk.expressions import Expression
from millwheel.sdk.selections import Selection
from millwheel.sdk.sure_steps import never_raise


class Inner(msgspec.Struct):
    age: int


class Bid(msgspec.Struct):
    item: str
    price: int
    weight: float
    paid: bool
    user: Inner
    raw: bytes = b""
    left: int | None = None
    note: str | None = None


class Out(msgspec.Struct):
    item: str
    left: int
    price: int = 0


def failing() -> int:
    raise ValueError("no default")


class Made(msgspec.Struct):
    item: str
    number: int = msgspec.field(default_factory=failing)


col = mw.col
SURE: list[Any] = [
    col("price") > 1,
    (col("price") + 1) * 2 > col("weight"),
    -col("price") != 3,
    col("item") < "b",
    col("raw") >= b"x",
    col("left") == None,  # noqa: E711
    ~col("left"),
    (col("left") != 3) & col("item").is_in(["a"]),
    col("note").is_in(["a"]) | col("paid"),
    col("paid") + col("weight") > 10**400,
]
UNSURE: list[Any] = [
    col("left") > 1,
    col("left") + 1 == 2,
    -col("left") == 2,
    (col("left") != None) & (col("left") > 1),  # noqa: E711
    col("note") < "b",
    col("price") / 2 > 1,
    col("user.age") > 1,
    10**400 * col("weight") > 1,
    col("price") * 2**1_000 + col("weight") > 1,
]


@pytest.mark.parametrize("step", [*SURE, *UNSURE], ids=lambda step: f"{step!r}"[:40])
def test_a_step_in_doubt_may_raise(step: Expression) -> None:
    assert never_raise([step], Bid) is any(step is one for one in SURE)


@pytest.mark.parametrize("record_type", [Any, dict[str, int], int, Made])
def test_only_plain_structs_have_sure_fields(record_type: Any) -> None:
    assert never_raise([col("item") == "a"], record_type) is (record_type is Made)


@pytest.mark.parametrize(
    ("selection", "then", "sure"),
    [
        (Selection(Out, {}, Bid), col("item") > "a", True),
        (Selection(Out, {}, Bid), col("left") > 1, False),  # None is taken over
        (Selection(Out, {"left": "price"}, Bid), col("left") > 1, True),
        (Selection(Out, {"left": col("price") + 1}, Bid), col("left") > 1, True),
        (Selection(Out, {"left": col("left") + 1}, Bid), col("item") > "a", False),
        (Selection(Made, {}, Bid), col("item") > "a", False),
    ],
)
def test_a_filter_behind_a_selection_reads_what_that_took(selection: Selection, then: Expression, sure: bool) -> None:
    assert never_raise([selection, then], Bid) is sure


names = st.sampled_from(["item", "price", "weight", "paid", "raw", "left", "note"]).map(col)
constants = st.sampled_from([0, 3, 2**70, 10**400, 1.5, 1e308, "b", b"x", None, True])
pairs = st.sampled_from(["==", "!=", "<", ">=", "+", "-", "*", "/", "&", "|"])
leaves: st.SearchStrategy[Any] = names | constants.map(lambda value: Expression("const", value))
trees: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: (
        st.builds(Expression, pairs, inner, inner) | st.builds(Expression, st.sampled_from(["-x", "~"]), inner)
    ),
    max_leaves=8,
)
bids = st.builds(
    Bid,
    st.sampled_from(["", "a", "c"]),
    st.sampled_from([0, -(2**63), 2**64 - 1, 5]),
    st.floats(),
    st.booleans(),
    st.just(Inner(3)),
    st.just(b"y"),
    st.none() | st.integers(-3, 3),
    st.none() | st.just("x"),
)


@pytest.mark.guarantee("G1", section="4.2")
@given(trees, bids)
def test_what_is_said_to_raise_for_no_record_raises_for_none(step: Expression, bid: Bid) -> None:
    try:
        step.type_in(Bid)
    except UsageError:
        return  # no program has it
    if never_raise([step], Bid):
        bool(step(bid))
