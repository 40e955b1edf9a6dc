"""The changes of a table that the records of a batch make: one for each row."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from cassandra.query import UNSET_VALUE, BoundStatement

from millwheel.connectors.cassandra.errors import CassandraError
from millwheel.connectors.cassandra.spec import TableSpec
from millwheel.connectors.cassandra.tables import PreparedTable
from millwheel.model.time import Timestamp
from millwheel.sdk.error_texts import error_message

__all__ = ["RowChange", "changes_of", "shown_record"]

T = TypeVar("T")

_SHOWN: Final = 300
"""The most characters of a refused record in an error."""


@dataclass(slots=True)
class RowChange:
    """What a batch makes of one row.

    Attributes:
        key: The primary key, as Cassandra gets it.
        record: The number of the last record that concerns the row, from 1 on.
        delete: The deletion of the row. None: the row is not deleted.
        upsert: What is written after that. None: nothing is.
    """

    key: tuple[bytes, ...]
    record: int
    delete: BoundStatement | None = None
    upsert: BoundStatement | None = None

    def at(self, time: int) -> Iterator[BoundStatement]:
        """The statements with their write times.

        Of a deletion and a write at one time, the deletion wins. So what is deleted before it is written is deleted one
        microsecond earlier.
        """
        if self.delete is not None:
            self.delete.values[0] = struct.pack(">q", time if self.upsert is None else time - 1)
            yield self.delete
        if self.upsert is not None:
            self.upsert.values[-1] = struct.pack(">q", time)
            yield self.upsert


def changes_of(spec: TableSpec[T], table: PreparedTable, records: Sequence[tuple[T, Timestamp]]) -> list[RowChange]:
    """The changes of all rows that the records concern.

    All records of a batch have one write time. Of two writes of a column at one time, Cassandra keeps the larger value.
    *Invariant (G15): a batch writes each column of a row once*, as the last record says. Rows are the same if Cassandra
    finds their keys equal: so keys are compared as bytes.

    Raises:
        CassandraError: A record makes no row. This attempt has written nothing then.
    """
    found: dict[tuple[bytes, ...], RowChange] = {}
    for number, (value, _) in enumerate(records, 1):
        try:
            change = _change(spec, table, number, value)
        except Exception as error:
            raise CassandraError(
                f"{shown_record(records, number)} makes no row of {table.columns.table.name}: {error_message(error)}. "
                "This attempt wrote nothing of the batch. Change the table, or row= in an update"
            ) from error
        former = found.get(change.key)
        if former is not None and change.upsert is not None:
            change.delete = former.delete
            if former.upsert is not None:
                _keep_unset(change.upsert, former.upsert)
        found[change.key] = change
    return list(found.values())


def shown_record(records: Sequence[tuple[Any, Timestamp]], number: int) -> str:
    """A record of a batch for people. ``number``: from 1 on."""
    return f"record {number} of {len(records)}, {records[number - 1][0]!r:.{_SHOWN}},"


def _change(spec: TableSpec[T], table: PreparedTable, number: int, value: T) -> RowChange:
    row, columns = value if spec.row is None else spec.row(value), table.columns
    if spec.delete is not None and spec.delete(value):
        delete = table.delete.bind([0, *columns.key_of(row)])
        return RowChange(tuple(delete.values[1:]), number, delete=delete)
    upsert = table.upsert.bind([*columns.values(row, UNSET_VALUE), 0])
    return RowChange(tuple(upsert.values[: columns.keys]), number, upsert=upsert)


def _keep_unset(later: BoundStatement, former: BoundStatement) -> None:
    """Columns that the later write leaves alone have what the former one writes."""
    for place, value in enumerate(later.values):
        if value is UNSET_VALUE:
            later.values[place] = former.values[place]
