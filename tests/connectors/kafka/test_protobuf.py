"""Values in Protobuf: messages of generated classes, and Structs that such a class has by the names of its fields."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.connectors.kafka.protobuf import ProtobufValues
from millwheel.connectors.kafka.protobuf_places import place_bytes
from millwheel.connectors.kafka.registry import RegisteredSchema
from millwheel.sdk.codecs import codec_for
from millwheel.sdk.errors import UsageError
from tests.connectors.kafka.messages import compiled, descriptors, proto3

NOON = 1_767_268_800_000_000
TIME = 'import "google/protobuf/timestamp.proto";'


class Color(Enum):
    RED = "COLOR_RED"
    BLUE = "COLOR_BLUE"


class Code(IntEnum):
    RED = 0
    BLUE = 5


class Withdrawn(msgspec.Struct, tag=True):
    why: str = ""
    at: mw.Timestamp | None = None


class Seller(msgspec.Struct, omit_defaults=True):
    name: str = "?"
    city: str | None = None


@dataclass
class Place:
    city: str
    lines: list[str]


class Size(TypedDict):
    height: float


class Node(msgspec.Struct):
    value: int
    under: list[Node] = []


class Everything(msgspec.Struct):
    """A field of each type that a message may have."""

    flag: bool
    count: int
    big: int
    weight: float
    name: str
    raw: bytes
    id: UUID
    raw_id: UUID
    at: mw.Timestamp
    moment: datetime
    written: datetime
    span: timedelta
    price: Decimal
    day: date
    clock: time
    color: Color
    code: Code
    symbol: str
    number: int
    side: Literal["buy", "sell"]
    seller: Seller
    place: Place
    size: Size
    tree: Node
    single: float
    tags: list[str]
    seen: set[int]
    colors: tuple[Color, ...]
    prices: dict[str, int]
    sellers: dict[int, Seller]
    times: dict[str, mw.Timestamp]
    moments: list[mw.Timestamp]
    wire_name: int = msgspec.field(name="wireName")
    maybe: int | None = 3
    maybe_text: str | None = None
    maybe_color: Color | None = None
    sold: str | None = None
    withdrawn: Withdrawn | None = None


EVERYTHING = proto3(
    """
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
enum Color { COLOR_RED = 0; COLOR_BLUE = 5; }
message Seller { string name = 1; optional string city = 2; }
message Place { string city = 1; repeated string lines = 2; }
message Everything {
  message Size { double height = 1; }
  message Node { int32 value = 1; repeated Node under = 2; }
  message Withdrawn { string why = 1; google.protobuf.Timestamp at = 2; }
  bool flag = 1; sint64 count = 2; uint64 big = 3; double weight = 4; string name = 5; bytes raw = 6; string id = 7;
  bytes raw_id = 8; google.protobuf.Timestamp at = 9; google.protobuf.Timestamp moment = 10; string written = 11;
  google.protobuf.Duration span = 12; string price = 13; string day = 14; string clock = 15; Color color = 16;
  Color code = 17; Color symbol = 18; Color number = 19; string side = 20; Seller seller = 21; Place place = 22;
  Size size = 23; Node tree = 24; repeated string tags = 25; repeated fixed64 seen = 26; repeated Color colors = 27;
  map<string, int64> prices = 28; map<int32, Seller> sellers = 29; map<string, google.protobuf.Timestamp> times = 30;
  repeated google.protobuf.Timestamp moments = 31; int32 wireName = 32; optional int64 maybe = 33;
  google.protobuf.StringValue maybe_text = 34; optional Color maybe_color = 35;
  oneof end { string sold = 36; Withdrawn withdrawn = 37; }
  string not_in_the_struct = 38; float single = 39;
}
"""
)

ints, longs = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
unsigned = st.integers(0, 2**64 - 1)
timestamps = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
zoned, floats = st.datetimes(timezones=st.just(UTC)), st.floats(allow_nan=False)
spans = st.timedeltas(timedelta(days=-3_000_000), timedelta(days=3_000_000))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
colors = st.sampled_from(Color)
sellers = st.builds(Seller, texts, st.none() | texts)
nodes = st.recursive(
    st.builds(Node, ints), lambda under: st.builds(Node, ints, st.lists(under, max_size=2)), max_leaves=5
)
everything = st.builds(
    Everything,
    flag=st.booleans(),
    count=longs,
    big=unsigned,
    weight=floats,
    name=texts,
    raw=st.binary(max_size=20),
    id=st.uuids(),
    raw_id=st.uuids(),
    at=timestamps,
    moment=zoned,
    written=zoned,
    span=spans,
    price=st.decimals(allow_nan=False, allow_infinity=False),
    day=st.dates(),
    clock=st.times(),
    color=colors,
    code=st.sampled_from(Code),
    symbol=st.sampled_from(["COLOR_RED", "COLOR_BLUE"]),
    number=ints,
    side=st.sampled_from(["buy", "sell"]),
    seller=sellers,
    place=st.builds(Place, texts, st.lists(texts, max_size=3)),
    size=st.builds(lambda height: {"height": height}, floats),
    tree=nodes,
    single=st.floats(width=32, allow_nan=False),
    tags=st.lists(texts, max_size=3),
    seen=st.sets(unsigned, max_size=3),
    colors=st.lists(colors, max_size=3).map(tuple),
    prices=st.dictionaries(texts, longs, max_size=2),
    sellers=st.dictionaries(ints, sellers, max_size=2),
    times=st.dictionaries(texts, timestamps, max_size=2),
    moments=st.lists(timestamps, max_size=2),
    wire_name=ints,
    maybe=st.none() | longs,
    maybe_text=st.none() | texts,
    maybe_color=st.none() | colors,
)


def parser(values: ProtobufValues[Any], schema: str) -> Any:
    """Reads what a writer with a schema has written."""
    return values.parser(lambda: RegisteredSchema(schema, "PROTOBUF"))


MESSAGE = compiled(EVERYTHING, "shop.Everything")
VALUES = ProtobufValues(Everything, MESSAGE, None)
PARSE = parser(VALUES, VALUES.schema())


SOME = msgspec.json.decode(
    b'{"flag":true,"count":-3,"big":4,"weight":0.5,"name":"lamp","raw":"YQ==","id":"00000000-0000-0000-0000-000000000001",'
    b'"raw_id":"00000000-0000-0000-0000-000000000002","at":1767268800000001,"moment":"2026-01-01T12:00:00Z",'
    b'"written":"2026-01-01T12:00:00Z","span":"P1D","price":"1.50","day":"2026-01-01","clock":"01:02:03",'
    b'"color":"COLOR_BLUE","code":5,"symbol":"COLOR_BLUE","number":9,"side":"buy","seller":{},'
    b'"place":{"city":"x","lines":["a"]},"size":{"height":2},"tree":{"value":1},"single":0.5,"tags":["t"],"seen":[7],'
    b'"colors":["COLOR_BLUE"],"prices":{"a":1},"sellers":{"3":{"city":"y"}},"times":{"a":1000000},"moments":[5],'
    b'"wireName":6,"maybe":null}',
    type=Everything,
)


@given(everything, texts, st.builds(Withdrawn, texts, st.none() | timestamps), st.integers(0, 2))
def test_what_is_written_is_read(value: Everything, sold: str, withdrawn: Withdrawn, end: int) -> None:
    if end:
        value = msgspec.structs.replace(value, **({"sold": sold} if end == 1 else {"withdrawn": withdrawn}))
    data = VALUES.encode(value)
    assert data[:2] == b"\x02\x04"  # the third message of the file
    assert PARSE(data) == value
    message = MESSAGE.FromString(data[2:])
    assert message.SerializeToString(deterministic=True) == data[2:]
    of_class = ProtobufValues(MESSAGE, None, None)
    assert of_class.encode(message) == data
    assert parser(of_class, EVERYTHING)(data) == message


def test_other_programs_read_what_is_written() -> None:
    found = MESSAGE.FromString(VALUES.encode(SOME)[2:])
    assert (found.at.seconds, found.at.nanos, found.span.seconds) == (1_767_268_800, 1_000, 86_400)
    assert (found.price, found.id, found.raw_id) == ("1.50", str(UUID(int=1)), UUID(int=2).bytes)
    assert (found.day, found.clock, found.written) == ("2026-01-01", "01:02:03", "2026-01-01T12:00:00Z")
    assert (found.color, found.code, found.symbol, found.number) == (5, 5, 5, 9)
    assert (found.seller.name, found.HasField("maybe"), found.WhichOneof("end")) == ("?", False, None)


class Bid(msgspec.Struct):
    """What the tests below read."""

    item: str = "none"
    cents: int = 7
    by: str | None = "unknown"
    at: mw.Timestamp | None = None
    color: Color | None = None


BID = proto3(
    TIME
    + """
