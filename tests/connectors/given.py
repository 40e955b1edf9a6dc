"""A source and a sink in memory, which a test fills, breaks and looks at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import millwheel as mw
from millwheel.connectors import BadRecord, Read, Sink, SinkBatch, SinkShard, SinkWriter, Source, SplitReader, Splits
from millwheel.model.units import ANY_TIMESTAMP_VARIABLE
from millwheel.testing import TopologyHarness

NOON = 1_767_268_800_000_000


def at(second: float) -> mw.Timestamp:
    """So many seconds after noon."""
    return mw.Timestamp(NOON + int(second * 1_000_000))


@dataclass
class World:
    """What a source reads: by split, the records with their times. A test changes it at any time."""

    splits: dict[str, list[tuple[Any, mw.Timestamp | None]]] = field(default_factory=dict)
    final: bool = True
    """Whether no other split comes, and no record either."""
    oldest: mw.Timestamp | None = None
    watermark: mw.Timestamp | None = None
    """What each read says."""
    slow: bool = False
    """Whether reads return nothing, although records wait."""
    slow_splits: set[str] = field(default_factory=set)
    """The splits whose reads return nothing, although records wait."""
    breaks: int = 0
    """How many of the next reads fail."""
    opened: list[tuple[str, int | None]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


class Numbers(Source[int, int]):
    """Reads a world, some records at a time."""

    def __init__(self, world: World, most: int = 3) -> None:
        self.world = world
        self.most = most

    async def splits(self) -> Splits:
        return Splits(list(self.world.splits), final=self.world.final, no_older_than=self.world.oldest)

    async def open_reader(self, split: str, position: int | None) -> SplitReader[int, int]:
        self.world.opened.append((split, position))
        return NumberReader(self, split, position or 0)


class NumberReader(SplitReader[int, int]):
    def __init__(self, source: Numbers, split: str, position: int) -> None:
        self.source = source
        self.split = split
        self.position = position

    async def read(self) -> Read[int, int]:
        world = self.source.world
        if world.breaks:
            world.breaks -= 1
            raise ConnectionError(f"split {self.split} is away")
        records = world.splits[self.split]
        most = 0 if world.slow or self.split in world.slow_splits else min(self.source.most, self.most_records)
        found = records[self.position : self.position + most]
        self.position += len(found)
        left = len(records) - self.position
        return Read(found, self.position, world.watermark, ended=world.final and not left, behind=left)

    async def close(self) -> None:
        self.source.world.closed.append(self.split)


@dataclass
class Store:
    """What a sink has written: the records by sink, run, shard and number."""

    batches: dict[tuple[str, int, int, int], list[tuple[Any, mw.Timestamp]]] = field(default_factory=dict)
    last: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    """By sink and shard: the run and the id of the newest batch."""
    opened: list[SinkShard] = field(default_factory=list)
    breaks_before: int = 0
    """How many of the next writes fail, and have written nothing."""
    breaks_after: int = 0
    """How many of the next writes fail, and have written all."""

    def values(self) -> list[Any]:
        """All that is written, by shard and number."""
        return [value for place in sorted(self.batches) for value, _ in self.batches[place]]


class Table(Sink[Any]):
    """Writes to a store. Each batch must follow the one before, and one that is there must have the same records."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def open_writer(self, place: SinkShard) -> SinkWriter[Any]:
        self.store.opened.append(place)
        return TableWriter(self.store, place)


class TableWriter(SinkWriter[Any]):
    def __init__(self, store: Store, place: SinkShard) -> None:
        self.store = store
        self.place = place

    async def write(self, batch: SinkBatch[Any]) -> None:
        store, place = self.store, self.place
        if store.breaks_before:
            store.breaks_before -= 1
            raise ConnectionError("the table is away")
        key = place.sink, place.run, place.shard, batch.number
        run, last = store.last.get((place.sink, place.shard), (0, ""))
        follows = (run, last) == (place.run, batch.after) if batch.after else run < place.run
        assert follows or (run, last) == (place.run, batch.id), f"batch {batch.number} does not follow"
        store.last[place.sink, place.shard] = place.run, batch.id
        written = store.batches.setdefault(key, list(batch.records))
        assert written == list(batch.records), f"batch {batch.number} has other records the second time"
        if store.breaks_after:
            store.breaks_after -= 1
            raise TimeoutError("the answer of the table was lost")


AFTER = at(1_000)


@contextmanager
def running(topology: mw.Topology, *, now: mw.Timestamp = AFTER, **options: Any) -> Iterator[TopologyHarness]:
    """A harness as users have it. Its clock is ahead of the records."""
    with pytest.MonkeyPatch.context() as surroundings:
        surroundings.delenv(ANY_TIMESTAMP_VARIABLE, raising=False)
        with TopologyHarness(topology, now=now, **options) as harness:
            yield harness


def bad(split: str) -> Any:
    """A record that cannot be read."""
    return BadRecord(split, "line 2", "it is no number", b"x")
