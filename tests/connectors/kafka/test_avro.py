"""Values in Avro: written by the schema of their type, and read by that of any writer."""

from __future__ import annotations

import math
import typing
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from io import BytesIO
from typing import Annotated, Any, Generic, Literal, NewType, TypedDict, TypeVar
from uuid import UUID

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.connectors.kafka.avro import AvroValues
from millwheel.connectors.kafka.registry import RegisteredSchema
from millwheel.sdk.errors import UsageError

T = TypeVar("T")
U = TypeVar("U")

NOON = 1_767_268_800_000_000
NOON_AT = datetime(2026, 1, 1, 12, tzinfo=UTC)

Price = Annotated[Decimal, msgspec.Meta(extra={"precision": 12, "scale": 2})]


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Sold(msgspec.Struct, tag=True):
    cents: int


class Withdrawn(msgspec.Struct, tag=True):
    why: str = ""
    at: mw.Timestamp | None = None


class Seller(msgspec.Struct):
    name: str
    city: str | None = None


@dataclass
class Place:
    city: str
    lines: list[str]


class Size(TypedDict):
    height: float


class Everything(msgspec.Struct, omit_defaults=True):
    """A field of each type that Avro has."""

    flag: bool
    count: int
    weight: float
    name: str
    raw: bytes
    id: UUID
    at: mw.Timestamp
    moment: datetime
    local: Annotated[datetime, msgspec.Meta(tz=False)]
    day: date
    clock: time
    price: Price
    color: Color
    side: Literal["buy", "sell"]
    seller: Seller
    place: Place
    size: Size
    end: Sold | Withdrawn | None
    tags: list[str]
    seen: set[int]
    prices: dict[str, list[Price]]
    times: dict[str, mw.Timestamp]
    any_of: int | float | str | bool | None = None
    maybe_color: Color | None = None
    maybe_text: str | None = "none"
    maybe_day: date | None = date(2026, 1, 1)
    maybe_clock: time = time(1)
    wire_name: int = msgspec.field(default=3, name="wireName")


longs = st.integers(-(2**63), 2**63 - 1)
timestamps = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
zoned, local = st.datetimes(timezones=st.just(UTC)), st.datetimes()
prices = st.decimals(min_value=-(10**10) + 1, max_value=10**10 - 1, places=2)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
sellers = st.builds(Seller, texts, st.none() | texts)
everything = st.builds(
    Everything,
    flag=st.booleans(),
    count=longs,
    weight=st.floats(allow_nan=False),
    name=texts,
    raw=st.binary(max_size=20),
    id=st.uuids(),
    at=timestamps,
    moment=zoned,
    local=local,
    day=st.dates(),
    clock=st.times(),
    price=prices,
    color=st.sampled_from(Color),
    side=st.sampled_from(["buy", "sell"]),
    seller=sellers,
    place=st.builds(Place, texts, st.lists(texts, max_size=3)),
    size=st.builds(lambda height: {"height": height}, st.floats(allow_nan=False)),
    end=st.none() | st.builds(Sold, longs) | st.builds(Withdrawn, texts, st.none() | timestamps),
    tags=st.lists(texts, max_size=3),
    seen=st.sets(longs, max_size=3),
    prices=st.dictionaries(texts, st.lists(prices, max_size=2), max_size=2),
    times=st.dictionaries(texts, timestamps, max_size=2),
    any_of=st.none() | st.booleans() | longs | texts | st.floats(allow_nan=False),
    maybe_color=st.none() | st.sampled_from(Color),
    maybe_text=st.none() | texts,
    maybe_day=st.none() | st.dates(),
    maybe_clock=st.times(),
    wire_name=longs,
)


def read(schema: str | dict[str, Any], data: bytes, kind: Any) -> Any:
    """The value of bytes that were written with a schema."""
    text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    return AvroValues(kind, None).parser(lambda: RegisteredSchema(text))(data)


def written(schema: Any, value: Any) -> bytes:
    """What another program writes."""
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    return buffer.getvalue()


VALUES = AvroValues(Everything, None)
PARSE = VALUES.parser(lambda: RegisteredSchema(VALUES.schema()))


@given(everything)
def test_each_value_comes_back_as_it_was(value: Everything) -> None:
    found = PARSE(VALUES.encode(value))
    assert found == value
    assert type(found.any_of) is type(value.any_of)
    assert math.copysign(1, found.weight) == math.copysign(1, value.weight)


