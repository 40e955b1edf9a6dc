"""A source as two computations: one finds its splits, the other reads them (sections 4.1, 5.2).

The key of the first is "", and it begins by itself. It produces each split once, to a stream that the second reads. A
key of the second is a split. Its state has the position, and its hold is the low watermark of the split.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from millwheel.connectors.handles import CALL_SECONDS, Handles
from millwheel.connectors.source import BadRecord, BadRecordError, Read, Source, SplitReader
from millwheel.model.time import LAST_TIMESTAMP, MIN_TIMESTAMP, TimeDomain, Timestamp
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.records import Record, Timer

__all__ = ["FindSplits", "ReadSplits", "Split", "SplitState", "Timing"]

P = TypeVar("P")

_AGAIN_US: Final = 100_000
"""The pause after a read without records, in microseconds. A reader that gets records sooner waits for them itself."""


class Split(msgspec.Struct, frozen=True):
    """A split that was found."""

    name: str


class Found(msgspec.Struct):
    """The state of the search: the splits that were found."""

    names: list[str] = []


class SplitState(msgspec.Struct, Generic[P]):
    """How far a split was read."""

    position: P | None = None
    """Where the next read begins. None: at the beginning."""
    watermark: int = int(MIN_TIMESTAMP)
    """No later record of the split is older, except late ones."""
    records: int = 0
    """How many records were read."""
    behind: int | None = None
    """How many records waited in the split after the last read, if the source knows."""
    read_at: int = 0
    """When the last record was read, by the wall clock."""
    ended: bool = False
    """Whether the split has no more records."""


class Timing(msgspec.Struct, frozen=True):
    """How the times of records make the low watermark of a split. Microseconds."""

    out_of_order: int = 0
    """How much older than the newest record a record may be without being late."""
    idle_after: int | None = None
    """After so long without a record at its end, a split follows the wall clock. None: it waits for records."""
    find_every: int = 1_000_000
    """The time between two searches for splits."""


class FindSplits(Computation[None, Found]):
    """Finds the splits of a source, and produces each of them once."""

    _begins_with = ""

    def __init__(self, source: Source[Any, Any], output: str, timing: Timing) -> None:
        self._source = source
        self._output = output
        self._timing = timing

    def declared_outputs(self) -> Mapping[str, Any]:
        return {self._output: Split}

    def _implementation(self) -> type:
        return type(self._source)

    def process_record(self, ctx: Context[Found], record: Record[None]) -> None:
        raise AssertionError("a computation without inputs gets no record")

    async def process_timer(self, ctx: Context[Found], timer: Timer) -> None:
        asked = ctx.now
        async with asyncio.timeout(CALL_SECONDS):
            splits = await self._source.splits()
        known = set(ctx.state.names)
        for name in splits.names:
            if name not in known:
                known.add(name)
                ctx.state.names.append(name)
                # It has the time of the hold, and holds the watermark until its reader does.
                ctx.produce(self._output, Split(name), timestamp=Timestamp(ctx._earliest))
        if not splits.final:
            oldest = asked - self._timing.out_of_order if splits.oldest is None else splits.oldest
            again = Timestamp(ctx.now + self._timing.find_every)
            ctx.set_timer(again, domain=TimeDomain.PROCESSING_TIME, hold=Timestamp(min(oldest, LAST_TIMESTAMP)))


class ReadSplits(Computation[Split, SplitState[P]], Generic[P]):
    """Reads the splits of a source, each as a key."""

    _feeds = True

    def __init__(
        self,
        source: Source[Any, P],
        output: str,
        record_type: Any,
        timing: Timing,
        timestamp: Callable[[Any], Timestamp] | None,
        bad: str | None,
    ) -> None:
        self._source = source
        self._output = output
        self._type = record_type
        self._timing = timing
        self._timestamp = timestamp
        self._bad = bad
        self._readers = Handles[SplitReader[Any, P]]()

    def declared_outputs(self) -> Mapping[str, Any]:
        outputs = {self._output: self._type}
        return outputs if self._bad is None else {**outputs, self._bad: BadRecord}

    def _implementation(self) -> type:
        return type(self._source)

    def process_record(self, ctx: Context[SplitState[P]], record: Record[Split]) -> None:
        ctx.set_timer(ctx.now, domain=TimeDomain.PROCESSING_TIME, hold=record.timestamp)

    async def process_timer(self, ctx: Context[SplitState[P]], timer: Timer) -> None:
        state, split = ctx.state, ctx.key
        reader = await self._readers.take(
            split, state.position, lambda: self._source.open_reader(split, state.position)
        )
        try:
            async with asyncio.timeout(CALL_SECONDS):
                read = await reader.read()
            self._take(ctx, state, read)
        except BaseException:
            await self._readers.close(reader)
            raise
        if read.ended:
            await self._readers.close(reader)
        else:
            self._readers.keep(split, reader, read.position)

    def _take(self, ctx: Context[SplitState[P]], state: SplitState[P], read: Read[Any, P]) -> None:
        """Produce what was read, and set the timer of the next read."""
        ctx._earliest = int(MIN_TIMESTAMP)  # records of a source may be late, as those of an injector
        ctx._cause = ctx.now  # times in another unit are found by comparison with it
        now, newest, at_of, output = ctx.now, state.watermark, self._timestamp, self._output
        for value, stated in read.records:
            if value.__class__ is BadRecord:
                self._produce_bad(ctx, value)
                continue
            at = stated if at_of is None else at_of(value)
            at = now if at is None else at
            if at > newest + self._timing.out_of_order:
                newest = at - self._timing.out_of_order
            ctx.produce(output, value, timestamp=at)
        watermark = newest if read.watermark is None else max(state.watermark, read.watermark)
        state.position, state.behind, state.ended = read.position, read.behind, read.ended
        state.records += len(read.records)
        if read.records or not state.read_at:
            state.read_at = now
        if self._is_idle(state, now):
            watermark = max(watermark, now - self._timing.out_of_order)
        state.watermark = min(watermark, LAST_TIMESTAMP)
        if not read.ended:
            at = now if read.records else Timestamp(now + _AGAIN_US)
            ctx.set_timer(at, domain=TimeDomain.PROCESSING_TIME, hold=Timestamp(state.watermark))

    def _produce_bad(self, ctx: Context[SplitState[P]], bad: BadRecord) -> None:
        if self._bad is None:
            raise BadRecordError(bad)
        ctx.produce(self._bad, bad, timestamp=ctx.now)

    def _is_idle(self, state: SplitState[P], now: int) -> bool:
        """Whether the split has had nothing for long, and says that nothing waits in it."""
        after = self._timing.idle_after
        return after is not None and state.behind == 0 and now - state.read_at >= after
