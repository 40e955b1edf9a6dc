"""A sink as two computations: one makes numbered batches, the other writes them (sections 4.1, 6.1).

A key of both is a shard. A batch is a record that the first produces to the second. So it is committed before it is
written, it always has the same records, and the batches of a shard come in their order (G1, G2, G15).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from millwheel.connectors.handles import CALL_SECONDS, Handles
from millwheel.connectors.sink import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.model.stream_names import full_name
from millwheel.model.time import TimeDomain, Timestamp
from millwheel.sdk.codecs import ValueCodec
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.records import Record, Timer

__all__ = ["BATCHES", "Collected", "EncodedBatch", "MakeBatches", "WriteBatches", "Written"]

BATCHES: Final = ".batches"
"""The end of the names of streams that carry batches."""
_BATCH_BYTES: Final = 512 << 10
"""A batch of so many bytes is whole, half of what one record may have."""


class EncodedBatch(msgspec.Struct, frozen=True):
    """A batch with its values as bytes."""

    sink: str
    """The full name of the sink."""
    shard: str
    run: int
    number: int
    values: list[bytes]
    times: list[int]


class Collected(msgspec.Struct):
    """The records of a shard that are in no batch yet."""

    run: int = 0
    """When the shard got its first record, by the wall clock: it distinguishes this shard from former ones."""
    number: int = 0
    """That of the last batch."""
    values: list[bytes] = []
    times: list[int] = []
    size: int = 0


class Written(msgspec.Struct):
    """What was written of a shard."""

    batch: int = 0
    records: int = 0
    at: int = 0
    """When, by the wall clock."""


class MakeBatches(Computation[Any, Collected]):
    """Makes batches of the records of each shard."""

    def __init__(self, topology: str, codec: ValueCodec, output: str, most: int, every: int) -> None:
        self._topology = topology
        self._codec = codec
        self._output = output
        self._most = most
        self._every = every

    def declared_outputs(self) -> Mapping[str, Any]:
        return {self._output: EncodedBatch}

    def process_record(self, ctx: Context[Collected], record: Record[Any]) -> None:
        pending, value = ctx.state, self._codec.encode(record.value)
        if pending.values and pending.size + len(value) > _BATCH_BYTES:
            self._produce(ctx, pending)
        if not pending.values:
            pending.run = pending.run or ctx.now
            ctx.set_timer(Timestamp(ctx.now + self._every), domain=TimeDomain.PROCESSING_TIME)
        pending.values.append(value)
        pending.times.append(record.timestamp)
        pending.size += len(value)
        if len(pending.values) >= self._most or pending.size >= _BATCH_BYTES:
            self._produce(ctx, pending)

    def process_timer(self, ctx: Context[Collected], timer: Timer) -> None:
        if ctx.state.values:
            self._produce(ctx, ctx.state)

    def _produce(self, ctx: Context[Collected], pending: Collected) -> None:
        pending.number += 1
        # A fork runs the same program under another name, and must not write in the place of the original.
        sink = full_name(self._topology, ctx._scope.outputs[self._output].stream).removesuffix(BATCHES)
        batch = EncodedBatch(sink, ctx.key, pending.run, pending.number, pending.values, pending.times)
        ctx.produce(self._output, batch)
        pending.values, pending.times, pending.size = [], [], 0
        ctx.cancel_timer(domain=TimeDomain.PROCESSING_TIME)


class WriteBatches(Computation[EncodedBatch, Written]):
    """Writes the batches of each shard, one after the other."""

    def __init__(self, sink: Sink[Any], codec: ValueCodec, shards: int) -> None:
        self._sink = sink
        self._codec = codec
        self._shards = shards
        self._writers = Handles[SinkWriter[Any]]()

    def _implementation(self) -> type:
        return type(self._sink)

    async def process_record(self, ctx: Context[Written], record: Record[EncodedBatch]) -> None:
        batch, written, shard = record.value, ctx.state, ctx.key
        place = SinkShard(batch.sink, int(shard), self._shards, batch.run)
        writer = await self._writers.take(shard, batch.number - 1, lambda: self._sink.open_writer(place))
        try:
            values = map(self._codec.decode, batch.values)
            records = list(zip(values, map(Timestamp, batch.times), strict=True))
            async with asyncio.timeout(CALL_SECONDS):
                await writer.write(SinkBatch(batch.number, records))
        except BaseException:
            await self._writers.close(writer)
            raise
        self._writers.keep(shard, writer, batch.number)
        written.batch, written.records, written.at = batch.number, written.records + len(records), ctx.now
