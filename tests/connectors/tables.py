"""Records that come to a sink as columns: the deliveries of a test become tables before an interval gets them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import millwheel as mw
from millwheel.connectors import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.rpc.columns import RecordColumns
from millwheel.worker.interval.receiver import IntervalReceiver
from millwheel.worker.messages import Delivery

deliver = IntervalReceiver.deliver


class Trade(msgspec.Struct):
    """A record with a field of each type that a column of a delivery may have."""

    item: str
    cents: int
    share: float
    odd: bool
    raw: bytes
    at: mw.Timestamp
    note: str | None = None
    left: int | None = None


COLUMNS = pa.schema(
    [
        *(("item", pa.string()), ("cents", pa.int64()), ("share", pa.float64()), ("odd", pa.bool_())),
        *(("raw", pa.binary()), ("at", pa.int64()), ("note", pa.string()), ("left", pa.int64())),
    ]
)


class Kept(Sink[Any], SinkWriter[Any]):
    """Keeps the batches, with a table of each."""

    def __init__(self, kind: Any = Trade) -> None:
        self.kind = kind
        self.batches: list[SinkBatch[Any]] = []
        self.tables: list[Any] = []

    async def open_writer(self, place: SinkShard) -> SinkWriter[Any]:
        return self

    async def write(self, batch: SinkBatch[Any]) -> None:
        self.batches.append(batch)
        self.tables.append(batch.to_arrow(self.kind))


def as_table(receiver: IntervalReceiver, delivery: Delivery, *, one_key: bool) -> Any:
    """Deliver trades as columns. ``one_key``: as an injector sends tables to a sink with one shard."""
    if isinstance(delivery.values, list) and delivery.stream.endswith("trades"):
        rows = [msgspec.msgpack.decode(value) for value in delivery.values]
        records = RecordColumns(pa.RecordBatch.from_pylist(rows, COLUMNS), array("q", delivery.timestamps), b"0")
        keys = records.keys() if one_key else delivery.keys
        delivery.keys, delivery.values, delivery.timestamps = keys, records, records.timestamps
    return deliver(receiver, delivery)


@contextmanager
def by_tables(really: bool = True, *, one_key: bool = True) -> Iterator[None]:
    """Whether trades come as tables. ``one_key``: to a sink with one shard."""
    with pytest.MonkeyPatch.context() as patches:
        if really:
            patches.setattr(IntervalReceiver, "deliver", partialmethod(as_table, one_key=one_key))
        yield
