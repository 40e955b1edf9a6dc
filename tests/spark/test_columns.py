"""Arrow batches as records, compared with Arrow's own values of each row. Pure."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

import pyarrow as pa

import millwheel as mw
from millwheel.injectors.spark.columns import RowReader
from millwheel.injectors.spark.errors import RowError
from millwheel.injectors.spark.options import SinkOptions
from millwheel.model.time import MAX_TIMESTAMP, from_datetime

OPTIONS = SinkOptions("flights", "id", "at", watermark_column="known")
NOW = from_datetime(datetime(2026, 11, 22, tzinfo=UTC))
TIME = pa.timestamp("us", tz="America/New_York")
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("at", TIME),
        ("known", pa.int64()),
        ("n", pa.float64()),
        ("times", pa.list_(TIME)),
        ("nested", pa.struct([("t", TIME), ("text", pa.string())])),
        ("named", pa.map_(pa.string(), TIME)),
    ]
)
moments = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(lambda one: one.replace(tzinfo=UTC))
rows = st.fixed_dictionaries(
    {
        "id": st.text(min_size=1),
        "at": moments,
        "known": st.integers(-(2**62), 2**62),
        "n": st.none() | st.floats(allow_nan=False),
        "times": st.none() | st.lists(st.none() | moments, max_size=3),
        "nested": st.none() | st.fixed_dictionaries({"t": st.none() | moments, "text": st.text()}),
        "named": st.none() | st.dictionaries(st.text(), st.none() | moments, max_size=2),
    }
)


def plain(value: Any) -> Any:
    """A value by the sink's rules, one at a time."""
    if isinstance(value, datetime):
        return from_datetime(value)
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def arrow(given_rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows as Spark passes them to the sink."""
    cells = [{**row, "named": None if row["named"] is None else [*row["named"].items()]} for row in given_rows]
    return pa.RecordBatch.from_pylist(cells, SCHEMA)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(rows, min_size=1, max_size=4), st.lists(rows, min_size=1, max_size=4))
def test_rows_become_mappings_with_times_in_microseconds(
    first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    reader = RowReader(OPTIONS, 0, NOW)
    for start, some in ((0, first), (len(first), second)):
        read = reader.read(arrow(some))
        assert read.values == [plain(row) for row in some]
        assert read.ids == [row["id"] for row in some]
        assert read.timestamps == [from_datetime(row["at"]) for row in some]
        assert read.newest == max(row["known"] for row in some)
        assert read.first_row == start


ROW = {
    "id": "a", "at": datetime(2026, 1, 1, tzinfo=UTC), "known": 5, "n": 1.0, "times": [], "nested": None, "named": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, r"stream 'flights': the row \(row 13 of partition 4\): column 'id': the id is null"),
        ({"id": ""}, r"the row with id '' \(row 13 of partition 4\): column 'id': the id is ''"),
        ({"at": None}, r"the row with id 'a' \(row 13 of partition 4\): column 'at': the time is null"),
        ({"known": None}, r"the row with id 'a' .*column 'known': the time is null"),
        ({"known": MAX_TIMESTAMP}, r"column 'known': the time is 9223372036854775807"),
    ],
)
def test_a_row_that_cannot_be_a_record_is_named(change: dict[str, Any], message: str) -> None:
    reader = RowReader(OPTIONS, 4, NOW)
    reader.read(arrow([ROW] * 10))
    with pytest.raises(RowError, match=message):
        reader.read(arrow([ROW, ROW, ROW, {**ROW, **change}, ROW]))


@pytest.mark.parametrize(("kind", "ids"), [(pa.int32(), [7, -8]), (pa.binary(), [b"\x00", b"x"])])
def test_ids_may_be_numbers_or_bytes(kind: pa.DataType, ids: list[Any]) -> None:
    batch = pa.record_batch([pa.array(ids, kind), pa.array([1, 2])], names=["id", "at"])
    read = RowReader(SinkOptions("flights", "id", "at"), 0, NOW).read(batch)
    assert (read.ids, read.newest) == (ids, 2)


def test_times_before_1970_are_negative() -> None:
    at = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)
    assert RowReader(OPTIONS, 0, NOW).read(arrow([{**ROW, "at": at}])).timestamps == [-1]


def test_times_that_are_probably_in_another_unit_are_refused() -> None:
    strict = SinkOptions("flights", "id", "at", any_timestamp=False)
    batch = pa.record_batch([pa.array(["a", "b"]), pa.array([NOW, 1_700_000_000])], names=["id", "at"])
    said = r"row with id 'b' .*column 'at': .*as seconds it is 2023-11-14T22:13:20Z: did you mean timestamp_seconds"
    with pytest.raises(RowError, match=said):
        RowReader(strict, 0, NOW).read(batch)


FLAT = pa.schema(
    [
        *(("id", pa.int16()), ("at", TIME), ("known", pa.int64()), ("ok", pa.bool_()), ("n", pa.float32())),
        *(("text", pa.string()), ("raw", pa.binary()), ("then", TIME), ("time", pa.int8())),
    ]
)
flat_rows = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**15), 2**15 - 1),
        "at": moments,
        "known": st.integers(-(2**62), 2**62),
        "ok": st.booleans(),
        "n": st.none() | st.floats(allow_nan=False, width=32),
        "text": st.text(),
        "raw": st.binary(),
        "then": st.none() | moments,
        "time": st.integers(-128, 127),
    }
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(flat_rows, min_size=1, max_size=6), st.integers(0, 3))
def test_plain_rows_stay_columns(given_rows: list[dict[str, Any]], start: int) -> None:
    """What is made of the columns is what is made of each row."""
    batch = pa.RecordBatch.from_pylist(given_rows, FLAT)[min(start, len(given_rows) - 1) :]
    rows = RowReader(OPTIONS, 0, NOW).read(batch)
    assert rows.are_plain
    found = [(row["id"], row["at"], msgspec.msgpack.encode(row)) for row in rows.batch.to_pylist()]
    wanted = zip(rows.ids, rows.timestamps, map(msgspec.msgpack.encode, rows.values), strict=True)
    assert found == list(wanted)


@pytest.mark.parametrize("more", [pa.array([[1], [2]]), pa.array([None, None])], ids=["lists", "nulls"])
def test_lists_and_columns_of_nulls_go_by_rows(more: pa.Array) -> None:
    batch = pa.record_batch({"id": ["a", "b"], "at": [1, 2], "more": more})
    rows = RowReader(SinkOptions("flights", "id", "at", any_timestamp=True), 0, NOW).read(batch)
    assert not rows.are_plain


class Sold(msgspec.Struct):
    """What a computation declares for the columns of the row."""

    day: date
    price: Decimal
    local: Annotated[datetime, msgspec.Meta(tz=False)]
    took: timedelta
    opens: time
    days: dict[date, Decimal | None]
    seen: dict[mw.Timestamp, list[date]]


def test_days_decimals_and_intervals_are_what_types_take() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    row = {
        "id": "a", "at": at, "day": date(2026, 2, 28), "price": Decimal("1.50"),
        "local": datetime(2026, 1, 1, 12, 0, 1),
        "took": timedelta(days=-1, microseconds=5), "opens": time(9, 30),
        "days": [(date(1, 1, 1), Decimal("12345678901234567890.12")), (date(9999, 12, 31), None)],
        "seen": [(at, [date(1969, 12, 31)])],
    }  # fmt: skip
    wide = pa.decimal128(38, 2)
    kinds = pa.schema({
        "id": pa.string(), "at": TIME, "day": pa.date32(), "price": pa.decimal128(10, 2), "local": pa.timestamp("us"),
        "took": pa.duration("us"), "opens": pa.time64("ns"), "days": pa.map_(pa.date32(), wide),
        "seen": pa.map_(TIME, pa.list_(pa.date32())),
    })  # fmt: skip
    read = RowReader(SinkOptions("flights", "id", "at"), 0, NOW).read(pa.RecordBatch.from_pylist([row], kinds))
    assert not read.are_plain
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(read.values[0]), type=Sold) == Sold(
        date(2026, 2, 28), Decimal("1.50"), datetime(2026, 1, 1, 12, 0, 1), timedelta(days=-1, microseconds=5),
        time(9, 30), {date(1, 1, 1): Decimal("12345678901234567890.12"), date(9999, 12, 31): None},
        {from_datetime(at): [date(1969, 12, 31)]},
    )  # fmt: skip


DAYS = st.none() | st.integers(-(2**31), 2**31 - 1) | st.integers(-719_162, 2_932_896)
"""Days since 1970. The last ones are those of the years 1 to 9999."""


@given(st.lists(st.tuples(DAYS, st.none() | st.lists(DAYS, max_size=2), DAYS), min_size=1, max_size=4))
def test_dates_without_a_python_value_are_refused(rows: list[tuple[Any, Any, Any]]) -> None:
    def odd(day: int | None) -> bool:
        return day is not None and not -719_162 <= day <= 2_932_896

    day = pa.date32()
    named = [[("x", row[2])] if number % 2 else [] for number, row in enumerate(rows)]
    batch = pa.record_batch({
        "id": pa.array([f"id-{number}" for number in range(len(rows))]), "at": pa.array([1] * len(rows)),
        "day": pa.array([row[0] for row in rows], day),
        "nested": pa.array([{"days": row[1]} for row in rows], pa.struct({"days": pa.list_(day)})),
        "named": pa.array(named, pa.map_(pa.string(), day)),
    })  # fmt: skip
    wrong = {
        name: [number for number, days in enumerate(column) if any(map(odd, days))]
        for name, column in (
            ("day", [[row[0]] for row in rows]),
            ("nested", [row[1] or [] for row in rows]),
            ("named", [[day for _, day in one] for one in named]),
        )
    }
    reader = RowReader(SinkOptions("flights", "id", "at"), 0, NOW)
    column = next((name for name, found in wrong.items() if found), None)
    if column is None:
        assert len(reader.read(batch)) == len(rows)
        return
    with pytest.raises(RowError, match=f"column '{column}': a date is before the year 1 or after 9999") as refused:
        reader.read(batch)
    assert refused.value.id == f"id-{wrong[column][0]}"


def test_entries_of_a_null_map_are_no_dates() -> None:
    """Arrow allows a null map to have a range of entries. They are no values."""
    kind = pa.map_(pa.string(), pa.date32())
    days = pa.array([{"key": "x", "value": 2**31 - 1}], pa.struct([("key", pa.string()), ("value", pa.int32())]))
    entries = pa.StructArray.from_arrays(
        [days.field("key"), days.field("value").cast(pa.date32())], fields=[kind.key_field, kind.item_field]
    )
    for null in (True, False):
        valid, offsets = pa.py_buffer(b"\x00" if null else b"\x01"), pa.array([0, 1], pa.int32()).buffers()[1]
        named = pa.MapArray.from_buffers(kind, 1, [valid, offsets], children=[entries])
        batch = pa.record_batch({"id": pa.array(["a"]), "at": pa.array([1]), "named": named})
        reader = RowReader(SinkOptions("flights", "id", "at"), 0, NOW)
        if null:
            assert reader.read(batch).values == [{"id": "a", "at": 1, "named": None}]
        else:
            with pytest.raises(RowError, match="column 'named': a date is before the year 1 or after 9999"):
                reader.read(batch)


def test_days_and_decimals_stay_columns() -> None:
    batch = pa.record_batch({
        "id": pa.array(["a"]), "at": pa.array([1]), "day": pa.array([date(2026, 1, 1)]),
        "price": pa.array([Decimal("-0.10")], pa.decimal128(38, 18)),
    })  # fmt: skip
    rows = RowReader(SinkOptions("flights", "id", "at"), 0, NOW).read(batch)
    assert rows.are_plain
    assert rows.batch.select(["day", "price"]).to_pylist() == [{"day": "2026-01-01", "price": "-0.100000000000000000"}]