@given(everything)
def test_others_read_what_is_written(value: Everything) -> None:
    schema = fastavro.parse_schema(msgspec.json.decode(VALUES.schema()))
    found: Any = fastavro.schemaless_reader(BytesIO(VALUES.encode(value)), schema, None)
    assert found["at"] == mw.to_datetime(value.at)
    assert (found["moment"], found["local"], found["day"]) == (value.moment, value.local, value.day)
    assert (found["price"], found["id"], found["raw"]) == (value.price, value.id, value.raw)
    assert (found["color"], found["wireName"], found["size"]) == (value.color.value, value.wire_name, value.size)
    assert found["times"] == {name: mw.to_datetime(at) for name, at in value.times.items()}


@given(everything, st.data())
def test_damaged_bytes_are_an_error_or_a_value(value: Everything, data: st.DataObject) -> None:
    """No error but one that says so, and no value of another type."""
    encoded = bytearray(VALUES.encode(value))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] = data.draw(st.integers(0, 255))
    del encoded[data.draw(st.integers(1, len(encoded))) :]
    with suppress(ValueError, OverflowError, ArithmeticError):
        assert isinstance(PARSE(bytes(encoded)), Everything)


def test_the_schema_follows_from_the_type() -> None:
    class Bid(msgspec.Struct):
        auction: str
        price: Price | None = None
        at: mw.Timestamp = mw.Timestamp(0)
        tags: list[str] = msgspec.field(default_factory=list)
        color: Color = Color.RED
        cents: Annotated[int, msgspec.Meta(extra={"aliases": ["amount"]})] = 0
        note: str | None = "-"

    expected = {
        "type": "record",
        "name": "Bid",
        "fields": [
            {"name": "auction", "type": "string"},
            {
                "name": "price",
                "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}],
                "default": None,
            },
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 0},
            {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
            {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["red", "blue"]}, "default": "red"},
            {"name": "cents", "type": "long", "aliases": ["amount"], "default": 0},
            {"name": "note", "type": ["string", "null"], "default": "-"},
        ],
    }
    assert msgspec.json.decode(AvroValues(Bid, None).schema()) == expected
    assert AvroValues(str, None).schema() == '"string"'


class Bid(msgspec.Struct):
    """What the tests below read."""

    auction: Annotated[str, msgspec.Meta(extra={"aliases": ["item", "lot"]})]
    cents: int = 7
    at: mw.Timestamp | None = None
    price: Decimal | None = None
    color: Color | None = None
    seller: Seller | None = None
    share: float = 0.0
    raw: bytes = b""
    id: UUID | None = None


def record(*fields: tuple[str, Any], name: str = "com.shop.AuctionBid") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": kind} for one, kind in fields]}


def str_of(schema: Any) -> str:
    return msgspec.json.encode(schema).decode()


def logical(kind: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


LAMP = ("auction", "string")
SELLER = record(("name", "string"), ("stars", "int"), name="com.shop.Vendor")
FIXED_ID = logical("fixed", "uuid", size=16, name="Id")


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        pytest.param(record(LAMP), {}, Bid("lamp"), id="added with a default"),
        pytest.param(record(("old", "long"), LAMP), {"old": 3}, Bid("lamp"), id="removed"),
        pytest.param(record(("lot", "string")), {"lot": "lamp"}, Bid("lamp"), id="renamed"),
        pytest.param(record(LAMP, ("lot", "string")), {"lot": "x"}, Bid("lamp"), id="both names"),
        pytest.param(record(("cents", "int"), LAMP), {"cents": 3}, Bid("lamp", 3), id="other order"),
        pytest.param(record(LAMP, ("share", "int")), {"share": 3}, Bid("lamp", share=3.0), id="int to float"),
        pytest.param(record(LAMP, ("share", "float")), {"share": 0.5}, Bid("lamp", share=0.5), id="float to double"),
        pytest.param(record(("auction", "bytes")), {"auction": b"lamp"}, Bid("lamp"), id="bytes to text"),
        pytest.param(record(LAMP, ("raw", "string")), {"raw": "YQ=="}, Bid("lamp", raw=b"YQ=="), id="text to bytes"),
        pytest.param(record(("auction", ["null", "string"])), {}, Bid("lamp"), id="no longer optional"),
        pytest.param(
            record(LAMP, ("at", logical("long", "timestamp-millis"))),
            {"at": NOON_AT},
            Bid("lamp", at=mw.Timestamp(NOON)),
            id="milliseconds",
        ),
        pytest.param(
            record(LAMP, ("at", ["null", logical("long", "timestamp-micros")])),
            {"at": NOON_AT},
            Bid("lamp", at=mw.Timestamp(NOON)),
            id="microseconds",
        ),
        pytest.param(
            record(LAMP, ("price", logical("bytes", "decimal", precision=9, scale=3))),
            {"price": Decimal("1.234")},
            Bid("lamp", price=Decimal("1.234")),
            id="other scale",
        ),
        pytest.param(
            record(LAMP, ("price", logical("fixed", "decimal", precision=9, scale=1, size=6, name="P"))),
            {"price": Decimal("-1.5")},
            Bid("lamp", price=Decimal("-1.5")),
            id="fixed decimal",
        ),
        pytest.param(
            record(LAMP, ("color", {"type": "enum", "name": "C", "symbols": ["green", "blue"]})),
            {"color": "blue"},
            Bid("lamp", color=Color.BLUE),
            id="enum with another symbol",
        ),
        pytest.param(
            record(LAMP, ("seller", ["null", SELLER])),
            {"seller": {"name": "ann", "stars": 5}},
            Bid("lamp", seller=Seller("ann")),
            id="nested, of another name",
        ),
        pytest.param(record(LAMP, ("id", FIXED_ID)), {"id": bytes(15) + b"\3"}, Bid("lamp", id=UUID(int=3)), id="uuid"),
    ],
)  # fmt: skip
def test_a_writer_with_another_schema_is_read(schema: Any, value: dict[str, Any], expected: Bid) -> None:
    assert read(schema, written(schema, {"auction": "lamp", **value}), Bid) == expected