enum Color { COLOR_RED = 0; COLOR_BLUE = 1; COLOR_GREEN = 2; }
message Bid {
  string item = 1; int64 cents = 2; optional string by = 3; google.protobuf.Timestamp at = 4; optional Color color = 5;
}"""
)
BIDS = ProtobufValues(Bid, compiled(BID), None)
X, BLUE = Bid("x", 0, None), Bid("", 0, None, color=Color.BLUE)


def written(body: str, **fields: Any) -> tuple[str, bytes]:
    """The schema and a record of another writer."""
    schema = proto3(body)
    of_class = compiled(schema)
    return schema, ProtobufValues(of_class, None, None).encode(of_class(**fields))


@pytest.mark.parametrize(
    ("body", "fields", "expected"),
    [
        pytest.param("message Bid { string item = 1; }", {"item": "x"}, X, id="added"),
        pytest.param("message Bid { string item = 1; string o = 9; }", {"item": "x", "o": "y"}, X, id="removed"),
        pytest.param("message Bid { string lot = 1; }", {"lot": "x"}, X, id="renamed"),
        pytest.param("message Bid { int32 cents = 2; }", {"cents": -3}, Bid("", -3, None), id="widened"),
        pytest.param("message Bid { uint64 cents = 2; }", {"cents": 3}, Bid("", 3, None), id="other sign"),
        pytest.param("message Bid { bool cents = 2; }", {"cents": True}, Bid("", 1, None), id="bool to int"),
        pytest.param("message Bid { bytes item = 1; }", {"item": b"x"}, X, id="bytes to text"),
        pytest.param("message Bid { string by = 3; }", {"by": "ann"}, Bid("", 0, "ann"), id="now optional"),
        pytest.param("message Bid { optional string item = 1; }", {"item": "x"}, X, id="no longer optional"),
        pytest.param("message Bid { int32 color = 5; }", {"color": 1}, BLUE, id="number to enum"),
        pytest.param("message Bid { message M {} M m = 8; }", {"m": {}}, Bid("", 0, None), id="unknown message"),
        pytest.param("message Other {} message Bid { string item = 1; }", {"item": "x"}, X, id="another place"),
    ],
)  # fmt: skip
def test_a_writer_with_another_schema_is_read(body: str, fields: dict[str, Any], expected: Bid) -> None:
    schema, data = written(body, **fields)
    assert parser(BIDS, schema)(data) == expected
    (file,) = descriptors({"shop/bids.proto": schema})
    for text in (b64encode(file.SerializeToString()).decode(), ProtobufValues(compiled(schema), None, None).schema()):
        assert parser(BIDS, text)(data) == expected


class Strict(msgspec.Struct):
    """It has no defaults."""

    by: str
    color: Color


@pytest.mark.parametrize(
    ("body", "fields", "error"),
    [
        ("message Bid {}", {}, "missing required field `by`"),
        ("message Bid { string by = 3; int32 color = 5; }", {"by": "", "color": 2}, "Invalid enum value 'COLOR_GREEN'"),
        (
            "message Bid { string by = 3; int32 color = 5; }",
            {"color": 9},
            r"it\.color is 9, and shop\.Color has no name",
        ),
        ("message Bid { bytes by = 3; }", {"by": b"\xff"}, r"its bytes are no shop\.Bid"),
    ],
)
def test_a_writer_that_does_not_fit_is_an_error(body: str, fields: dict[str, Any], error: str) -> None:
    schema, data = written(body, **fields)
    with pytest.raises(ValueError, match=error):
        parser(ProtobufValues(Strict, compiled(BID), None), schema)(data)


def test_another_message_is_an_error() -> None:
    """Its bytes could be read, as a wrong value."""
    schema = proto3("message Sale { string item = 1; } message Bid { message Part { string item = 1; } }")
    parse = parser(BIDS, schema)
    assert parse(b"\x02\x02\x0a\x01x") == Bid("x", 0, None)
    for data, found in ((b"\0", r"\[0\]"), (b"\x04\x02\0", r"\[1, 0\]"), (b"\x02\x0c", r"\[6\]")):
        with pytest.raises(ValueError, match=rf"not a shop\.Bid: it is the message {found} of .*shop\.Sale, shop\.Bid"):
            parse(data + b"\x0a\x01x")
    many = parser(BIDS, proto3("".join(f"message M{number} {{}}" for number in range(9))))
    with pytest.raises(ValueError, match=r"shop\.M4 and others"):
        many(b"\0")
    with pytest.raises(ValueError, match="a schema that has none"):
        parser(BIDS, "")(b"\0")


def test_a_writer_that_counts_entries_of_maps_is_named() -> None:
    """Java's serializers count the messages of the text, and Confluent's client for Python those of the descriptor."""
    body = "message Part {} map<string, Part> parts = 1; message Sale { string item = 1; }"
    text = proto3(f"message First {{}} message Day {{ {body} }}")
    sale = compiled(text, "shop.Day.Sale")
    parse = parser(ProtobufValues(sale, None, None), text)
    assert parse(place_bytes((1, 1)) + b"\x0a\x01x").item == "x"
    with pytest.raises(ValueError, match=r"is the message \[1, 2\] .*It may be one if Confluent's client for Python"):
        parse(place_bytes((1, 2)) + b"\x0a\x01x")
    with pytest.raises(ValueError, match=r"is the message \[1, 0\] of a schema that has [\w., ]+$"):
        parse(place_bytes((1, 0)))


def test_bytes_that_are_no_message_are_an_error() -> None:
    parse, data = parser(BIDS, BID), BIDS.encode(Bid("lamp", 300))
    for wrong in (data[:4], data + b"\x0a", data[:1] + b"\xff" * 20, b"\0\x0b"):
        with pytest.raises(ValueError, match=r"its bytes are no shop\.Bid"):
            parse(wrong)
    with pytest.raises(ValueError, match="ends within the numbers"):
        parse(b"")
    deep = parser(ProtobufValues(Node, compiled(EVERYTHING, "shop.Everything.Node"), None), EVERYTHING)
    nested = b""
    for _ in range(200):
        size = len(nested)
        nested = b"\x12" + (bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])) + nested
    with pytest.raises(ValueError, match="its bytes are no"):
        deep(b"\x04\x04\x02" + nested)


def test_a_time_out_of_range_is_an_error() -> None:
    of_class: Any = compiled(BID)
    for seconds, nanos in ((2**60, 0), (0, -5)):
        message = of_class(at={"seconds": seconds, "nanos": nanos})
        with pytest.raises(ValueError, match="not valid"):
            parser(BIDS, BID)(b"\0" + message.SerializeToString())


@pytest.mark.parametrize(
    ("registered", "error"),
    [
        (RegisteredSchema('"string"'), "of the type AVRO, and not PROTOBUF"),
        (RegisteredSchema("message Bid {", "PROTOBUF"), "its schema cannot be used: message Bid has no end"),
    ],
)
def test_a_schema_that_cannot_be_read_is_an_error(registered: RegisteredSchema, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        BIDS.parser(lambda: registered)


def test_a_message_of_old_protobuf_must_be_whole() -> None:
    text = 'syntax = "proto2"; package shop; message Bid { required string item = 1; optional int64 cents = 2; }'
    values: ProtobufValues[Any] = ProtobufValues(compiled(text), None, None)
    with pytest.raises(ValueError, match=r"it has no item, which shop\.Bid requires"):
        parser(values, text)(b"\0\x10\3")
    lots = ProtobufValues(msgspec.defstruct("Lot", [("cents", int, 5)]), compiled(text), None)
    with pytest.raises(UsageError, match=r"it: a shop\.Bid needs item, too"):
        lots.schema()
    assert parser(lots, text)(b"\0\x0a\1x").cents == 5  # it is not set, so the type's default counts


def test_a_message_is_a_value_of_a_stream() -> None:
    """Fields that the class does not know are kept, as in all programs with Protobuf."""
    newer, data = written("message Bid { string item = 1; string more = 9; }", item="x", more="y")
    of_class = compiled(BID)
    value = parser(ProtobufValues(of_class, None, None), newer)(data)
    codec = codec_for(of_class, "bids")
    again = codec.decode(codec.encode(value))
    assert (again, again.item) == (value, "x")
    assert ProtobufValues(of_class, None, None).encode(again) == data
    with pytest.raises(TypeError, match=r"a Bid, and not a message shop\.Bid"):
        ProtobufValues(of_class, None, None).encode(Bid("x"))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([("items", str)], r"it\.items: the message shop\.Bid has no such field"),
        ([("cents", mw.Timestamp)], r"it\.cents: a number does not say its unit"),
        ([("at", int)], "is read as mw.Timestamp, or as a datetime with a time zone"),
        ([("at", Annotated[datetime, msgspec.Meta(tz=False)])], "a datetime with a time zone"),
        ([("cents", str)], r"it\.cents: str is not the type of an int64"),
        ([("cents", float)], r"it\.cents: float is not the type of an int64"),
        ([("cents", Color)], r"it\.cents: enum is not the type of an int64"),
        ([("item", bytes)], r"it\.item: bytes is not the type of a string"),
        ([("item", list[str])], r"it\.item: list is not the type of a string"),
        ([("item", int | str)], r"it\.item: union is not the type of a string"),
        ([("color", bytes)], r"it\.color: bytes is not the type of an enum"),
        ([("tags", str)], r"it\.tags: a repeated field is read as a list"),
        ([("tags", list[int])], r"it\.tags\[\]: int is not|it\.tags: int is not the type of a string"),
        ([("prices", list[int])], r"it\.prices: a map is read as a dict"),
        ([("prices", dict[int, int])], r"it\.prices: int is not the type of a string"),
        ([("seller", str)], r"it\.seller: a message shop\.Seller is read as a Struct"),
        ([("seller", msgspec.defstruct("S", [("x", int)]))], r"it\.seller\.x: the message shop\.Seller has no such"),
        ([("span", float)], r"it\.span: a google\.protobuf\.Duration is read as a timedelta"),
    ],
)  # fmt: skip
def test_a_type_that_no_message_becomes_is_named(fields: list[Any], error: str) -> None:
    message = compiled(proto3(
        TIME + 'import "google/protobuf/duration.proto";'
        "enum Color { NONE = 0; } message Seller { string name = 1; } message Bid {"
        "string item = 1; int64 cents = 2; google.protobuf.Timestamp at = 4; Color color = 5; repeated string tags = 6;"
        "map<string, int64> prices = 7; Seller seller = 8; google.protobuf.Duration span = 9; }"
    ))  # fmt: skip
    with pytest.raises(UsageError, match=error):
        ProtobufValues(msgspec.defstruct("Wrong", fields), message, None)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([("items", str, "x")], r"it\.items: the message shop\.Bid has no such field"),
        ([("item", str | None)], r"it\.item: it may be None or missing, but .*: write `optional`"),
        ([("color", Enum("Color", {"A": "COLOR_RED", "B": "PINK"}))], r"it\.color: shop\.Color has no 'PINK'"),
    ],
)  # fmt: skip
def test_a_type_that_cannot_be_written_is_named(fields: list[Any], error: str) -> None:
    """A sink refuses it when it is declared. A source may read it."""
    values = ProtobufValues(msgspec.defstruct("Wrong", fields), compiled(BID), None)
    with pytest.raises(UsageError, match=error):
        values.schema()
    assert parser(values, BID)(b"\0\x0a\x01x\x28\0")


class Partly(TypedDict, total=False):
    item: str
    by: str


def test_a_typed_dict_may_miss_what_a_message_may_miss() -> None:
    partly = ProtobufValues(Partly, compiled(BID), None)
    assert parser(partly, BID)(b"\0\x0a\x01x") == {"item": "x"}
    assert partly.encode({"item": "x", "by": "y"}) == b"\0\x0a\x01x\x1a\x01y"
    with pytest.raises(UsageError, match=r"it\.item: it may be None or missing"):
        partly.schema()


T = TypeVar("T")


class Box(msgspec.Struct, Generic[T]):
    at: T


def test_a_generic_type_may_have_times() -> None:
    values = ProtobufValues(Box[mw.Timestamp], compiled(BID), None)
    assert parser(values, BID)(values.encode(Box(mw.Timestamp(NOON)))) == Box(NOON)
    with pytest.raises(UsageError, match=r"it\.at: .* is read as mw\.Timestamp"):
        ProtobufValues(Box[int], compiled(BID), None)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"sold": "x", "withdrawn": Withdrawn()}, "one of sold and withdrawn, and not both"),
        ({"count": 2**63}, "out of range"),
        ({"big": -1}, "out of range"),
        ({"single": 1e39}, "too large for a float of Protobuf"),
        ({"wire_name": 2**31}, "out of range"),
        ({"moment": datetime(2026, 1, 1)}, "has no time zone"),
        ({"at": 2**62}, "not valid"),
        ({"symbol": "PINK"}, r"it\.symbol is 'PINK', and shop\.Color does not have it"),
        ({"name": 5}, "bad argument type|string"),
    ],
)  # fmt: skip
def test_a_value_that_a_message_cannot_have_is_an_error(change: dict[str, Any], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        VALUES.encode(msgspec.structs.replace(SOME, **change))


def test_a_schema_that_is_given_is_written_with() -> None:
    text = "// ours\n" + proto3("message First {} message Bid { string item = 1; }")
    of_class = compiled(BID)
    values: ProtobufValues[Any] = ProtobufValues(of_class, None, text)
    assert values.schema() == text
    assert values.name() == "shop.Bid"
    assert values.encode(of_class(item="x")) == b"\x02\x02\x0a\x01x"
    for wrong, error in (
        ("message Bid {}", r"the message shop\.Bid, and the text has none"),
        ("message {", "text of a .proto"),
    ):
        with pytest.raises(UsageError, match=error):
            ProtobufValues(compiled(BID), None, wrong)


def test_a_class_must_be_given() -> None:
    none: tuple[Any, ...] = (Bid, str, list[int])
    for kind in none:
        with pytest.raises(UsageError, match="is no generated class of Protobuf: give that one, too"):
            ProtobufValues(kind, None, None)
    neither: Any = list[int] | set[int]
    wrong: tuple[Any, ...] = (neither, str, dict[str, int])
    for one in wrong:
        with pytest.raises(UsageError, match="can be read as"):
            ProtobufValues(one, compiled(BID), None)
