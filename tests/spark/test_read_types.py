"""Columns of Arrow as Spark expects them. Pure."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

import msgspec
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from millwheel.client.arrow.state import StateColumns
from millwheel.rpc.v1 import state_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.record_schema import record_schema
from millwheel.sdk.schema import state_schema
from millwheel.sdk.tables.columns import StreamColumns


class Inner(msgspec.Struct):
    x: int
    days: list[date]


class Everything(msgspec.Struct):
    flag: bool
    number: int | None
    ratio: float
    text: str
    raw: bytes
    at: datetime
    local: Annotated[datetime, msgspec.Meta(tz=False)]
    took: timedelta
    inner: list[Inner]
    panes: dict[tuple[int, int], dict[str, Inner]]
    rest: Any


VALUE = Everything(
    True, None, 0.5, "ü", b"\xff", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1), timedelta(seconds=1),
    [Inner(1, [date(2026, 1, 1)])], {(1, 2): {"a": Inner(2, [])}}, [1],
)  # fmt: skip


def test_records_of_all_types_are_as_spark_expects_them() -> None:
    spec = specs.StreamSpec(name="t/s", format=specs.VALUE_FORMAT_MSGPACK, schema=record_schema(Everything))
    columns = StreamColumns(spec, "offset", "when")
    batch = columns.batch(0, [msgspec.msgpack.encode(VALUE)], [5])
    wanted = to_arrow_schema(from_arrow_schema(columns.schema), timezone="UTC")
    cast = batch.cast(wanted)
    cast.validate(full=True)
    assert cast.schema.equals(wanted)
    assert cast.to_pylist() == batch.to_pylist()


@pytest.mark.parametrize("kind", [int, dict[str, int], Everything, None])
def test_states_are_as_spark_expects_them(kind: Any) -> None:
    columns = StateColumns("t/c", state_schema(kind, None, 1))
    batch = columns.batch([wire.ListedState(key=b"k")])
    batch.validate(full=True)
    assert batch.to_pylist() == [{"key": "k", "state": None, "timers": [], "hold_us": None}]
    wanted = to_arrow_schema(from_arrow_schema(columns.schema), timezone="UTC")
    assert batch.cast(wanted).schema.equals(wanted)
