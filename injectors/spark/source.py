"""Format ``millwheel``: rows become records, exactly once (section 5.2), and streams and states become rows.

Spark plans, writes and commits a batch in processes of their own. Each begins with this module, and then imports what
its own step needs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from millwheel.client.injector import BatchOf
from millwheel.injectors.spark.driver import TaskReport, announce, finish, is_committed, resolve, settle
from millwheel.injectors.spark.errors import ColumnError, OptionError, SinkError
from millwheel.injectors.spark.interpreter import check_interpreter
from millwheel.injectors.spark.options import SinkOptions, parse_options
from millwheel.injectors.spark.schema import check_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from millwheel.injectors.spark.readers import Readable, StreamReader

__all__ = ["BatchWriter", "MillwheelDataSource", "StreamWriter"]

log = logging.getLogger("millwheel.spark")

_IN_ALREADY: Final = (
    "batch %d of %r into stream %r is in already: no row is sent. If this is another load, give it a name of its own "
    "(option 'query') or the next number (option 'batch')"
)


class MillwheelDataSource(DataSource):
    """The data source. Register it with ``spark.dataSource.register``. docs/spark.md lists the options."""

    @classmethod
    def name(cls) -> str:
        """The format's name. Spark calls it in the driver at registration, so the session is checked here."""
        check_interpreter()
        return "millwheel"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._revived = False
        self._found: Readable | None = None
        """What is read, once its schema was asked for."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Spark creates a data source where it plans a batch's tasks. It sends a pickled copy to the process that
        # commits or aborts the batch. No task begins there, so the copy needs no sequencer.
        self.__dict__.update(state)
        self._revived = True

    def schema(self) -> StructType:
        """The columns of what the options name: a stream, or the states of a computation.

        Raises:
            OptionError: An option is invalid. The error names it.
            RequestError: There is no such stream or computation.
        """
        return self._find().schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader for ``spark.read``."""
        from millwheel.injectors.spark.readers import BatchReader, StateRowReader

        found = self._readable(schema)
        return StateRowReader(found) if found.options.state else BatchReader(found)

    def streamReader(self, schema: StructType) -> StreamReader:
        """The reader for ``spark.readStream``."""
        from millwheel.injectors.spark.read_options import check_streaming
        from millwheel.injectors.spark.readers import StreamReader

        found = self._readable(schema)
        check_streaming(found.options)
        return StreamReader(found)

    def _readable(self, schema: StructType) -> Readable:
        found = self._found or self._find()
        if schema.simpleString() != found.schema.simpleString():
            raise ColumnError("the columns follow from the type of what is read: leave out .schema()")
        return found

    def _find(self) -> Readable:
        from millwheel.injectors.spark.read_options import parse_read_options
        from millwheel.injectors.spark.readers import find_readable

        self._found = find_readable(parse_read_options(self.options))
        return self._found

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """The writer for ``df.write``."""
        return BatchWriter(self._checked(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """The writer for ``df.writeStream``. Spark creates one for each micro-batch."""
        options = self._checked(schema, overwrite)
        for name, given in (("query", options.query), ("batch", options.batch), ("end_of_input", options.end_of_input)):
            if given:
                what = "is for batch writes: a micro-batch is known by its query's checkpoint"
                if name == "end_of_input":
                    what = "is for batch writes: call millwheel.injectors.spark.finish_stream when the query has ended"
                raise OptionError(name, what)
        options = resolve(options)
        return StreamWriter(options, 0 if self._revived else announce(options))

    def _checked(self, schema: StructType, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise SinkError("what was sent cannot be taken back: write with mode 'append' (or outputMode 'append')")
        options = parse_options(self.options)
        check_schema(schema, options)
        return options


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
