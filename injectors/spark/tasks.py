"""The work of a Spark task on its partition: every row becomes a record, ACKed before the task ends."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext

from millwheel.client.control import ControlClient
from millwheel.client.injector import BatchOf, Injector, InjectorError
from millwheel.injectors.batches import finish_task, open_task
from millwheel.injectors.spark.columns import RowReader, Rows
from millwheel.injectors.spark.driver import TaskReport
from millwheel.injectors.spark.errors import SinkError
from millwheel.injectors.spark.loop import run
from millwheel.injectors.spark.options import SinkOptions
from millwheel.rpc.clock import wall_now
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import MillwheelError

__all__ = ["Partition", "micro_batch", "write_partition"]

log = logging.getLogger("millwheel.spark")

_SET_BACK = (
    "batch %d of %r is in, as are those up to %d: its rows are not sent. Spark itself repeats only the last batch; if "
    "this checkpoint was set back, what is new in its batches is lost: begin with a new checkpoint"
)
_FORMATS = {
    specs.VALUE_FORMAT_PROTOBUF: "protobuf messages",
    specs.VALUE_FORMAT_RAW: "raw bytes",
    specs.VALUE_FORMAT_CUSTOM: "values of a codec of its own",
}
_BAD_ROW = (MillwheelError, ValueError, KeyError, OverflowError)
"""A row that cannot be sent. The others: a text that is no UTF-8, a key twice in a map, a year after 9999."""
_QUERY_PROPERTY = "sql.streaming.queryId"
_BATCH_PROPERTY = "streaming.sql.batchId"


def micro_batch(options: SinkOptions) -> BatchOf:
    """The micro-batch of this task. It is identified by the id in the query's checkpoint, not by the query's name."""
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(_QUERY_PROPERTY)
    batch = None if context is None else context.getLocalProperty(_BATCH_PROPERTY)
    if not query or batch is None or not batch.isdigit():
        raise SinkError(
            f"this is no task of a micro-batch: Spark says {_QUERY_PROPERTY}={query!r}, {_BATCH_PROPERTY}={batch!r}"
        )
    return BatchOf(options.scope(query), int(batch))


def write_partition(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, batch: BatchOf, sequencer: int
) -> TaskReport:
    """Send a partition's rows under the driver's ``sequencer``, and wait until every consumer has ACKed each of them.

    Raises:
        RowError: A row cannot become a record; the error names it. Rows that were sent stay sent, also such behind it.
            A retry of the task sends them under the same ids, so they count once.
    """
    context = TaskContext.get()
    reader = RowReader(options, context.partitionId() if context else 0, wall_now())
    rows, newest = 0, None
    partition: Partition | None = None
    try:
        for arrow in batches:
            if not arrow.num_rows:
                continue
            if partition is None:
                if run(_is_in(options, batch)):
                    _drain(batches)
                    return TaskReport(batch, 0, None)
                named = (options.id_column, options.timestamp_column, options.watermark_source)
                partition = Partition(run(open_task(options, sequencer, named)), options, batch, reader)
            read = reader.read(arrow)
            run(partition.send(read))
            rows += len(read)
            newest = read.newest if newest is None else max(newest, read.newest)
        if partition is not None:
            run(finish_task(partition.injector))
    finally:
        if partition is not None:
            run(partition.injector.close())
    return TaskReport(batch, rows, newest)


async def _is_in(options: SinkOptions, batch: BatchOf) -> bool:
    """Whether the batch is committed. SinkError if the stream's format does not fit rows.

    Receivers would drop the rows of a committed batch as duplicates. But a consumer that joined later would accept a
    replay as new records.
    """
    async with ControlClient(options.address, patience=options.patience) as client:
        cursor = await client.batch_cursor(batch.query)
        if cursor > batch.batch:
            log.warning(_SET_BACK, batch.batch, batch.query, cursor)
        if cursor >= batch.batch:
            return True
        carried = _FORMATS.get((await client.routing(options.stream)).stream.format)
        if carried:
            raise SinkError(
                f"stream {options.stream!r} carries {carried}, and a row is a mapping of its columns: write it to a "
                "stream of msgpack, and convert it there"
            )
        return False


def _drain(batches: Iterable[pa.RecordBatch]) -> None:
    """Read the iterator to its end. Spark treats a partly read iterator as a failure."""
    for _ in batches:
        pass


class Partition:
    """Sends one partition's rows by ``injector``, which is open."""

    def __init__(self, injector: Injector, options: SinkOptions, batch: BatchOf, reader: RowReader) -> None:
        self.injector = injector
        self._options = options
        self._batch = batch
        self._reader = reader

    async def send(self, rows: Rows) -> None:
        """Send rows. RowError names a row that cannot become a record."""
        try:
            if rows.are_plain:
                await self._send_columns(rows.batch)
            else:
                await self._send(rows, 0, len(rows))
        except InjectorError:
            raise
        except _BAD_ROW:
            await self._find_culprit(rows)
            raise

    async def _send_columns(self, rows: pa.RecordBatch) -> None:
        """Send rows as columns. A table's column of timestamps is no field of its records, so it is there twice."""
        options, name = self._options, "time"
        while name in rows.schema.names:
            name += "_"
        table = pa.Table.from_batches([rows]).append_column(name, rows.column(options.timestamp_column))
        await self.injector.send_table(table, timestamp=name, id_column=options.id_column, batch=self._batch)

    async def _send(self, rows: Rows, start: int, end: int) -> None:
        await self.injector.send_many(
            rows.values[start:end], rows.timestamps[start:end], ids=rows.ids[start:end], batch=self._batch
        )

    async def _find_culprit(self, rows: Rows) -> None:
        """Send rows one by one to find the faulty one. Rows that were sent before are duplicates by their ids."""
        for at in range(len(rows)):
            try:
                await self._send(rows.row(at), 0, 1)
            except InjectorError:
                raise
            except _BAD_ROW as error:
                raise self._reader.error(rows, at, str(error)) from error
