"""A part of a topology with connectors: it reads splits of another system, and writes to a store there, exactly once.

What is outside of the cluster survives all its processes. ``OUTSIDE`` has it, in the current run.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import msgspec
import pyarrow as pa

import millwheel as mw
from millwheel.connectors import Read, Sink, SinkBatch, SinkShard, SinkWriter, Source, SplitReader, Splits
from millwheel.connectors.table_reads import TableRecords

__all__ = ["OUTSIDE", "Feed", "FeedSplit", "Fetched", "add_connected", "connected_differences"]

_LATENCY: Final = 0.03
"""The most seconds that a call takes before and after its effect."""
_AS_TABLE: Final = 0.8
"""The share of reads that are columns, where reads may be some."""
_FAILS: Final = 0.05
"""The share of calls that fail, of each kind."""


class Fetched(msgspec.Struct, frozen=True):
    """A record: the ``number``-th of all."""

    number: int
    split: str
    key: str


class FeedSplit(msgspec.Struct, frozen=True):
    """A split, which a search finds at a virtual time. Its records come one by one, ``gap`` seconds apart."""

    name: str
    found: float
    gap: float
    records: list[tuple[Fetched, int]]


class Feed(msgspec.Struct, frozen=True):
    """What is read, and how."""

    splits: list[FeedSplit]
    most: int
    """The most records of a read."""
    shards: int
    batch_records: int
    allowed_skew: int | None
    rate: float | None
    tables: bool = False
    """Whether its reads are columns, as far as MillWheel takes them."""


class Outside:
    """The store of the sink: what is there by now, and which batch was the last one of each shard."""

    def __init__(self) -> None:
        self.chance = Random()
        self.stored: list[Fetched] = []
        self._last: dict[tuple[str, int], tuple[int, str]] = {}
        self._batches: dict[str, list[Fetched]] = {}
        self.complaints: list[str] = []

    def begin(self, seed: int) -> None:
        """Begin a run with an empty store."""
        self.__init__()  # type: ignore[misc]
        self.chance = Random(f"outside {seed}")

    async def pass_time(self) -> None:
        """Let a call take some time. Its process may die meanwhile."""
        await asyncio.sleep(self.chance.uniform(0.0, _LATENCY))

    def may_fail(self, what: str) -> None:
        """Raise a ConnectionError, now and then."""
        if self.chance.random() < _FAILS:
            raise ConnectionError(what)

    def write(self, place: SinkShard, batch: SinkBatch[Fetched]) -> None:
        """Store a batch and its id in one step, unless it is there.

        Raises:
            ValueError: It does not follow: its writer is a former one, or records would be missing.
        """
        records = [value for value, _ in batch.records]
        if self._batches.setdefault(batch.id, records) != records:
            self.complaints.append(f"two batches have the id {batch.id}: {self._batches[batch.id]} and {records} (G1)")
        run, last = self._last.get((place.sink, place.shard), (0, ""))
        if (run, last) == (place.run, batch.id):
            return
        if not ((run, last) == (place.run, batch.after) if batch.after else run < place.run):
            where = f"batch {batch.number} of run {place.run}, after {batch.after!r}, shard {place.shard}"
            raise ValueError(f"{where} does not follow {last!r} of run {run}")
        self._last[place.sink, place.shard] = place.run, batch.id
        self.stored += records


OUTSIDE: Final = Outside()


class _FeedSource(Source[Fetched, int]):
    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    def identity(self) -> str:
        return "feed"

    def _why_one_by_one(self, record_type: Any) -> str:
        return "" if self.feed.tables else super()._why_one_by_one(record_type)

    async def splits(self) -> Splits:
        await OUTSIDE.pass_time()
        OUTSIDE.may_fail("the search fails")
        now = asyncio.get_running_loop().time()
        found = [one.name for one in self.feed.splits if one.found <= now]
        oldest = min(at for one in self.feed.splits for _, at in one.records)
        return Splits(found, final=len(found) == len(self.feed.splits), no_older_than=mw.Timestamp(oldest))

    async def open_reader(self, split: str, position: int | None) -> SplitReader[Fetched, int]:
        await OUTSIDE.pass_time()
        return _FeedReader(next(one for one in self.feed.splits if one.name == split), self.feed.most, position or 0)


class _FeedReader(SplitReader[Fetched, int]):
    def __init__(self, split: FeedSplit, most: int, position: int) -> None:
        self._split = split
        self._most = most
        self._position = position

    async def read(self) -> Read[Fetched, int]:
        await OUTSIDE.pass_time()
        OUTSIDE.may_fail("the read fails")
        split, begin = self._split, self._position
        there = int((asyncio.get_running_loop().time() - split.found) / split.gap)
        found = split.records[begin : min(there, begin + self._most)]
        self._position += len(found)
        ended = self._position == len(split.records)
        records: list[tuple[Any, mw.Timestamp | None]] = [(value, mw.Timestamp(at)) for value, at in found]
        behind = max(0, there - self._position)
        return Read(self._table(records) or records, self._position, ended=ended, behind=behind)

    def _table(self, records: list[tuple[Any, mw.Timestamp | None]]) -> TableRecords | None:
        """The records as columns, now and then. None: they are rows."""
        if not (records and self._takes_tables and OUTSIDE.chance.random() < _AS_TABLE):
            return None
        batch = pa.RecordBatch.from_pylist([msgspec.to_builtins(value) for value, _ in records])

        async def on_the_loop(make: Any) -> Any:
            return make()

        return TableRecords(batch, lambda: records, on_the_loop, array("q", [at or 0 for _, at in records]))


class _PassOn(mw.Computation[Fetched, None]):
    """Produces what it gets. Its keys are a column, and those of a sink of several shards are not."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Fetched]) -> None:
        ctx.produce("passed", record.value)