@pytest.mark.parametrize(
    ("schema", "value", "error"),
    [
        (record(("cents", "int")), {"cents": 3}, "missing required field `auction`"),
        (record(("auction", ["null", "string"])), {"auction": None}, "Expected `str`, got `null`"),
        (record(LAMP, ("cents", "double")), {"cents": 3.0}, "Expected `int`, got `float`"),
        (record(LAMP, ("at", "long")), {"at": NOON}, "no Timestamp: read it as int or datetime"),
        (record(LAMP, ("at", logical("long", "timestamp-nanos"))), {"at": NOON * 1000}, "no Timestamp"),
        (record(LAMP, ("at", logical("long", "local-timestamp-micros"))), {"at": datetime(2026, 1, 1)}, "no Timestamp"),
        (record(LAMP, ("color", {"type": "enum", "name": "C", "symbols": ["green"]})), {"color": "green"}, "'green'"),
        ("string", "lamp", "Expected `object`, got `str`"),
    ],
)
def test_a_writer_that_does_not_fit_is_an_error(schema: Any, value: Any, error: str) -> None:
    given = {"auction": "lamp", **value} if isinstance(value, dict) else value
    with pytest.raises(ValueError, match=error):
        read(msgspec.json.encode(schema).decode(), written(schema, given), Bid)


def test_records_of_a_union_are_told_by_name() -> None:
    sold, withdrawn = record(("cents", "int"), name="a.Sold"), record(("why", "string"), name="a.Withdrawn")
    both: Any = ["null", sold, withdrawn]
    for schema, kind in ((both, Sold | Withdrawn | None), ([sold, withdrawn], Withdrawn)):
        assert read(str_of(schema), written(schema, ("a.Withdrawn", {"why": "x"})), kind) == Withdrawn("x")
    with pytest.raises(ValueError, match=r"it is a a\.Sold, and not a Withdrawn"):
        read(str_of(both), written(both, ("a.Sold", {"cents": 3})), Withdrawn)
    for one in (sold, [sold], ["null", sold]):  # as the topic was before there were several
        assert read(str_of(one), written(one, {"cents": 3}), Sold | Withdrawn) == Sold(3)
    other = record(("cents", "int"), name="a.Other")
    with pytest.raises(ValueError, match="Other"):
        read(str_of(other), written(other, {"cents": 3}), Sold | Withdrawn)


