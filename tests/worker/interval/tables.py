"""A computation that produces columns of Arrow, as the reader of a source does."""

from __future__ import annotations

from array import array
from typing import Any, Final

import msgspec
import pyarrow as pa

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.effects import ProducedTable
from tests.worker.interval.reads import CONSUMERS

LOG: Final = IncarnationId("log.1")
MOST: Final = 1 << 20
SINK: Final = IncarnationId("table.1")
TARGETS: Final = ((CONSUMERS[0], "key"), (CONSUMERS[1], "number"), (LOG, b""), (SINK, b"b"))


def table_of(*records: tuple[str, int], targets: Any = TARGETS) -> ProducedTable:
    """A read of records with a text and a number: keys of two consumers. A log and a sink of one shard have none."""
    columns = {"key": [key for key, _ in records], "number": pa.array([at for _, at in records], pa.int64())}
    columns["none"] = pa.array([at if at % 2 else None for _, at in records], pa.int64())
    times = array("q", [at for _, at in records])
    return ProducedTable("s", RecordColumns(pa.record_batch(columns), times), targets)


class Row(msgspec.Struct):
    key: str
    number: int
    none: int | None


class ReadsTables(mw.Computation[tuple[str, str], None]):
    """Produces a table for each record that it gets, and one record behind it."""

    _feeds = True

    def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
        keys = [f"{key}{record.value[1]}" for key in ("a", "y", "a", "z")]
        table = table_of(*zip(keys, (14, 13, 12, 11), strict=True))
        output = ctx._scope.outputs["out"]  # noqa: SLF001  # readers of sources alone produce tables
        if record.value[1] != "row":
            assert ctx._produce_table(output, table.records, MOST)  # noqa: SLF001  # see above
            assert not ctx._produce_table(output, table.records, MOST), "a key has one read in a commit"  # noqa: SLF001
        ctx.produce("other", record.value[1], timestamp=mw.Timestamp(9))
