"""The batches of a sink as they are stored: their records as encoded values, or as the columns in which they came.

*Invariant (G1): a stored record keeps its form.* So a batch that comes again, to any process, is written by the same
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from millwheel.connectors.contents import SomeRecords
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.codecs import ValueCodec

__all__ = ["Collected", "EncodedBatch", "EncodedTable"]

K = TypeVar("K")


class EncodedTable(msgspec.Struct, frozen=True):
    """Records that are columns.

    ``before``: how many of the records that are values come before them. Tables without a value between them have one.
    ``count``: the number of rows. ``columns``: a message RecordColumns of delivery.proto.
    """

    before: int
    count: int
    columns: bytes

    @classmethod
    def of(cls, records: RecordColumns, before: int) -> EncodedTable:
        """Some columns, encoded."""
        return cls(before, len(records), records.to_wire().SerializeToString())

    def records(self) -> RecordColumns:
        """The columns, which are completely validated. ValueError or NotInstalledError: see there."""
        return RecordColumns.from_stored(self.columns)


class EncodedBatch(msgspec.Struct, Generic[K], frozen=True, omit_defaults=True):
    """A batch with its values as bytes. ``K`` is their type, so that an update which changes it is noticed."""

    shard: str
    run: int
    number: int
    id: str
    after: str
    values: list[bytes]
    times: list[int]
    kind: list[K] = []
    """Always empty. It has the type of the values in the schema of the stream."""
    tables: list[EncodedTable] = []
    """Records that are columns. The others are ``values``: ``EncodedTable.before`` says how they are mixed."""

    def parts(self, codec: ValueCodec) -> Iterator[SomeRecords]:
        """The records in their order, in the forms in which they came. ``codec``: that of the values."""
        begin = 0
        for table in self.tables:
            if table.before > begin:
                yield self._values(codec, begin, table.before)
            yield table.records()
            begin = table.before
        if len(self.values) > begin or not self.tables:
            yield self._values(codec, begin, len(self.values))

    def _values(self, codec: ValueCodec, begin: int, end: int) -> list[tuple[Any, int]]:
        return list(zip(codec.decode_all(self.values[begin:end]), self.times[begin:end], strict=True))

    @property
    def size(self) -> int:
        """The size of the records, in bytes."""
        return sum(map(len, self.values)) + sum(len(table.columns) for table in self.tables)

    @property
    def count(self) -> int:
        """The number of the records: of values and rows."""
        return len(self.values) + sum(table.count for table in self.tables)


class Collected(msgspec.Struct, Generic[K], omit_defaults=True):
    """The records of a shard that are in no batch yet."""

    sink: str = ""
    """The full name of the sink when the run began. A fork begins with the state of its original."""
    run: int = 0
    """When the shard got its first record, by the wall clock: it distinguishes this shard from former ones."""
    number: int = 0
    """That of the last batch."""
    id: str = ""
    """That of the last batch."""
    values: list[bytes] = []
    times: list[int] = []
    size: int = 0
    due: int = 0
    """When the batch is made at the latest, by the wall clock."""
    held: int = 0
    """Where the batch holds the low watermark: at its oldest record."""
    kind: list[K] = []
    """Always empty, as in a batch."""
    tables: list[EncodedTable] = []
    """Records that are columns. The others are ``values``: ``EncodedTable.before`` says how they are mixed."""

    @property
    def count(self) -> int:
        """The number of the records: of values and rows."""
        return len(self.values) + sum(table.count for table in self.tables)

    def empty(self) -> None:
        """Remove the records: they are in a batch."""
        self.values, self.times, self.tables, self.size = [], [], [], 0
