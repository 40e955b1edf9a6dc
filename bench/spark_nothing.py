"""The smallest sink in Python for Spark: what it costs is Spark's own, and no sink in Python can be without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Nothing", "NothingWriter"]


class Nothing(DataSource):
    """Format `nothing`: rows are read, and dropped."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "nothing"

    def writer(self, schema: StructType, overwrite: bool) -> NothingWriter:
        """The writer of a batch."""
        return NothingWriter()


class NothingWriter(DataSourceArrowWriter):
    """Reads batches of rows, and drops them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Read one partition."""
        for _ in iterator:
            pass
        return WriterCommitMessage()
