"""What a sink is: shards, each with a writer that takes numbered batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from millwheel.connectors.contents import BatchRecords
from millwheel.connectors.tables import row_columns
from millwheel.model.time import Timestamp

__all__ = ["Sink", "SinkBatch", "SinkShard", "SinkWriter"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SinkShard:
    """Which shard of which sink it is.

    Attributes:
        sink: The full name of the sink, such as ``shop/totals-sink``. It is part of what a writer stores.
        shard: The number of the shard, from 0 on.
        shards: How many there are.
        run: Distinguishes shards of one name that follow each other: a topology that was deleted and submitted again
            counts its batches from 1 on again.
    """

    sink: str
    shard: int
    shards: int
    run: int


@dataclass(frozen=True, slots=True)
class SinkBatch(Generic[T]):
    """Records that a writer writes together.

    Attributes:
        number: 1 for the first batch of a run, and one more for each next one.
        records: The values with their event times, in the order in which they were produced for each key.
        id: Equal ids mean equal records, and equal batches before them: 32 hexadecimal digits. A number alone does not
            mean that. After a restore of a snapshot, it may come again with other records.
        after: The id of the batch before it in this shard. Empty: it is the first one that this sink gets of the run.
    """

    number: int
    records: Sequence[tuple[T, Timestamp]]
    id: str
    after: str

    def to_arrow(self, record_type: Any) -> Any:
        """The values as a table of pyarrow. No value is made of a record that came in columns of these types.

        >>> import msgspec
        >>> class Sale(msgspec.Struct):
        ...     item: str
        ...     at: Timestamp
        >>> batch = SinkBatch(1, [(Sale("tea", Timestamp(5)), Timestamp(5))], "00", "")
        >>> batch.to_arrow(Sale).schema.types
        [DataType(string), TimestampType(timestamp[us, tz=UTC])]

        Args:
            record_type: The type of the records. Its fields are the columns, with the types of docs/files.md.

        Raises:
            UsageError: A field of the type has no column, or pyarrow is missing.
        """
        columns = row_columns(record_type)
        if isinstance(self.records, BatchRecords):
            return self.records.table(columns)
        return columns.table([value for value, _ in self.records])


class SinkWriter(ABC, Generic[T]):
    """Writes the batches of one shard, in the order of their numbers."""

    @abstractmethod
    async def write(self, batch: SinkBatch[T]) -> None:
        """Write a batch, and return when it is durable.

        It must take effect once for each id. After a crash, the last batch may come again, to another process. The
        write of the former process may still be under way then. There are three ways:

        - Store the id in the same transaction as the records (a database). If the stored id is the batch's own, it is
          there. If it is ``after``, write the batch. Any other one is an error: the topology or the other system was
          set back to an earlier time.
        - Let the name of what is written depend on the id (a file). A second write replaces it by the same.
        - Write each record under a key of its own (an upsert).

        What it raises is shown as the error of the shard. The batch is tried again by another writer, after a back-off.
        """

    async def close(self) -> None:
        """Give back what the writer holds. It writes no more."""


class Sink(ABC, Generic[T]):
    """Where the records of a stream go to: a topic of a bus, files, a table.

    An instance has parameters only. It is part of the program, and exists in each process that runs it.
    """

    def _problem(self, record_type: Any) -> str:
        """Return why records of a type cannot be written. Empty: they can, as far as that is known beforehand."""
        return ""

    @abstractmethod
    async def open_writer(self, place: SinkShard) -> SinkWriter[T]:
        """Open the writer of a shard.

        A former process may still have a writer of this shard. Shut it out, if the system that is written to can.
        """
