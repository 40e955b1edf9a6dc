"""Whether a table takes the rows of a type. Pure."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal, localcontext
from enum import Enum
from typing import Any, Literal, NamedTuple

import msgspec
import pytest

import millwheel as mw
from millwheel.connectors.cassandra import CassandraError
from millwheel.connectors.cassandra.columns import TableColumns, TableLayout
from millwheel.connectors.cassandra.cql_types import CqlType, parsed

GRACE = 864_000


def layout(grace: int = GRACE, **columns: str) -> TableLayout:
    """A table whose first column is the key of the partition. A type may have a kind before it: ``static int``."""
    found = {}
    for place, (name, text) in enumerate(columns.items()):
        kind, _, type_text = text.rpartition(" ") if text.startswith(("static", "clustering")) else ("", "", text)
        found[name] = (kind or ("regular" if place else "partition_key"), 0 if kind or not place else -1, type_text)
    return TableLayout("shop.totals", found, grace)


def one_field(kind: Any) -> Any:
    """A type of rows with a key, and a field of this type."""
    return msgspec.defstruct("Row", [("item", str), ("value", kind)])


class Size(Enum):
    SMALL = 1


@pytest.mark.parametrize(
    ("kind", "column", "given", "written"),
    [
        (str, "text", "a", "a"),
        (int | None, "bigint", 3, 3),
        (int | float, "double", 3, 3),
        (mw.Timestamp, "timestamp", mw.Timestamp(1_999), 1),
        (mw.Timestamp | None, "timestamp", mw.Timestamp(-1), -1),
        (mw.Timestamp, "bigint", mw.Timestamp(1_999), 1_999),
        (datetime, "timestamp", datetime(2026, 1, 1), datetime(2026, 1, 1)),
        (Size, "int", Size.SMALL, 1),
        (Literal["a", "b"], "ascii", "a", "a"),
        (dict[str, list[int]], "text", {"a": [1]}, '{"a":[1]}'),
        (set[int], "set<int>", {1}, {1}),
        (list[str], "frozen<list<text>>", ["a"], ["a"]),
        (dict[str, set[int]], "map<text, frozen<set<int>>>", {"a": {1}}, {"a": {1}}),
        (tuple[int, str], "frozen<tuple<int, text>>", (1, "a"), (1, "a")),
        (list[float], "vector<float, 3>", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
    ],
)
def test_a_column_takes_a_field(kind: Any, column: str, given: Any, written: Any) -> None:
    row = one_field(kind)
    columns = TableColumns(row, layout(item="text", value=column))
    assert columns.values(row("tea", given), None) == ["tea", written]


@pytest.mark.parametrize(
    ("kind", "column", "match"),
    [
        (int, "text", "column value is text, and the field is of int"),
        (int, "timestamp", "column value is timestamp, and the field is of int"),
        (mw.Timestamp, "int", "column value is int, and the field is a Timestamp"),
        (str, "uuid", "is uuid, and the field is of str"),
        (Size, "uuid", "is uuid, and the field is one of 1"),
        (Size, "timestamp", "is timestamp, and the field is one of 1"),
        (Literal[0, 1], "date", "is date, and the field is one of 0, 1"),
        (Size, "double", "is double, and the field is one of 1"),
        (str | list[int], "text", "the field may be of 2 types"),
        (Literal[1, "text"], "text", "the field is one of 1, 'text'"),
        (list[int], "list<int>", r"to which a repeated write would append: make it frozen<list<int>>"),
        (list[int], "set<int>", "is set<int>, and the field is of list"),
        (dict[str, mw.Timestamp], "map<text, timestamp>", "is timestamp, and the field is of int"),
        (set[Size], "set<int>", "whose parts the sink does not convert"),
        (None, "text", "a field that is always None"),
        (str, "duration", "a type that the sink does not write"),
        (str, "frozen<address>", "is address, a type that the sink does not write"),
        (str, "static text", "is static: of two rows"),
        (frozenset[int], "clustering frozen<set<int>>", "a collection in the primary key"),
        (int, "counter", "it has counters, which a repeated write would count twice"),
    ],
)
def test_a_column_refuses_a_field(kind: Any, column: str, match: str) -> None:
    with pytest.raises(CassandraError, match=match):
        TableColumns(one_field(kind), layout(item="text", value=column))


@pytest.mark.guarantee("G1")
def test_a_table_that_forgets_deletions_at_once_is_refused() -> None:
    """A row that is written late would come back."""
    with pytest.raises(CassandraError, match=r"gc_grace_seconds is 0, .*ALTER TABLE shop\.totals WITH gc_grace"):
        TableColumns(one_field(int), layout(0, item="text", value="int"))


def test_the_statements_have_the_key_first() -> None:
    class Row(NamedTuple):
        cents: Decimal
        Shop: str
        item: str

    table = TableLayout(
        "shop.totals",
        {"item": ("clustering", 0, "text"), "cents": ("regular", -1, "decimal"), "Shop": ("partition_key", 0, "text")},
        GRACE,
    )
    columns = TableColumns(Row, table)
    assert columns.upsert(60) == (
        'INSERT INTO shop.totals ("Shop", "item", "cents") VALUES (?, ?, ?) USING TIMESTAMP ? AND TTL 60'
    )
    assert columns.delete() == 'DELETE FROM shop.totals USING TIMESTAMP ? WHERE "Shop" = ? AND "item" = ?'
    assert (columns.keys, columns.partition) == (2, 1)
    assert columns.values(Row(Decimal("1.50"), "NO", "tea"), None) == ["NO", "tea", Decimal("1.50")]


@pytest.mark.guarantee("G1", "G15")
def test_equal_decimals_are_one_key() -> None:
    assert str(key_of_decimal(Decimal("1.50"))) == str(key_of_decimal(Decimal("1.5")))
    assert str(key_of_decimal(100)) == str(key_of_decimal(Decimal("100.0")))


@pytest.mark.guarantee("G1", "G15")
def test_decimals_of_many_digits_are_keys_apart() -> None:
    """The context of a thread rounds to 28 digits, or to as many as the program says."""
    with localcontext(prec=3):
        for number in (10**30, 10**30 + 1, 1_234):
            assert key_of_decimal(Decimal(number)) == key_of_decimal(number) == number
        assert str(key_of_decimal(Decimal("0.12345000"))) == "0.12345"


def key_of_decimal(value: Decimal | int) -> Any:
    """What a clustering column of decimals has."""
    row = one_field(Decimal | int)
    return TableColumns(row, layout(item="text", value="clustering decimal")).values(row("tea", value), None)[1]


def test_a_deletion_needs_the_key_alone() -> None:
    columns = TableColumns(one_field(Size), layout(item="text", value="int"))
    assert columns.key_of(one_field(str)("tea", "no size")) == ["tea"]


@pytest.mark.parametrize("item", [None, msgspec.UNSET, ""])
def test_a_key_is_never_missing(item: Any) -> None:
    row = one_field(int)
    with pytest.raises(ValueError, match=r"item is .* key"):
        TableColumns(row, layout(item="text", value="int")).values(row(item, 1), None)


def test_types_of_columns_are_read() -> None:
    assert parsed('frozen<map<text, "Own">>') == CqlType("map", (CqlType("text"), CqlType('"Own"')), frozen=True)
