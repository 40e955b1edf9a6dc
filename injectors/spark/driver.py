"""The driver's part of a batch: before its tasks begin, and after all of them are done (section 5.2; 4.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql.datasource import WriterCommitMessage

from millwheel.client.injector import BatchOf
from millwheel.injectors.batches import commit_batch, draw_sequencer, full_stream_name, last_batch, open_publisher
from millwheel.injectors.spark.loop import run
from millwheel.injectors.spark.options import SinkOptions
from millwheel.rpc.failures import RequestError

__all__ = ["TaskReport", "announce", "finish", "is_committed", "resolve", "settle"]

_FINISHED: Final = "INJECTOR_FINISHED"


@dataclass(frozen=True, slots=True)
class TaskReport(WriterCommitMessage):
    """What a task reports to the driver about one partition.

    ``rows``: how many rows were sent and ACKed; 0 if the batch was committed before. ``newest``: the largest value of
    the watermark's column, in microseconds.
    """

    batch: BatchOf
    rows: int
    newest: int | None


def resolve(options: SinkOptions) -> SinkOptions:
    """The options with the stream's full name. Tasks, ids and cursors know the stream by that alone."""
    return replace(options, stream=run(full_stream_name(options)))


def announce(options: SinkOptions) -> int:
    """Allocate a sequencer for the tasks of one batch, before the first task begins.

    From now on the process takes part in the stream's low watermark. Rows from an earlier driver's tasks are refused.
    """

    return run(draw_sequencer(options))


def is_committed(options: SinkOptions, batch: BatchOf) -> bool:
    """Whether the batch is committed: complete, with its watermark published."""

    return run(last_batch(options, batch.query)) >= batch.batch


def settle(options: SinkOptions, reports: Sequence[TaskReport], batch: BatchOf) -> None:
    """Publish the watermark, then commit the batch. Every record of ``batch`` is ACKed."""
    newest = max((report.newest for report in reports if report.newest is not None), default=None)
    run(commit_batch(options, batch, None if newest is None else newest - options.allowed_delay))


def finish(options: SinkOptions) -> None:
    """Publish plus infinity for the process, permanently. Idempotent."""

    async def end() -> None:
        try:
            async with open_publisher(options) as injector:
                await injector.finish()
        except RequestError as error:
            if error.reason != _FINISHED:
                raise

    run(end())