@pytest.mark.parametrize(
    ("registered", "error"),
    [
        (RegisteredSchema('"string"', "PROTOBUF"), "of the type PROTOBUF, and not AVRO"),
        (RegisteredSchema('"Other"', references=[{"name": "Other"}]), "refers to other schemas"),
        (RegisteredSchema('{"type": "no such type"}'), "its schema cannot be used"),
        (RegisteredSchema("no JSON"), "its schema cannot be used"),
        (RegisteredSchema(str_of(record(("a", ["null", "Bid"]), name="Bid"))), "its schema contains itself"),
        (
            RegisteredSchema(str_of(record(("a", record(("b", {"type": "array", "items": "A"}), name="B")), name="A"))),
            "its schema contains itself",
        ),
    ],
)
def test_a_schema_that_cannot_be_read_is_an_error(registered: RegisteredSchema, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        AvroValues(str, None).parser(lambda: registered)


def test_bytes_that_do_not_fit_the_schema_are_an_error() -> None:
    data = written(record(LAMP), {"auction": "lamp"})
    for wrong in (data[:-1], b"", data + b"\0"):
        with pytest.raises(ValueError, match="its bytes"):
            read(record(LAMP), wrong, Bid)


@pytest.mark.parametrize("name", ["record", "array", "map", "enum", "fixed", "error"])
def test_a_record_may_have_the_name_of_a_kind(name: str) -> None:
    schema = record(LAMP, ("seller", record(("name", "string"), name=name)), name="Bid")
    data = written(schema, {"auction": "lamp", "seller": {"name": "ann"}})
    assert read(schema, data, Bid) == Bid("lamp", seller=Seller("ann"))
    alone = record(LAMP, name=name)
    assert read(alone, written(alone, {"auction": "lamp"}), Bid) == Bid("lamp")


class Box(msgspec.Struct, Generic[T]):
    v: T


class Pair(Box[U], Generic[T, U]):
    other: T


class TimedBox(Box[mw.Timestamp]):
    """A generic class whose argument is in a base."""


class DeeperBox(TimedBox):
    n: int = 0


class Row(msgspec.Struct, array_like=True):
    v: mw.Timestamp


class Soon(msgspec.Struct):
    v: mw.Timestamp | str


class Rows(msgspec.Struct):
    v: tuple[Soon, ...]


class Mixed(msgspec.Struct):
    v: mw.Timestamp | date | None


Renamed = NewType("Renamed", mw.Timestamp)


class Tick(msgspec.Struct):
    v: Renamed


LONGS = {"type": "array", "items": "long"}


@pytest.mark.parametrize(
    ("kind", "schema", "value"),
    [
        (Soon, "long", 7),
        (Soon, ["long", "string"], 7),
        (Box[mw.Timestamp], "long", 7),
        (Box[list[mw.Timestamp]], LONGS, [7]),
        (Box[Box[mw.Timestamp]], record(("v", "long"), name="B"), {"v": 7}),
        (Pair[str, mw.Timestamp], "long", 7),
        (TimedBox, "long", 7),
        (DeeperBox, "long", 7),
        (Tick, "long", 7),
        (Box[Row], LONGS, [7]),
        (Rows, {"type": "array", "items": record(("v", "long"), name="A")}, [{"v": 7}]),
        (Mixed, "long", 7),
        (Box[mw.Timestamp | float], "long", 7),
    ],
)
def test_a_number_without_a_unit_is_no_timestamp(kind: Any, schema: Any, value: Any) -> None:
    writer = record(("v", schema), ("other", "string"))
    with pytest.raises(ValueError, match="Timestamp"):
        read(writer, written(writer, {"v": value, "other": "x"}), kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (mw.Timestamp | str, mw.Timestamp(NOON)),
        (mw.Timestamp | str, "soon"),
        (mw.Timestamp | float | None, mw.Timestamp(NOON)),
        (mw.Timestamp | float | None, 0.5),
        (mw.Timestamp | float | None, None),
        (mw.Timestamp | bool, True),
        (Box[mw.Timestamp], Box(mw.Timestamp(NOON))),
        (DeeperBox, DeeperBox(mw.Timestamp(NOON))),
        (Pair[mw.Timestamp, int], Pair(3, mw.Timestamp(NOON))),
        (Tick, Tick(Renamed(mw.Timestamp(NOON)))),
    ],
)
def test_a_timestamp_among_other_types_comes_back(kind: Any, value: Any) -> None:
    values = AvroValues(kind, None)
    found = values.parser(lambda: RegisteredSchema(values.schema()))(values.encode(value))
    assert (found, type(found)) == (value, type(value))
    assert "timestamp-micros" in values.schema()


@pytest.mark.skipif(not hasattr(typing, "TypeAliasType"), reason="this Python has no such aliases")
def test_an_alias_of_a_timestamp_is_one() -> None:
    moment = getattr(typing, "TypeAliasType")("Moment", mw.Timestamp)  # noqa: B009 not in each Python
    kind = msgspec.defstruct("Alias", [("v", moment)])
    writer = record(("v", "long"))
    with pytest.raises(ValueError, match="Timestamp"):
        read(writer, written(writer, {"v": 7}), kind)


