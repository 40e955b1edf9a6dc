"""A field is read from a column if, and only if, each row's value then has the number that the column has (4.2; G1)."""

from __future__ import annotations

from inspect import getattr_static
from typing import Annotated, Any, Generic, NewType, TypeVar

import msgspec
import pyarrow as pa
import pytest

from millwheel.sdk.codecs import codec_for
from millwheel.sdk.column_fields import column_fields

T = TypeVar("T")
Seconds = NewType("Seconds", int)


class Bid(msgspec.Struct):
    item: str
    price: int
    weight: float = 1.0
    sold: bool = False
    raw: bytes = b""
    tags: list[str] = []


class Renamed(msgspec.Struct, rename="camel"):
    best_price: int
    item: str = "?"


class Swapped(msgspec.Struct, rename={"price": "weight", "weight": "price"}):
    price: int
    weight: float


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    price: int
    item: str = ""


class Dated(Bid, kw_only=True):
    at: Seconds


class Of(msgspec.Struct, Generic[T]):
    price: T


class Checked(msgspec.Struct):
    price: int

    def __post_init__(self) -> None:
        if self.price < 0:
            raise ValueError("no such price")


class Hidden(msgspec.Struct):
    price: int


class Shown(Hidden):
    price = property(lambda self: 7)


class Weighed(msgspec.Struct):
    price: int
    weight: int = 0


class Exchanged(Weighed):
    """A field that another one hides."""


Exchanged.price = getattr_static(Weighed, "weight")


class Twice(msgspec.Struct):
    price: int

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return 2 * found if name == "price" else found


class Computed(msgspec.Struct):
    item: str

    @property
    def price(self) -> int:
        return len(self.item)


class Tagged(msgspec.Struct, tag=True):
    price: int


class Listed(msgspec.Struct, array_like=True):
    price: int


class Limited(msgspec.Struct):
    price: Annotated[int, msgspec.Meta(ge=0)]


class Priced(msgspec.Struct):
    price: int | None


class Made(msgspec.Struct):
    price: int
    item: str = msgspec.field(default_factory=lambda: "?")


class Inner(msgspec.Struct):
    price: int


class Nested(msgspec.Struct):
    price: int
    inner: Inner


COLUMNS: dict[str, Any] = {
    "item": ["a", "b"],
    "price": [-(2**63), 2**63 - 1],
    "weight": [-0.0, float("inf")],
    "sold": [True, False],
    "raw": [b"\xff", b""],
    "bestPrice": [4, 5],
    "at": [6, 7],
    "other": ["c", "d"],
    "float price": [1.0, 2.5],
}
BY_COLUMN: dict[str, tuple[Any, str, type, str, str]] = {
    # The type, the field that is read, the type of its numbers, the columns, and that which has the field.
    "all columns": (Bid, "price", int, "item price weight sold raw", "price"),
    "missing fields have defaults": (Bid, "price", int, "item price", "price"),
    "floats": (Bid, "weight", float, "item price weight", "weight"),
    "other columns": (Bid, "price", int, "item price other bestPrice", "price"),
    "renamed": (Renamed, "best_price", int, "bestPrice", "bestPrice"),
    "a type that takes no other fields": (Closed, "price", int, "item price", "price"),
    "a type of its own": (Dated, "price", int, "item price at", "price"),
    "a generic type": (Of[int], "price", int, "price", "price"),
    "a number that may be missing": (Priced, "price", int, "price", "price"),
}
BY_VALUES: dict[str, tuple[Any, str, type, str]] = {
    "a missing field": (Bid, "price", int, "price"),
    "a missing field that is read": (Bid, "weight", float, "item price"),
    "numbers of another type": (Bid, "price", float, "item price"),
    "exchanged names of other types": (Swapped, "price", int, "price weight"),
    "an unknown field": (Closed, "price", int, "item price other"),
    "a check of the whole": (Checked, "price", int, "price"),
    "a property that hides the field": (Shown, "price", int, "price"),
    "a field that another one hides": (Exchanged, "price", int, "price"),
    "an attribute that is no field": (Computed, "price", int, "item price"),
    "attributes of the user's": (Twice, "price", int, "price"),
    "a tag": (Tagged, "price", int, "price"),
    "a list": (Listed, "price", int, "price"),
    "floats where integers or None may be": (Priced, "price", float, "float price"),
    "a restricted number": (Limited, "price", int, "price"),
    "a default that is made": (Made, "price", int, "price"),
    "a nested value": (Nested, "price", int, "price inner"),
    "a generic type without its argument": (Of, "price", int, "price"),
    "a dict": (dict[str, int], "price", int, "price"),
    "a number": (int, "price", int, "price"),
    "any type": (Any, "price", int, "price"),
}


def batch_of(names: str) -> Any:
    return pa.record_batch({name: COLUMNS.get(name, [1, 2]) for name in names.split()})


def kinds_of(batch: Any) -> dict[str, type]:
    return {name: type(column[0].as_py()) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize("case", BY_COLUMN)
def test_a_column_has_the_field_of_each_value(case: str) -> None:
    kind, field, number, names, column = BY_COLUMN[case]
    batch, fields = batch_of(names), column_fields(kind)
    assert fields is not None
    assert fields.columns_of([(field, number)], kinds_of(batch)) == [column]
    codec = codec_for(kind, "stream 'in'")
    values = [getattr(codec.decode(msgspec.msgpack.encode(row)), field) for row in batch.to_pylist()]
    assert list(map(repr, values)) == list(map(repr, COLUMNS[column]))
    assert {type(value) for value in values} == {number}


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize("case", BY_VALUES)
def test_what_a_column_may_not_say_is_left_to_values(case: str) -> None:
    kind, field, number, names = BY_VALUES[case]
    fields = column_fields(kind)
    found = None if fields is None else fields.columns_of([(field, number)], kinds_of(batch_of(names)))
    assert found is None


def test_each_wanted_field_needs_its_column() -> None:
    fields = column_fields(Bid)
    assert fields is not None
    kinds = {"item": str, "price": int, "weight": float}
    assert fields.columns_of([("weight", float), ("price", int), ("price", int)], kinds) == ["weight", "price", "price"]
    assert fields.columns_of([("weight", float), ("price", float)], kinds) is None
    assert fields.columns_of([], {"item": str, "price": int}) == []
    assert fields.columns_of([], {"item": str, "price": bool}) is None


def test_a_column_has_the_name_in_the_encoded_value() -> None:
    fields = column_fields(Renamed)
    assert fields is not None
    assert fields.columns_of([("best_price", int)], {"best_price": int}) is None
    assert fields.columns_of([("bestPrice", int)], {"bestPrice": int}) is None
