"""Writers of format ``millwheel``: the driver plans and commits by them, and tasks write rows (section 5.2).

Planning and committing need no Arrow, so only a writing task imports it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millwheel.client.injector import BatchOf
from millwheel.injectors.spark.driver import TaskReport, announce, finish, is_committed, resolve, settle
from millwheel.injectors.spark.errors import OptionError, SinkError
from millwheel.injectors.spark.options import SinkOptions, parse_options
from millwheel.injectors.spark.schema import check_schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchWriter", "StreamWriter", "checked_options", "stream_writer"]

log = logging.getLogger("millwheel.spark")

_IN_ALREADY: Final = (
    "batch %d of %r into stream %r is in already: no row is sent. If this is another load, give it a name of its own "
    "(option 'query') or the next number (option 'batch')"
)


def checked_options(given: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    """Parse the options of a write, and check them with its columns.

    Raises:
        SinkError: The write would overwrite.
        OptionError: An option is invalid. The error names it.
        ColumnError: A column is missing, or has a type that a record cannot have.
    """
    if overwrite:
        raise SinkError("what was sent cannot be taken back: write with mode 'append' (or outputMode 'append')")
    options = parse_options(given)
    check_schema(schema, options)
    return options


def stream_writer(options: SinkOptions, *, plans: bool) -> StreamWriter:
    """The writer of one micro-batch.

    ``plans``: whether tasks follow, which need a sequencer. None follows where a batch is committed or aborted.
    """
    for name, given in (("query", options.query), ("batch", options.batch), ("end_of_input", options.end_of_input)):
        if given:
            what = "is for batch writes: a micro-batch is known by its query's checkpoint"
            if name == "end_of_input":
                what = "is for batch writes: call millwheel.injectors.spark.finish_stream when the query has ended"
            raise OptionError(name, what)
    options = resolve(options)
    return StreamWriter(options, announce(options) if plans else 0)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches. ``sequencer`` is the sequencer of the tasks."""

    def __init__(self, options: SinkOptions, sequencer: int) -> None:
        self.options = options
        self.sequencer = sequencer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition of one micro-batch, in an executor."""
        from millwheel.injectors.spark.tasks import micro_batch, write_partition

        return write_partition(iterator, self.options, micro_batch(self.options), self.sequencer)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the batch, in the driver, after every task has succeeded: every record of the batch is ACKed."""
        reports = _reports(messages)
        if not reports or any(report.batch != reports[0].batch or report.batch.batch != batchId for report in reports):
            raise SinkError(f"the tasks of batch {batchId} report {[str(report.batch) for report in reports]}")
        settle(self.options, reports, reports[0].batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: sent rows cannot be undone. Receivers keep their ids until the next batch begins.

        Spark repeats the batch and completes it then. The watermark has not passed the batch.
        """


class BatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame, as batch ``options.batch`` of ``options.query``."""

    def __init__(self, options: SinkOptions) -> None:
        query = options.query
        if query is None:
            raise OptionError("query", "is missing: a name for this load, the same one whenever it is tried again")
        self.options = options = resolve(options)
        self.batch = BatchOf(options.scope(query), options.batch)
        self.sequencer = 0
        if is_committed(options, self.batch):
            # The process may have finished too. A finished process gets no new sequencer.
            log.warning(_IN_ALREADY, options.batch, options.query, options.stream)
        else:
            self.sequencer = announce(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition, in an executor."""
        from millwheel.injectors.spark.tasks import write_partition

        return write_partition(iterator, self.options, self.batch, self.sequencer)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit, in the driver, after every task has succeeded: every record is ACKed."""
        settle(self.options, _reports(messages), self.batch)
        if self.options.end_of_input:
            finish(self.options)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: sent rows cannot be undone. The next attempt under the same ``query`` completes the load."""


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    return [message for message in messages if isinstance(message, TaskReport)]