@pytest.mark.parametrize(("kind", "default"), [(int | float, 1.5), (int | str, "x"), (int | str | None, 3)])
def test_a_default_of_several_types_is_not_in_the_schema(kind: Any, default: Any) -> None:
    """A default is one of the first type, which the type of the program does not choose."""
    values = AvroValues(msgspec.defstruct("Some", [("v", kind, default)]), None)
    assert "default" not in msgspec.json.decode(values.schema())["fields"][0]


def test_a_former_name_is_found_within_a_union() -> None:
    former = Annotated[str, msgspec.Meta(extra={"aliases": ["lot"]})]
    kind = msgspec.defstruct("Renamed", [("auction", former | None, None)])
    writer = record(("lot", "string"))
    assert read(writer, written(writer, {"lot": "lamp"}), kind).auction == "lamp"
    (field,) = msgspec.json.decode(AvroValues(kind, None).schema())["fields"]
    assert field["aliases"] == ["lot"]


class Unset(msgspec.Struct):
    w: int | msgspec.UnsetType = msgspec.UNSET


class Partly(TypedDict, total=False):
    w: int


def test_a_field_that_may_be_missing_is_read() -> None:
    empty = record()
    assert read(empty, written(empty, {}), Unset) == Unset()
    assert read(record(("w", "int")), written(record(("w", "int")), {"w": 3}), Unset) == Unset(3)


class Point(msgspec.Struct, array_like=True):
    x: int


class Chain(msgspec.Struct):
    of: dict[str, Chain]


class Dashed(msgspec.Struct, rename="kebab"):
    two_words: int


class Twice(msgspec.Struct):
    one: Color
    other: Any


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Bid, r"it\.price: a Decimal needs the number of its digits.*'precision': 12"),
        (Twice, r"it\.other: the type Any has no form in Avro.*Or give one by schema="),
        (tuple[int, ...], "the type VarTuple has no form"),
        (dict[int, str], "the keys of a map are texts"),
        (list[Point], r"it\[\]: a Struct with array_like=True"),
        (Chain, r"it\.of\{\}: a type that contains itself"),
        (Dashed, r"it\.two-words: Avro has no such name"),
        (int | date, "a union is of None and one type"),
        (Literal["a", 1], "neither texts alone nor integers alone"),
        (Unset, r"it\.w: it may be missing.*give it a default"),
        (Partly, r"it\.w: it may be missing"),
    ],
)
def test_a_type_without_a_schema_is_named(kind: Any, error: str) -> None:
    """A sink refuses it when it is declared. A source may read it."""
    with pytest.raises(UsageError, match=error):
        AvroValues(kind, None).schema()


def test_two_classes_of_one_name_are_named() -> None:
    other = msgspec.defstruct("Color", [("x", int)])
    with pytest.raises(UsageError, match="another type has the name 'Color', too"):
        AvroValues(msgspec.defstruct("Both", [("a", Color), ("b", other), ("c", Color)]), None).schema()


def test_a_schema_that_is_given_is_written_with() -> None:
    schema = record(
        LAMP, ("price", logical("bytes", "decimal", precision=5)), ("at", logical("long", "timestamp-millis"))
    )
    values = AvroValues(Bid, str_of(schema))
    data = values.encode(Bid("lamp", at=mw.Timestamp(NOON), price=Decimal(12)))
    assert values.schema() == str_of(schema)
    assert values.name() == "com.shop.AuctionBid"
    found: Any = fastavro.schemaless_reader(BytesIO(data), fastavro.parse_schema(schema), None)
    assert found == {"auction": "lamp", "price": Decimal(12), "at": NOON_AT}
    spaced = {"type": "record", "namespace": "com.shop", "name": "Bid", "fields": []}
    assert AvroValues(Bid, str_of(spaced)).name() == "com.shop.Bid"
    with pytest.raises(UsageError, match="a text of JSON with a schema"):
        AvroValues(Bid, "no JSON")
    with pytest.raises(UsageError, match="the schema of the sink cannot be used"):
        AvroValues(Bid, '"no such type"').encode(Bid("lamp"))


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        (datetime, datetime(2026, 1, 1), "has no time zone"),
        (time, time(1, tzinfo=UTC), "has a time zone"),
        (Price, Decimal("0.001"), "Scale provided in schema does not match"),
        (Price, Decimal(10**12), "precision is bigger"),
        (int, 2**63, "too large"),
    ],
)
def test_a_value_that_avro_cannot_have_is_an_error(kind: Any, value: Any, error: str) -> None:
    with pytest.raises((ValueError, OverflowError), match=error):
        AvroValues(kind, None).encode(value)
