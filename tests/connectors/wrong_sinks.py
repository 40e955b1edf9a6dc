"""Sinks that each break one rule of the contract."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from threading import Event, Thread
from typing import Any

from millwheel.connectors import Sink, SinkBatch, SinkShard, SinkWriter
from tests.connectors.given import Store, TableWriter


class WrongSink(Sink[Any]):
    """Writes to a store, by a writer that a subclass changes."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def open_writer(self, place: SinkShard) -> SinkWriter[Any]:
        return _Changed(self, place)

    async def write(self, right: TableWriter, batch: SinkBatch[Any]) -> None:
        await right.write(batch)


class _Changed(SinkWriter[Any]):
    def __init__(self, sink: WrongSink, place: SinkShard) -> None:
        self.sink = sink
        self.right = TableWriter(sink.store, place)

    async def write(self, batch: SinkBatch[Any]) -> None:
        await self.sink.write(self.right, batch)


def append(store: Store, place: SinkShard, batch: SinkBatch[Any]) -> None:
    """Store the records without a look at what is there."""
    store.batches[place.sink, place.run, place.shard, len(store.batches)] = list(batch.records)


class Appends(WrongSink):
    """It stores each batch that it gets."""

    async def write(self, right: TableWriter, batch: SinkBatch[Any]) -> None:
        append(self.store, right.place, batch)


class RemembersInMemory(WrongSink):
    """A writer knows only what it has written itself."""

    async def write(self, right: TableWriter, batch: SinkBatch[Any]) -> None:
        written: set[str] = vars(right).setdefault("written", set())
        if batch.id not in written:
            written.add(batch.id)
            append(self.store, right.place, batch)


class ComparesNumbers(WrongSink):
    """A batch with a higher number is the next one, and any other one is there."""

    async def write(self, right: TableWriter, batch: SinkBatch[Any]) -> None:
        last: dict[SinkShard, int] = vars(self.store).setdefault("numbers", {})
        if last.get(right.place, 0) < batch.number:
            last[right.place] = batch.number
            append(self.store, right.place, batch)


class ForgetsRuns(WrongSink):
    """It knows an id for each run, so a former run writes on."""

    async def write(self, right: TableWriter, batch: SinkBatch[Any]) -> None:
        place = right.place
        own = replace(place, sink=f"{place.sink} {place.run}")
        await TableWriter(self.store, own).write(batch)


class ForgetsShards(WrongSink):
    async def write(self, right: TableWriter, batch: SinkBatch[Any]) -> None:
        await TableWriter(self.store, replace(right.place, shard=0)).write(batch)


class ForgetsNames(WrongSink):
    async def write(self, right: TableWriter, batch: SinkBatch[Any]) -> None:
        await TableWriter(self.store, replace(right.place, sink="any")).write(batch)


def is_there(store: Store, place: SinkShard, batch: SinkBatch[Any]) -> bool:
    return store.last.get((place.sink, place.shard)) == (place.run, batch.id)


class StoresTheIdFirst(WrongSink):
    """A write that is cut off has stored the id, and no record."""

    async def write(self, right: TableWriter, batch: SinkBatch[Any]) -> None:
        if not is_there(self.store, right.place, batch):
            self.store.last[right.place.sink, right.place.shard] = right.place.run, batch.id
            await asyncio.sleep(0)
            append(self.store, right.place, batch)


class StoresTheIdLast(WrongSink):
    """A write that is cut off has stored the records, and no id."""

    async def write(self, right: TableWriter, batch: SinkBatch[Any]) -> None:
        if not is_there(self.store, right.place, batch):
            append(self.store, right.place, batch)
            await asyncio.sleep(0)
            self.store.last[right.place.sink, right.place.shard] = right.place.run, batch.id


class LooksAndThenWrites(WrongSink):
    """Two writers at once both find that the batch is not there."""

    async def write(self, right: TableWriter, batch: SinkBatch[Any]) -> None:
        there = is_there(self.store, right.place, batch)
        await asyncio.sleep(0)
        if not there:
            self.store.last[right.place.sink, right.place.shard] = right.place.run, batch.id
            append(self.store, right.place, batch)


class WritesLater(WrongSink):
    """It returns before the records are durable."""

    async def write(self, right: TableWriter, batch: SinkBatch[Any]) -> None:
        waiting: list[SinkBatch[Any]] = vars(right).setdefault("waiting", [])
        waiting.append(batch)
        if len(waiting) > 1:
            await right.write(waiting.pop(0))


class SaysNothingOfWrites(WrongSink):
    """An error is taken for a success."""

    async def write(self, right: TableWriter, batch: SinkBatch[Any]) -> None:
        try:
            await right.write(batch)
        except ConnectionError:
            return


class ReversesBatches(WrongSink):
    async def write(self, right: TableWriter, batch: SinkBatch[Any]) -> None:
        await right.write(replace(batch, records=list(reversed(batch.records))))


class LeavesThreads(WrongSink):
    """Each writer has threads that never end while the store is there: three, as others of the process may end."""

    async def open_writer(self, place: SinkShard) -> SinkWriter[Any]:
        stop: Event = vars(self.store).setdefault("stop", Event())
        for _ in range(3):
            Thread(target=stop.wait, args=(60,), daemon=True).start()
        return TableWriter(self.store, place)
