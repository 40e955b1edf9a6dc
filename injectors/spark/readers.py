"""Streams and states as DataFrames (sections 4.3 and 4.4).

A streaming query's offsets are in Spark's checkpoint: the log, and the offset of the next record. A range of offsets of
one log always has the same records. So a batch that Spark repeats has the same rows, and each record is in one batch.

Of a batch, the checkpoint has the end alone: it begins at the end of the one before. Spark asks again where the first
batch begins if it repeats that one, and meanwhile the answer may have changed. So the first batch is empty.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millwheel.client.arrow.state import StateColumns
from millwheel.client.kept_log import KeptLog
from millwheel.client.state_pages import StatePages
from millwheel.injectors.spark.loop import run
from millwheel.injectors.spark.read_options import ReadingOptions
from millwheel.model.keys import KeyInterval
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import ValueDecodeError
from millwheel.sdk.tables.columns import StreamColumns

__all__ = ["BatchReader", "KeyRange", "OffsetRange", "Readable", "StateRowReader", "StreamReader", "find_readable"]

_IDLE_SECONDS: Final = 0.1
"""The least time between two requests for the end of a log that has nothing new. Spark asks every 10 ms."""

Page = TypeVar("Page")


@dataclass(frozen=True, slots=True)
class Readable:
    """What is read. It travels to the executors, so it has the declaration as bytes.

    ``spec``: a StreamSpec, or the StateSchema of a computation. ``incarnation``: of the log, or of the computation."""

    options: ReadingOptions
    spec: bytes
    incarnation: str
    schema: StructType

    def columns(self) -> StreamColumns:
        """What makes columns of records."""
        return _stream_columns(self.options, specs.StreamSpec.FromString(self.spec))

    def state_columns(self) -> StateColumns:
        """What makes columns of states."""
        return StateColumns(self.options.state, specs.StateSchema.FromString(self.spec))

    def log(self, incarnation: str) -> KeptLog:
        """The log of the stream."""
        options = self.options
        return KeptLog(options.stream, address=options.address, patience=options.patience, incarnation=incarnation)

    def pages(self) -> StatePages:
        """The states of the computation."""
        options = self.options
        return StatePages(
            options.state, address=options.address, patience=options.patience, incarnation=self.incarnation
        )


def find_readable(options: ReadingOptions) -> Readable:
    """Find what the options name. RequestError: there is none."""
    return run(_find_states(options) if options.state else _find_stream(options))


async def _find_stream(options: ReadingOptions) -> Readable:
    async with KeptLog(options.stream, address=options.address, patience=options.patience) as kept:
        schema = from_arrow_schema(_stream_columns(options, kept.spec).schema)
        return Readable(options, kept.spec.SerializeToString(), kept.incarnation, schema)


async def _find_states(options: ReadingOptions) -> Readable:
    async with StatePages(options.state, address=options.address, patience=options.patience) as pages:
        schema = from_arrow_schema(StateColumns(options.state, pages.spec.state).schema)
        return Readable(options, pages.spec.state.SerializeToString(), pages.incarnation, schema)


def _stream_columns(options: ReadingOptions, spec: specs.StreamSpec) -> StreamColumns:
    return StreamColumns(spec, options.offset_column, options.timestamp_column)


class OffsetRange(InputPartition):
    """The records of one task: those of a log from ``first`` to before ``end``."""

    def __init__(self, incarnation: str, first: int, end: int) -> None:
        super().__init__((incarnation, first, end))
        self.incarnation = incarnation
        self.first = first
        self.end = end


class KeyRange(InputPartition):
    """The keys of one task."""

    def __init__(self, keys: KeyInterval) -> None:
        super().__init__(keys)
        self.keys = keys


class BatchReader(DataSourceReader):
    """Reads a stream from one offset to another."""

    def __init__(self, found: Readable) -> None:
        self._found = found

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. They read what the log has now."""

        async def plan() -> list[InputPartition]:
            options = self._found.options
            async with self._found.log(self._found.incarnation) as kept:
                end = await kept.end()
                if options.ending_offset is not None:
                    end = min(end, options.ending_offset)
                return _ranges(options, kept.incarnation, await _begin(kept, options), end)

        return run(plan())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, in an executor."""
        return _read_range(self._found, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream, micro-batch by micro-batch."""

    def __init__(self, found: Readable) -> None:
        self._found = found
        self._log: KeptLog | None = None
        """The log, in the driver. A reader in an executor has none."""
        self._until: int | None = None
        """Where a query ends that reads only what is available at its begin."""
        self._end = 0
        self._asked = 0.0

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins. No end of a batch has the mark ``initial``."""
        kept = self._kept()
        return {**_offset(kept, run(_begin(kept, self._found.options))), "initial": True}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the batch from ``start`` on ends.

        Invariant (G1): no batch with records begins at a place that the checkpoint does not have.
        """
        kept = self._kept()
        first = _first_of(start, kept)
        if start.get("initial"):
            return _offset(kept, first)
        end = self._log_end(kept, first)
        if self._until is not None:
            end = min(end, self._until)
        if isinstance(limit, ReadMaxRows):
            end = min(end, first + limit.max_rows)
        # The end may be before: a query may begin at an offset that is still to come.
        return _offset(kept, max(end, first))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit by the options."""
        most = self._found.options.max_records_per_batch
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on nothing is new."""
        self._until = run(self._kept().end())

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far the log goes, as last seen."""
        return None if self._log is None else _offset(self._log, self._end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of one batch."""
        return _ranges(self._found.options, start["log"], start["offset"], end["offset"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, in an executor."""
        return _read_range(self._found, partition)

    def stop(self) -> None:
        """Close the driver's connections."""
        if self._log is not None:
            run(self._log.close())
            self._log = None

    def _kept(self) -> KeptLog:
        if self._log is None:
            self._log = run(self._found.log("").__aenter__())
        return self._log

    def _log_end(self, kept: KeptLog, first: int) -> int:
        """The log's end. It waits a little if the log had nothing new at the last request, just before."""
        rest = self._asked + _IDLE_SECONDS - time.monotonic()
        if self._end <= first and rest > 0:
            time.sleep(rest)
        self._end, self._asked = run(kept.end()), time.monotonic()
        return self._end


class StateRowReader(DataSourceReader):
    """Reads the states of a computation."""

    def __init__(self, found: Readable) -> None:
        self._found = found

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks: the ranges of keys of the intervals."""

        async def plan() -> list[InputPartition]:
            async with self._found.pages() as pages:
                return [KeyRange(keys) for keys in await pages.ranges()]

        return run(plan())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, in an executor."""
        assert isinstance(partition, KeyRange)
        columns, wanted = self._found.state_columns(), _wanted(self._found)
        pages = run(self._found.pages().__aenter__())
        try:
            with closing(_pulled(pages.read(partition.keys))) as found:
                for page in found:
                    yield columns.batch(page).cast(wanted)
        finally:
            run(pages.close())


def _read_range(found: Readable, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, OffsetRange):
        return  # Spark makes a partition if there is none
    columns, wanted = found.columns(), _wanted(found)
    kept = run(found.log(partition.incarnation).__aenter__())
    try:
        reading = kept.read(partition.first, partition.end, lossy=not found.options.fail_on_data_loss)
        with closing(_pulled(reading)) as batches:
            for batch in batches:
                yield columns.batch(batch.first_offset, batch.values, batch.timestamps).cast(wanted)
    except ValueDecodeError as error:
        raise ValueDecodeError(
            f"{error}. If the topology was updated since, call spark.readStream...load() again, and start the query of "
            "that DataFrame with the same checkpoint: its columns are those of the present type. This DataFrame keeps "
            "the columns of its load()"
        ) from error
    finally:
        run(kept.close())


def _pulled(pages: AsyncGenerator[Page, None]) -> Generator[Page, None, None]:
    """What an asynchronous generator yields."""

    async def following() -> Page | None:
        return await anext(pages, None)

    try:
        while (page := run(following())) is not None:
            yield page
    finally:
        run(pages.aclose())


def _wanted(found: Readable) -> pa.Schema:
    """The schema that Spark expects of the batches: it has other names for the parts of lists and maps."""
    return to_arrow_schema(found.schema, timezone="UTC")


async def _begin(kept: KeptLog, options: ReadingOptions) -> int:
    begin = options.starting_offset
    if begin.offset is not None:
        return begin.offset
    if begin.since is not None:
        return await kept.first_since(begin.since)
    return await kept.end() if begin.latest else await kept.start()


def _ranges(options: ReadingOptions, incarnation: str, first: int, end: int) -> list[InputPartition]:
    size = options.records_per_task
    return [OffsetRange(incarnation, at, min(at + size, end)) for at in range(first, end, size)]


def _offset(kept: KeptLog, offset: int) -> dict[str, Any]:
    return {"log": kept.incarnation, "offset": offset}


def _first_of(start: dict[str, Any], kept: KeptLog) -> int:
    if start["log"] != kept.incarnation:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"the log of stream {kept.stream!r} was replaced by another, whose offsets start again",
            "begin with a new checkpoint",
            reason="STREAM_LOG_REPLACED",
        )
    return int(start["offset"])
