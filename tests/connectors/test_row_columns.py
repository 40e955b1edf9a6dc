"""Records as tables: each field of all records is converted at once, as row by row (4.3)."""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.connectors import SinkBatch
from millwheel.connectors.contents import BatchRecords
from millwheel.connectors.tables import row_columns
from millwheel.rpc.columns import RecordColumns


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Rank(IntEnum):
    LOW = 1
    HIGH = 2


class Part(msgspec.Struct, rename="camel"):
    the_name: str
    price: Decimal | None = None
    sizes: list[int] = []


class Whole(msgspec.Struct, rename={"text": "words"}):
    """A field of each type that a column of a file may have."""

    text: str
    number: int
    share: float
    flag: bool
    raw: bytes
    at: mw.Timestamp
    when: datetime
    day: date
    price: Decimal
    id: UUID
    hour: time
    length: timedelta
    colour: Colour
    rank: Rank
    kind: Literal["a", "b"]
    part: Part
    parts: list[Part]
    pair: tuple[int, ...]
    tags: frozenset[str]
    named: dict[str, list[float]]
    maybe: int | None
    maybe_part: Part | None
    other: str = "x"


ints = st.integers(-(1 << 63), (1 << 63) - 1)
zones = st.sampled_from([UTC, timezone(timedelta(hours=3))])
parts = st.builds(Part, st.text(max_size=3), st.none() | st.decimals(allow_nan=False), st.lists(ints, max_size=2))
wholes = st.builds(
    Whole,
    text=st.text(max_size=3),
    number=ints,
    share=st.floats(allow_nan=False),
    flag=st.booleans(),
    raw=st.binary(max_size=3),
    at=ints.map(mw.Timestamp),
    when=st.datetimes(timezones=zones, min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1)),
    day=st.dates(),
    price=st.decimals(allow_nan=False),
    id=st.uuids(),
    hour=st.times(),
    length=st.timedeltas(timedelta(-99), timedelta(99)),
    colour=st.sampled_from(Colour),
    rank=st.sampled_from(Rank),
    kind=st.sampled_from(["a", "b"]),
    part=parts,
    parts=st.lists(parts, max_size=2),
    pair=st.lists(ints, max_size=2).map(tuple),
    tags=st.frozensets(st.text(max_size=2), max_size=1),
    named=st.dictionaries(st.text(max_size=2), st.lists(st.floats(allow_nan=False), max_size=2), max_size=2),
    maybe=st.none() | ints,
    maybe_part=st.none() | parts,
)


@pytest.mark.guarantee("G1", section="4.3")
@given(st.lists(wholes, max_size=3))
def test_fields_are_converted_as_rows_are(values: list[Whole]) -> None:
    rows = [msgspec.to_builtins(value, builtin_types=(bytes, datetime, date)) for value in values]
    columns = row_columns(Whole)
    expected = pa.Table.from_pylist(rows, columns.schema)
    found = columns.table(values)
    assert found.equals(expected)
    assert found.schema.equals(expected.schema)


def test_a_sink_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    class Some(msgspec.Struct):
        number: int

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(mw.UsageError, match=r"install openmillwheel\[arrow\]"):
        SinkBatch(1, [(Some(1), mw.Timestamp(1))], "", "").to_arrow(Some)


@dataclass
class Plain:
    number: int
    note: str | None = None


class Short(msgspec.Struct, omit_defaults=True):
    number: int
    note: str | None = "none"


class Child(Part):
    more: int = 0


@pytest.mark.parametrize(
    ("kind", "values", "rows"),
    [
        (Plain, [Plain(1, "a"), Plain(2)], [{"number": 1, "note": "a"}, {"number": 2, "note": None}]),
        (Short, [Short(1, "none"), Short(2, "b")], [{"number": 1, "note": None}, {"number": 2, "note": "b"}]),
        (Part, [Child("a", more=3)], [{"theName": "a", "price": None, "sizes": []}]),
    ],
    ids=["dataclass", "omits", "subclass"],
)
def test_other_values_go_row_by_row(kind: Any, values: list[Any], rows: list[Any]) -> None:
    assert row_columns(kind).table(values).to_pylist() == rows


class Few(msgspec.Struct):
    number: float
    at: mw.Timestamp
    missing: str | None = None


class Given(msgspec.Struct):
    number: float
    at: int


class Whole64(msgspec.Struct):
    number: int
    at: int


@pytest.mark.parametrize("kind", [Given, Whole64])
def test_columns_become_those_of_a_sink_of_another_type(kind: Any) -> None:
    """A column that it lacks is empty. One of another type is read from the values."""
    values = [kind(number, number + 5) for number in range(3)]
    plain = pa.float64() if kind is Given else pa.int64()
    schema = pa.schema([("number", plain), ("at", pa.int64())])
    batch = pa.RecordBatch.from_pylist([msgspec.to_builtins(value) for value in values], schema)
    records = RecordColumns(batch, array("q", range(3)))
    decode = msgspec.msgpack.Decoder(kind).decode
    content = BatchRecords([records], lambda encoded: [decode(one) for one in encoded], kind)
    given, by_rows = (SinkBatch(1, some, "", "") for some in (content, list(content)))
    assert given.to_arrow(Few).equals(by_rows.to_arrow(Few))
    assert given.to_arrow(Few).column("at").cast(pa.int64()).to_pylist() == [5, 6, 7]
    assert (row_columns(Few).of_columns(batch) is None) is (kind is Whole64)
