"""Records of each type as columns of Arrow. Pure."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import UsageError, ValueDecodeError
from millwheel.sdk.record_schema import record_schema
from millwheel.sdk.tables.columns import StreamColumns, ValueColumn

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAIVE = NOON.replace(tzinfo=None)
MSGPACK = specs.VALUE_FORMAT_MSGPACK


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct):
    x: int
    tags: set[str] = msgspec.field(default_factory=set)


class Placed(msgspec.Struct, array_like=True, tag="placed"):
    a: int
    b: str | None = None


class Point(NamedTuple):
    x: float
    y: float


class Node(msgspec.Struct):
    name: str
    below: list[Node] = msgspec.field(default_factory=list)


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


def spec_of(kind: Any, form: specs.ValueFormat.ValueType = MSGPACK) -> specs.StreamSpec:
    return specs.StreamSpec(name="t/s", format=form, schema=record_schema(kind))


def column(kind: Any, *values: Any) -> tuple[Any, list[Any]]:
    """The column that values of a type become: its type, and its values as Python has them."""
    made = ValueColumn(MSGPACK, record_schema(kind))
    encoded = [msgspec.msgpack.encode(value) for value in values]
    return made.type, made.array(encoded, range(len(encoded)), "value").to_pylist()


PAIR = pa.struct([("_1", pa.int64()), ("_2", pa.int64())])
INNER = pa.struct([("x", pa.int64()), ("tags", pa.list_(pa.string()))])


@pytest.mark.parametrize(
    ("kind", "value", "arrow", "shown"),
    [
        (bool, True, pa.bool_(), True),
        (int, -5, pa.int64(), -5),
        (Annotated[int, msgspec.Meta(ge=0)], 5, pa.int64(), 5),
        (float, 0.5, pa.float64(), 0.5),
        (str, "ü", pa.string(), "ü"),
        (list[bytes], [b"\xff"], pa.list_(pa.binary()), [b"\xff"]),
        (datetime, NOON.astimezone(timezone(timedelta(hours=-5))), pa.timestamp("us", "UTC"), NOON),
        (datetime, NAIVE, pa.timestamp("us", "UTC"), NOON),
        (Annotated[datetime, msgspec.Meta(tz=False)], NAIVE, pa.timestamp("us"), NAIVE),
        (date, date(2026, 1, 1), pa.date32(), date(2026, 1, 1)),
        (time, time(1, 2), pa.string(), "01:02:00"),
        (timedelta, timedelta(days=-1, microseconds=5), pa.duration("us"), timedelta(days=-1, microseconds=5)),
        (Decimal, Decimal("0.1000000000000000000000000001"), pa.string(), "0.1000000000000000000000000001"),
        (UUID, UUID(int=7), pa.string(), str(UUID(int=7))),
        (Colour, Colour.BLUE, pa.string(), "blue"),
        (Literal[1, 2], 2, pa.int64(), 2),
        (Literal[1, "one"], "one", pa.string(), '"one"'),
        (list[int], [1, 2], pa.list_(pa.int64()), [1, 2]),
        (set[date], {date(2026, 1, 1)}, pa.list_(pa.date32()), [date(2026, 1, 1)]),
        (tuple[int, ...], (1, 2), pa.list_(pa.int64()), [1, 2]),
        (tuple[int, str], (1, "a"), pa.struct([("_1", pa.int64()), ("_2", pa.string())]), {"_1": 1, "_2": "a"}),
        (dict[str, float], {"a": 1.5}, pa.map_(pa.string(), pa.float64()), [("a", 1.5)]),
        (dict[int, Inner], {3: Inner(1)}, pa.map_(pa.int64(), INNER), [(3, {"x": 1, "tags": []})]),
        (Inner, Inner(1, {"a"}), INNER, {"x": 1, "tags": ["a"]}),
        (Placed, Placed(1, "b"), pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": "b"}),
        (Point, Point(1.0, 2.0), pa.struct([("x", pa.float64()), ("y", pa.float64())]), {"x": 1.0, "y": 2.0}),
        (int | None, None, pa.int64(), None),
        (int | float, 2, pa.float64(), 2.0),
        (int | str, 2, pa.string(), "2"),
        (Cat | Dog, Dog("Rex"), pa.string(), '{"type":"Dog","name":"Rex"}'),
        (dict, {"a": [1, None]}, pa.string(), '{"a":[1,null]}'),
        (dict[tuple[int, int], int], {(1, 2): 3}, pa.map_(PAIR, pa.int64()), [({"_1": 1, "_2": 2}, 3)]),
        (dict[tuple[int, ...], int], {(1, 2): 3}, pa.string(), "{(1, 2): 3}"),
        (Any, {"a": b"\x00"}, pa.string(), '{"a":"AA=="}'),
    ],
)  # fmt: skip
def test_each_type_has_its_column(kind: Any, value: Any, arrow: Any, shown: Any) -> None:
    assert column(kind, value) == (arrow, [shown])


def test_a_type_that_contains_itself_ends_as_json() -> None:
    kind, (value,) = column(Node, Node("a", [Node("b", [Node("c")])]))
    assert kind == pa.struct([("name", pa.string()), ("below", pa.list_(pa.string()))])
    assert value == {"name": "a", "below": ['{"name":"b","below":[{"name":"c","below":[]}]}']}


class Everything(msgspec.Struct):
    number: int
    text: str | None
    at: datetime
    inner: Inner
    many: dict[str, list[float]]
    more: Any = None


@given(
    st.lists(
        st.builds(
            Everything,
            number=st.integers(-(1 << 63), (1 << 63) - 1),
            text=st.none() | st.text(),
            at=st.datetimes(timezones=st.just(UTC)),
            inner=st.builds(Inner, x=st.integers(0, 9), tags=st.sets(st.text(max_size=3), max_size=1)),
            many=st.dictionaries(st.text(max_size=3), st.lists(st.floats(allow_nan=False)), max_size=3),
            more=st.none() | st.integers(0, 9),
        ),
        min_size=1,
    )
)
def test_the_fields_of_records_are_columns(records: list[Everything]) -> None:
    columns = StreamColumns(spec_of(Everything), "offset", "when")
    values = [msgspec.msgpack.encode(record) for record in records]
    batch = columns.batch(100, values, list(range(len(values))))
    batch.validate(full=True)
    assert batch.schema == columns.schema
    for number, (row, record) in enumerate(zip(batch.to_pylist(), records, strict=True)):
        assert row == {
            "number": record.number,
            "text": record.text,
            "at": record.at,
            "inner": {"x": record.inner.x, "tags": list(record.inner.tags)},
            "many": list(record.many.items()),
            "more": None if record.more is None else str(record.more),
            "offset": 100 + number,
            "when": datetime(1970, 1, 1, 0, 0, 0, number, UTC),
        }


def test_a_field_that_a_record_lacks_is_null() -> None:
    columns = StreamColumns(spec_of(Inner))
    assert columns.batch(0, [msgspec.msgpack.encode({"x": 1, "new": 2})], [0]).to_pylist() == [{"x": 1, "tags": None}]


@pytest.mark.parametrize(
    ("value", "why"),
    [({"x": "one"}, "int64"), ({"x": 1 << 63}, "too large"), (5, "get"), ({"x": 1, "tags": 7}, "7")],
)
def test_a_record_of_another_type_is_named_by_its_offset(value: Any, why: str) -> None:
    columns = StreamColumns(spec_of(Inner))
    encoded = [msgspec.msgpack.encode(one) for one in ({"x": 1, "tags": []}, value)]
    with pytest.raises(ValueDecodeError, match=f"'t/s', offset 8: its value is not of the declared type: .*{why}"):
        columns.batch(7, encoded, [0, 0])


def test_bytes_that_are_no_value_are_named() -> None:
    with pytest.raises(ValueDecodeError, match="stream 't/s', offset 7"):
        StreamColumns(spec_of(dict)).batch(7, [b"\xc1"], [0])


@pytest.mark.parametrize("form", [specs.VALUE_FORMAT_RAW, specs.VALUE_FORMAT_PROTOBUF, specs.VALUE_FORMAT_CUSTOM])
def test_what_is_no_messagepack_stays_as_it_is(form: specs.ValueFormat.ValueType) -> None:
    columns = StreamColumns(specs.StreamSpec(name="t/s", format=form))
    assert columns.batch(0, [b"\x00\xff"], [0]).to_pylist() == [{"value": b"\x00\xff"}]


def test_messagepack_of_an_unknown_type_is_json() -> None:
    columns = StreamColumns(specs.StreamSpec(name="t/s", format=MSGPACK))
    assert columns.batch(0, [msgspec.msgpack.encode([1, "a"])], [0]).to_pylist() == [{"value": '[1,"a"]'}]


def test_a_column_has_one_name_only() -> None:
    with pytest.raises(UsageError, match="has a column 'x' already"):
        StreamColumns(spec_of(Inner), offset_column="x")
    with pytest.raises(UsageError, match="has a column 'at' already"):
        StreamColumns(spec_of(Inner), "at", "at")
