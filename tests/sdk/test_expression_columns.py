"""What is computed by columns is what Python computes for each record, or is left to the records (section 4.2; G1)."""

from __future__ import annotations

import subprocess
import sys
from array import array
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.columns import NotFoldedError
from millwheel.sdk.expression_columns import columns_for, computed, truths
from tests.patience import patience
from tests.sdk.test_expressions import Bid, Tree, bids, conditions, expression, has_fields, in_python, numbers

NAMES = ("item", "price", "weight", "paid")


def columns_of(values: list[Bid]) -> dict[str, Any]:
    """The fields in columns, as a delivery has them."""
    kinds = [pa.string(), pa.int64(), pa.float64(), pa.bool_()]
    made = [pa.array([getattr(one, name) for one in values], kind) for name, kind in zip(NAMES, kinds, strict=True)]
    records = RecordColumns(pa.record_batch(dict(zip(NAMES, made, strict=True))), array("q", range(len(values))))
    return {name: records.column(name, slice(None)) for name in NAMES}


def bits(column: Any) -> list[Any]:
    """The items, so that zeros with signs and all NaN differ."""
    return list(map(msgspec.msgpack.encode, column))


@given(st.one_of(conditions, numbers).filter(has_fields), st.lists(bids, min_size=1, max_size=5))
@example(("+", ("paid",), ("paid",)), [Bid("", 0, 0.0, True, None)])  # type: ignore[arg-type]
@example(("<", ("price",), ("const", 2.0**53)), [Bid("", 2**53 + 1, 0.0, True, None)])  # type: ignore[arg-type]
@example(("*", ("price",), ("price",)), [Bid("", 2**32, 0.0, True, None)])  # type: ignore[arg-type]
@example(("/", ("price",), ("const", -5)), [Bid("", 0, 0.0, True, None)])  # type: ignore[arg-type]
@example(("-x", ("weight",)), [Bid("", 0, 0.0, True, None), Bid("", 0, -0.0, True, None)])  # type: ignore[arg-type]
def test_columns_have_the_results_of_python(tree: Tree, values: list[Bid]) -> None:
    written = expression(tree)
    fields = columns_for(written, Bid)
    if fields is None:
        return
    assert {field for field, _ in fields} == {*written.paths()}
    given = columns_of(values)
    try:
        found = computed(written, {field: given[field] for field, _ in fields})
    except NotFoldedError:
        return
    assert bits(found.tolist()) == bits([in_python(tree, value) for value in values])
    assert truths(written, given).tolist() == [bool(in_python(tree, value)) for value in values]
    assert found.dtype == np.dtype(written.type_in(Bid))


PLAIN = [Bid("tea", 7, 0.5, True, None), Bid("jam", -3, -0.0, False, None)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "written",
    [
        mw.col("price") * 2 - 1,
        -mw.col("price") / 4,
        mw.col("price") * mw.col("weight") + 0.5,
        1 - mw.col("weight"),
        mw.col("paid") + mw.col("paid") * 2,
        (mw.col("price") > 2.5) & ~mw.col("paid") | (mw.col("weight") != mw.col("price")),
        mw.col("item").is_in(["tea", "é"]) | (mw.col("item") == "jam"),
        (mw.col("item") > "j") & (mw.col("item") <= mw.col("item")),
        mw.col("price").is_in([7, 9]) == mw.col("paid"),
        mw.col("price") == None,  # noqa: E711 - as a user writes it
        (mw.col("item") != None) & mw.col("paid"),  # noqa: E711
    ],
)
def test_plain_expressions_are_computed_by_columns(written: Any) -> None:
    assert columns_for(written, Bid) is not None
    found = computed(written, columns_of(PLAIN))
    assert repr(found.tolist()) == repr([written(bid) for bid in PLAIN])


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (mw.col("price") + 1, 2**63 - 1),
        (mw.col("price") * mw.col("price") - mw.col("price"), 2**40),
        (-mw.col("price"), -(2**63)),
        (mw.col("price") < 0.5, 2**53 + 1),
        (mw.col("price") / 3, 2**53 + 1),
        (mw.col("price") + mw.col("weight"), -(2**53) - 1),
        (1 / mw.col("price"), 0),
        (mw.col("weight") / mw.col("price"), 0),
        (mw.col("weight") * 1e308 * 1e308 * mw.col("price"), 0),
    ],
)
def test_what_may_differ_is_left_to_the_records(written: Any, value: int) -> None:
    bid = Bid("tea", value, 0.5, True, None)  # type: ignore[arg-type]
    assert columns_for(written, Bid) is not None
    with pytest.raises(NotFoldedError):
        computed(written, columns_of([bid]))


@pytest.mark.parametrize(
    "written",
    [
        mw.col("user.age") + 1,
        mw.col("price") > 2**63,
        mw.col("price").is_in([1, 2**64]),
        mw.col("weight").is_in([1]),
        mw.col("user") == None,  # noqa: E711 - as a user writes it
        mw.col("note") > 5,
        mw.col("note") < None,
        mw.col("note") + 1,
        mw.col("note") == mw.col("user"),
    ],
)
def test_what_no_column_says_is_left_to_the_records(written: Any) -> None:
    assert columns_for(written, Bid) is None


@pytest.mark.parametrize("count", [1, 2, 50])
def test_long_lists_are_looked_up_in_a_set(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways have the results of Python. Of a long list, no column is made for a delivery."""
    texts, numbers = [f"item {number}" for number in range(count)], [*range(1, count + 1)]
    values = [Bid(f"item {number * 7 % 60}", number * 5 % 60, 0.5, number % 3 == 0, None) for number in range(12)]  # type: ignore[arg-type]
    columns = columns_of(values)
    written = [mw.col("item").is_in(texts), mw.col("price").is_in(numbers), mw.col("paid").is_in(numbers)]
    if count > 12:
        monkeypatch.setattr("millwheel.rpc.columns.texts_of", lambda _: pytest.fail("a column of all items"))
    for one in written:
        assert computed(one, columns).tolist() == [one(value) for value in values]
    assert written[0].parts[1].members() is written[0].parts[1].members()


def test_texts_by_columns_load_no_pandas() -> None:
    pytest.importorskip("pandas")
    program = (
        "import sys, millwheel as mw; from millwheel.rpc.columns import texts_of\n"
        "from millwheel.sdk.expression_columns import computed\n"
        "one = mw.col('a').is_in(['x']) | (mw.col('a') == 'y')\n"
        "print(computed(one, {'a': texts_of(['x', 'y', 'é'])}).tolist(), 'pandas' in sys.modules)\n"
        "print(computed(one, {'a': texts_of(['x', 'y', 'é', 'z'])}).tolist(), 'pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, timeout=patience(30), check=True)
    assert found.stdout == "[True, True, False] False\n[True, True, False, False] False\n"