class _Shelf(Sink[Fetched]):
    async def open_writer(self, place: SinkShard) -> SinkWriter[Fetched]:
        await OUTSIDE.pass_time()
        return _ShelfWriter(place)


class _ShelfWriter(SinkWriter[Fetched]):
    def __init__(self, place: SinkShard) -> None:
        self._place = place

    async def write(self, batch: SinkBatch[Fetched]) -> None:
        await OUTSIDE.pass_time()
        OUTSIDE.may_fail("the store is away")
        OUTSIDE.write(self._place, batch)
        await OUTSIDE.pass_time()
        OUTSIDE.may_fail("the answer of the store is lost")


def add_connected(topology: mw.Topology, given: Any) -> None:
    """Add a source and a sink, and what is between them."""
    feed = msgspec.convert(given, Feed)
    skew = None if feed.allowed_skew is None else mw.Duration(feed.allowed_skew)
    fetched = topology.source("fetched", Fetched, _FeedSource(feed), allowed_skew=skew, records_per_second=feed.rate)
    if feed.tables and feed.shards > 1:
        fetched = fetched.key_by("key").process("pass-on", _PassOn(), outputs={"passed": Fetched})
    fetched.key_by("key").to("shelf", _Shelf(), shards=feed.shards, batch_records=feed.batch_records)


def connected_differences(feed: Feed, stored: Sequence[Fetched]) -> list[str]:
    """What the store has too much, too little, or in another order than its split (G1, G15)."""
    expected = [value for split in feed.splits for value, _ in split.records]
    counts = Counter(stored)
    found = [f"the store has {one} {count} times (G1)" for one, count in counts.items() if count > 1]
    found += [f"the store misses {one} (G1)" for one in expected if one not in counts]
    found += [f"the store has {one}, which nothing has sent (G1)" for one in counts if one not in expected]
    for split, key in sorted({(one.split, one.key) for one in expected}):
        own = [one.number for one in stored if (one.split, one.key) == (split, key)]
        if own != sorted(own):
            found.append(f"records of split {split}, key {key} are stored as {own} (G15)")
    return found
