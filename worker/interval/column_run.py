"""What a source has read as columns, in the entry of a commit (5.2, 6.1.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.effects import ProducedTable

__all__ = ["ColumnRun", "UnsentTable"]

_ROW_BYTES: Final = 24
"""About the size of a production's row without its value, keys and names."""
_COLUMN_BYTES: Final = 2
"""What MessagePack has in each row beside a name and a value of a column: their types. A truth value is not a bit."""
_TIME_BYTES: Final = 8


class ColumnRun(msgspec.Struct, array_like=True, frozen=True):
    """Productions at positions that follow one another, of one producing key: columns of Arrow.

    Invariant (G9): a record's value is what ``RecordColumns`` makes of its row, whichever owner sends it.
    """

    position: int
    """The position of the first one."""
    stream: str
    targets: tuple[tuple[IncarnationId, str | tuple[bytes]], ...]
    """The consumers: each with the column that has their keys there. Or with the one key of all records, in an array.
    An empty text is the empty key, too."""
    producer: bytes
    columns: bytes
    """``RecordColumns`` of delivery.proto, without keys."""

    def rows(self) -> Iterator[tuple[int, bytes, str, bytes, int, tuple[tuple[IncarnationId, bytes], ...], bytes]]:
        """The productions one by one, as ``ProductionRow``.

        Raises:
            ValueError: The columns are malformed, or lack one with keys.
            NotInstalledError: pyarrow is missing.
        """
        records = RecordColumns.from_stored(self.columns)
        targets = tuple((name, key[0] if isinstance(key, tuple) else key or b"") for name, key in self.targets)
        for _, key in targets:
            if not records.has_keys(key):
                raise ValueError(f"columns of records without a column {key!r} of keys")
        table = ProducedTable(self.stream, records, targets)
        for position, one in enumerate(table.productions(), self.position):
            yield position, self.producer, self.stream, one.value, one.timestamp, one.targets, b""


class UnsentTable:
    """Records that a source has read as columns, with their place in a commit.

    Args:
        position: The position of the first one.
        producer: The split.
        table: The records.
    """

    __slots__ = ("position", "producer", "table")

    def __init__(self, position: int, producer: bytes, table: ProducedTable) -> None:
        self.position = position
        self.producer = producer
        self.table = table

    def stored(self) -> ColumnRun:
        """The form in the entry."""
        content = self.table.records.to_wire().SerializeToString()
        targets = tuple((name, key if isinstance(key, str) else (key,)) for name, key in self.table.targets)
        return ColumnRun(self.position, self.table.stream, targets, self.producer, content)

    @property
    def spared(self) -> int:
        """About how many bytes more its rows have. A takeover makes rows of it."""
        table = self.table
        records: RecordColumns = table.records
        names = len(table.stream) + len(self.producer) + sum(len(consumer) for consumer, _ in table.targets)
        # A value has the names of all columns, and two bytes more for each. The columns have a time beside it.
        values = records.average + _COLUMN_BYTES * len(records.batch.columns) - _TIME_BYTES
        keys = sum(_key_bytes(records.keyed(key)) for _, key in table.targets)
        return len(records) * (names + _ROW_BYTES + values) - records.size + keys


def _key_bytes(records: RecordColumns) -> int:
    """About the bytes of the keys of all records."""
    if (same := records.same) is None:
        return int(records.batch.column(records.key).nbytes)
    return len(records) * len(same)
