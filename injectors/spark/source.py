"""Format ``millwheel``: rows become records, exactly once (section 5.2), and streams and states become rows.

Spark plans, writes and commits a batch in processes of their own. Each begins with this module, and then imports what
its own step needs. One of them only makes the data source, so this module alone loads neither gRPC nor asyncio.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from millwheel.injectors.spark.errors import ColumnError
from millwheel.injectors.spark.interpreter import check_interpreter

if TYPE_CHECKING:
    from millwheel.injectors.spark.readers import Readable, StreamReader
    from millwheel.injectors.spark.writers import BatchWriter, StreamWriter

__all__ = ["MillwheelDataSource"]


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
        from millwheel.injectors.spark.writers import BatchWriter, checked_options

        return BatchWriter(checked_options(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """The writer for ``df.writeStream``. Spark creates one for each micro-batch."""
        from millwheel.injectors.spark.writers import checked_options, stream_writer

        return stream_writer(checked_options(self.options, schema, overwrite), plans=not self._revived)
