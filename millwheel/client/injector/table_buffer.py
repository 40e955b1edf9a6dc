"""Small tables that were sent in one turn of the event loop, before they are passed to the core together (5.2)."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Final

from millwheel.client.injector.ids import IdScope
from millwheel.client.injector.messages import KeyedRecords
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.column_keys import KeySource
from millwheel.rpc.columns import RecordColumns, joined

__all__ = ["TableBuffer"]

_NO_KEYS: Final[Mapping[IncarnationId, KeySource]] = {}


class TableBuffer:
    """Tables of one scope and one form, whose positions follow one another. A promise of the watermark may follow them.

    Invariant: what the buffer gives has the effect of its tables and promises, one after the other. So no record in it
    is older than a promise that was made before it: the core counts such a record as late.
    """

    def __init__(self) -> None:
        self.count = 0
        """The number of records."""
        self.size = 0
        """The size of their columns, in bytes."""
        self.promise: int | None = None
        """The last promise of the watermark that was made behind some of the records, in microseconds."""
        self._tables: list[RecordColumns] = []
        self._keys = _NO_KEYS
        self._scope: IdScope | None = None
        self._ids = range(0)

    def takes(
        self, records: RecordColumns, keys: Mapping[IncarnationId, KeySource], scope: IdScope, first: int
    ) -> bool:
        """Whether a table may follow those in the buffer. ``first``: the position of its first record.

        ``keys``: where its keys are. They are the same object for the same columns and the same routing.
        """
        if not self.count:
            return True
        if keys is not self._keys or scope != self._scope or first != self._ids.stop:
            return False
        return self.promise is None or records.extremes()[0] >= self.promise

    def add(self, records: RecordColumns, keys: Mapping[IncarnationId, KeySource], scope: IdScope, first: int) -> None:
        """Append the records of a table that the buffer takes. Its columns are copied: the caller may change them."""
        if not self.count:
            self._keys, self._scope, self._ids = keys, scope, range(first, first)
        self._ids = range(self._ids.start, first + len(records))
        self._tables.append(records.cut(0, len(records)))
        self.count += len(records)
        self.size += records.size

    def take(self) -> KeyedRecords:
        """Remove and return all records, in buffers of their own. There is at least one. ``promise`` stays."""
        assert self._scope is not None
        tables, self._tables = self._tables, []
        stamps = array("q")
        for one in tables:
            stamps.extend(one.timestamps)
        records = joined(tables, stamps)
        self.count = self.size = 0
        columns = {key: records.keyed(key).keys() for key in set(self._keys.values())}
        keys = {name: columns[key] for name, key in self._keys.items()}
        return KeyedRecords(records, records.timestamps, keys, self._scope, self._ids)
