"""Records of one shard that came together, and how they are divided into batches: as values, or as columns (4.3).

A size of a record depends on the record and its form alone. So batches do not depend on how records were delivered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from millwheel.connectors.batches import Collected, EncodedTable
from millwheel.rpc.column_keys import text_types
from millwheel.rpc.columns import RecordColumns, schema_bytes

__all__ = ["RECORD_BYTES", "ShardRecords", "ShardTable", "ShardValues"]

RECORD_BYTES: Final = 14
"""What a batch has for each record beside the value: the lengths of MessagePack, and the time."""
_TIME_BYTES: Final = 8
_CELL_BYTES: Final = 9
"""More than a number takes in a column, with its part of what says which ones are there."""
_SCHEMAS: Final = 4
_TEXT_BYTES: Final = 5
"""The same for a text, beside its content."""


class ShardRecords(ABC):
    """Records of one shard, in their order."""

    def __init__(self, ends: Any) -> None:
        """``ends``: the size of all records before each one, and at last that of all. A list, or a column."""
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends) - 1

    def end(self, start: int, most: int, room: int) -> int:
        """The first record from ``start`` on that is not within so many records and bytes."""
        fitting = bisect_right(self._ends, self._ends[start] + room) - 1
        return max(start, min(fitting, start + most, len(self)))

    def size(self, start: int, end: int) -> int:
        """The size of some records, in bytes."""
        return int(self._ends[end] - self._ends[start])

    @property
    @abstractmethod
    def largest(self) -> int:
        """The size of the largest record, in bytes."""

    @abstractmethod
    def oldest(self, start: int, end: int) -> tuple[int, int]:
        """The first of the oldest ones among some records, and its time."""

    @abstractmethod
    def put(self, pending: Collected[Any], start: int, end: int) -> None:
        """Add some records to those that are in no batch yet."""


class ShardValues(ShardRecords):
    """Records as encoded values."""

    def __init__(self, values: Sequence[bytes], times: Sequence[int]) -> None:
        super().__init__(list(accumulate((len(value) + RECORD_BYTES for value in values), initial=0)))
        self._values = values
        self._times = times

    @property
    def largest(self) -> int:
        return max(map(len, self._values)) + RECORD_BYTES

    def oldest(self, start: int, end: int) -> tuple[int, int]:
        times = self._times[start:end]
        oldest = min(times)
        return start + times.index(oldest), oldest

    def put(self, pending: Collected[Any], start: int, end: int) -> None:
        pending.values += self._values[start:end]
        pending.times += self._times[start:end]


class ShardTable(ShardRecords):
    """Records as columns."""

    def __init__(self, records: RecordColumns) -> None:
        import numpy as np

        self._records = records
        self._sizes = _row_sizes(records.batch)
        super().__init__(np.concatenate((np.zeros(1, np.int64), np.cumsum(self._sizes))))

    @property
    def stays(self) -> bool:
        """Whether it is stored as columns. Few records go as values, and those that no reader would take as columns.

        Invariant (G13): schemas take at most a quarter of a batch, beside those of its first and of its last table.
        """
        size = schema_bytes(self._records.batch.schema)
        return self.size(0, len(self)) >= _SCHEMAS * size and not self._records.why_unreadable

    def values(self) -> list[bytes]:
        """The records as encoded values."""
        return self._records[:]

    @property
    def largest(self) -> int:
        return int(self._sizes.max())

    def oldest(self, start: int, end: int) -> tuple[int, int]:
        import numpy as np

        times = np.frombuffer(self._records.timestamps, np.int64)
        place = start + int(times[start:end].argmin())
        return place, int(times[place])

    def put(self, pending: Collected[Any], start: int, end: int) -> None:
        given = self._records
        some = RecordColumns(given.batch.slice(start, end - start), given.timestamps[start:end])
        pending.tables.append(EncodedTable.of(some, len(pending.values)))


def _row_sizes(batch: Any) -> Any:
    """The size of each record in columns: at least what it takes of their buffers."""
    import numpy as np

    sizes = np.full(len(batch), _TIME_BYTES, np.int64)
    for column in batch.columns:
        if column.type in text_types():
            bounds = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
            sizes += bounds[1:] - bounds[:-1]
            sizes += _TEXT_BYTES
        else:
            sizes += _CELL_BYTES
    return sizes
