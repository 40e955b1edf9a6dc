"""A sink as two computations: one makes numbered batches, the other writes them (sections 4.1, 6.1).

A key of both is a shard. A batch is a record that the first produces to the second. So it is committed before it is
written, it always has the same records, and the batches of a shard come in their order (G1, G2, G15).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from time import perf_counter
from typing import Any, Final, Generic, TypeVar

import msgspec

from millwheel.connectors.batches import Collected, EncodedBatch
from millwheel.connectors.collecting import RECORD_BYTES, ShardRecords, ShardTable, ShardValues
from millwheel.connectors.contents import BatchRecords
from millwheel.connectors.handles import CALL_SECONDS, Handles
from millwheel.connectors.sink import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.model.limits import MAX_VALUE_BYTES
from millwheel.model.stream_names import full_name
from millwheel.model.time import LAST_TIMESTAMP, TimeDomain, TimeInt, Timestamp
from millwheel.sdk.batches.column_records import records_at
from millwheel.sdk.batches.computation import MAX_RECORDS, BatchComputation
from millwheel.sdk.batches.context import BatchContext
from millwheel.sdk.batches.records import RecordBatch
from millwheel.sdk.codecs import ValueCodec, ValueFormat
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.errors import TooLargeError
from millwheel.sdk.records import Record, Timer

__all__ = ["BATCHES", "MAKES", "MakeBatches", "WriteBatches", "Written"]

K = TypeVar("K")

BATCHES: Final = ".batches"
"""The end of the names of streams that carry batches."""
MAKES: Final = "-batches"
"""The end of the names of computations that make batches."""
_BATCH_BYTES: Final = 512 << 10
"""A batch of so many bytes is whole, half of what one record may have."""
_OTHER_BYTES: Final = 512
"""What a batch has beside its records: names of fields, ids, and the name of the sink."""


class Written(msgspec.Struct):
    """What was written of a shard."""

    sink: str = ""
    """The full name of the sink at the last write."""
    batch: int = 0
    records: int = 0
    at: TimeInt = 0
    """When, by the wall clock."""


class MakeBatches(BatchComputation[Any, Collected[K]], Generic[K]):
    """Makes batches of the records of each shard.

    It takes the records of a delivery at once: their columns, or their values as they were encoded. The batches of
    values are those that it would make of one record after the other.

    *Invariant (G1): batches of one id have the same records, and the same batches before them.* So a writer that knows
    the id of its last batch knows which one comes next. A number is not enough: after a restore, another batch may have
    it. The id depends on the batch alone, because a hook may run again.
    """

    max_records = MAX_RECORDS
    _takes_columns = True
    _remedy = (
        "a sink leaves no record out: leave such ones out by a `filter` before `to`, and give the sink another name, "
        "with which what waits for its batch under this one is dropped; then `millwheel topology update MODULE:ATTR`"
    )

    def __init__(self, codec: ValueCodec, output: str, batch_type: Any, most: int, delay: int) -> None:
        self._codec = codec
        self._output = output
        self._batch_type = batch_type
        self._most = most
        self._delay = delay
        # A batch is written when it is due, also if the commit of its records waits for half of that time.
        self._collects_for = delay // 2

    def declared_outputs(self) -> Mapping[str, Any]:
        return {self._output: self._batch_type}

    def process_batch(self, ctx: BatchContext[Collected[K]], batch: RecordBatch[Any]) -> None:
        for rows, records in self._of_shards(batch):
            self._collect(ctx, rows, records)

    def _of_shards(self, batch: RecordBatch[Any]) -> Iterator[tuple[Sequence[int], ShardRecords]]:
        """The rows of each shard with their records: as columns if they came so, and few as values all the same."""
        table, own = batch._columns(), self._codec.format is ValueFormat.MSGPACK
        if table is None or not own:
            values = batch._encoded_by(self._codec)
            for rows, times in batch._rows_by_key():
                yield rows, ShardValues(values if len(rows) == len(batch) else [values[row] for row in rows], times)
            return
        for rows, times in batch._rows_by_key():
            some = ShardTable(records_at(table, table.batch.schema.names, rows))
            yield rows, some if some.stays else ShardValues(some.values(), times)

    def _collect(self, ctx: BatchContext[Collected[K]], rows: Sequence[int], records: ShardRecords) -> None:
        """Add records of one shard to its batch, and make each batch that is whole.

        *Invariant (G15): the records of a shard are in its batches in the order of their rows.*
        """
        first = ctx.at(rows[0])
        if (largest := records.largest) + _OTHER_BYTES > MAX_VALUE_BYTES:
            most = MAX_VALUE_BYTES - _OTHER_BYTES - RECORD_BYTES
            raise TooLargeError(f"a record for the sink {_sink_of(first)!r}", largest - RECORD_BYTES, most)
        pending, start, count = first.state, 0, first.state.count
        while start < len(records):
            end = records.end(start, max(1, self._most - count), _BATCH_BYTES - pending.size)
            if end == start and not count:
                end = start + 1  # an empty batch takes a record of any size
            if end > start:
                self._hold(ctx, pending, rows, *records.oldest(start, end))
                records.put(pending, start, end)
                pending.size += records.size(start, end)
                count += end - start
            if end < len(records) or count >= self._most or pending.size >= _BATCH_BYTES:
                self._produce(ctx.at(rows[max(start, end - 1)]), pending)
                count = 0
            start = end

    def _hold(
        self, ctx: BatchContext[Collected[K]], pending: Collected[K], rows: Sequence[int], place: int, oldest: int
    ) -> None:
        """Hold the watermark for the batch at a record, the oldest of those that are added, if no earlier one does."""
        one, begins = ctx.at(rows[place]), not pending.count
        if begins:
            _follow_name(one, pending)
            pending.due = one.now + self._delay
        elif oldest >= pending.held:
            return
        held = min(max(oldest, one.watermark), LAST_TIMESTAMP)
        if begins or held < pending.held:
            pending.held = held
            one.set_timer(Timestamp(pending.due), domain=TimeDomain.PROCESSING_TIME, hold=Timestamp(held))

    def process_timer(self, ctx: Context[Collected[K]], timer: Timer) -> None:
        if ctx.state.count:
            self._produce(ctx, ctx.state)

    def _produce(self, ctx: Context[Collected[K]], pending: Collected[K]) -> None:
        _follow_name(ctx, pending)
        pending.number += 1
        after, place = pending.id, (ctx.key, pending.run, pending.number)
        tables = [pending.tables] if pending.tables else []
        content = msgspec.msgpack.encode((place, after, pending.values, pending.times, *tables))
        pending.id = blake2b(content, digest_size=16).hexdigest()
        batch = EncodedBatch[K](*place, pending.id, after, pending.values, pending.times, tables=pending.tables)
        # Where the hold stands, no higher watermark was reported. This is so before the commit of the hold, too: its
        # record had no ACK then.
        ctx._earliest = min(ctx._earliest, pending.held)
        ctx.produce(self._output, batch, timestamp=Timestamp(pending.held))
        pending.empty()
        ctx.cancel_timer(domain=TimeDomain.PROCESSING_TIME)


def _sink_of(ctx: Context[Any]) -> str:
    """The full name of the sink, by the name under which the topology runs. A fork has another one than its code."""
    return full_name(ctx._scope.topology, ctx._scope.computation.removesuffix(MAKES))


def _follow_name(ctx: Context[Collected[K]], pending: Collected[K]) -> None:
    """Begin a run if there is none of this name: a fork writes in a place of its own, where nothing is yet."""
    if pending.sink != (sink := _sink_of(ctx)):
        pending.sink, pending.number, pending.id = sink, 0, ""
        pending.run = max(ctx.now, pending.run + 1)


class WriteBatches(Computation[EncodedBatch[K], Written], Generic[K]):
    """Writes the batches of each shard, one after the other.

    *Invariant (G1): a batch is written after the commit of the one before is durable.* Otherwise two batches could come
    again after a crash, and a writer knows its last one alone.
    """

    _writes = True
    _remedy = (
        "it is tried again by itself, and nothing is lost meanwhile: see whether the other system can be reached; if "
        "it refuses a record, let it take the record, or change the sink; if a value does not decode, let its type "
        "read it again; then `millwheel topology update MODULE:ATTR`"
    )

    def __init__(self, sink: Sink[Any], codec: ValueCodec, record_type: Any, shards: int) -> None:
        self.codec = codec
        self.record_type = record_type
        self._sink = sink
        self._shards = shards
        self._writers = Handles[SinkWriter[Any]]()

    def _implementation(self) -> type:
        return type(self._sink)

    async def _close(self) -> None:
        await self._writers.close()

    async def process_record(self, ctx: Context[Written], record: Record[EncodedBatch[K]]) -> None:
        batch, written, sink = record.value, ctx.state, full_name(ctx._scope.topology, ctx._scope.computation)
        # The first write under a name: in a fork, the batches that were in flight have numbers of the original.
        after = batch.after if written.sink == sink else ""
        key, place = f"{sink} {ctx.key}", SinkShard(sink, int(ctx.key), self._shards, batch.run)
        async with self._writers.use(key, (batch.run, after), lambda: self._sink.open_writer(place)) as used:
            # A time is an integer, which a Timestamp is, too. A call for each would only cost time.
            parts: Any = list(batch.parts(self.codec))
            records = BatchRecords(parts, self.codec.decode_all, self.record_type) if batch.tables else parts[0]
            began = perf_counter()
            async with asyncio.timeout(CALL_SECONDS):
                await used.handle.write(SinkBatch(batch.number, records, batch.id, after))
            if ctx._scope.connector is not None:
                ctx._scope.connector.has_written(batch.count, batch.size, perf_counter() - began)
            used.ends_at((batch.run, batch.id))
        written.sink, written.batch = sink, batch.number
        written.records, written.at = written.records + len(records), ctx.now
