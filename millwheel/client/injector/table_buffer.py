"""Small tables that were sent in one turn of the event loop, before they are passed to the core together (5.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millwheel.client.injector.ids import IdScope
from millwheel.client.injector.messages import KeyedRecords
from millwheel.client.injector.small_tables import SmallTable, SmallTableLayout
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.column_keys import KeySource

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
        self._batches: list[Any] = []
        self._keys = _NO_KEYS
        self._layout: SmallTableLayout | None = None
        self._scope: IdScope | None = None
        self._first = 0
        """The position of the first record."""

    def takes(self, table: SmallTable, keys: Mapping[IncarnationId, KeySource], scope: IdScope, first: int) -> bool:
        """Whether a table may follow those in the buffer. ``first``: the position of its first record.

        ``keys``: where its keys are. They are the same object for the same columns and the same routing.
        """
        if not self.count:
            return True
        if keys is not self._keys or table.layout is not self._layout or first != self._first + self.count:
            return False
        same = scope is self._scope or scope == self._scope
        return same and (self.promise is None or table.oldest >= self.promise)

    def add(self, table: SmallTable, keys: Mapping[IncarnationId, KeySource], scope: IdScope, first: int) -> None:
        """Append the records of a table that the buffer takes."""
        if not self.count:
            self._keys, self._layout, self._scope, self._first = keys, table.layout, scope, first
        self._batches.append(table.batch)
        self.count += table.count
        self.size += table.size

    def take(self) -> KeyedRecords:
        """Remove and return all records, in buffers of their own. There is at least one. ``promise`` stays."""
        assert self._scope is not None
        assert self._layout is not None
        batches, self._batches = self._batches, []
        ids = range(self._first, self._first + self.count)
        self.count = self.size = 0
        records = self._layout.records(batches)
        columns = {key: records.keyed(key).keys() for key in set(self._keys.values())}
        keys = {name: columns[key] for name, key in self._keys.items()}
        return KeyedRecords(records, records.timestamps, keys, self._scope, ids)
