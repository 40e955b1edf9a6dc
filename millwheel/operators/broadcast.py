"""The join with a broadcast table: a small table that each record meets as a whole, and not only the row of its key.

``BroadcastTable`` has the table under one key. It sends each change to every *copy*. A copy is a key of the join, with
a table of its own in its state. So a copy survives, moves and is looked up like any other state. Each record of the
other stream goes to one copy.

Invariants:

- All copies get the changes in one order. One key produces them, and each copy gets them in the order of their commits
  (G15).
- All copies agree about the time from which a change holds: it is not below the low watermark that the table has.
- No change is lost at a copy. The table's owner after a takeover may know an older low watermark than a copy, so a
  change may be late there (G14). Therefore ``late=`` is for the records alone: the changes' input is ``never_late``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from millwheel.model.time import MAX_TIMESTAMP, Timestamp
from millwheel.operators.joins import LEFT
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.errors import UsageError
from millwheel.sdk.growing.collections import MapState, OrderedState
from millwheel.sdk.growing.fields import GrowingState
from millwheel.sdk.records import Record, Timer

__all__ = ["COPIES", "ROWS", "BroadcastAsOfJoin", "BroadcastJoin", "BroadcastTable", "TableChange", "change_type"]

V = TypeVar("V")
N = TypeVar("N")
S = TypeVar("S", bound=GrowingState)
COPIES: Final = 64
"""The number of copies by default."""
ROWS: Final = 10_000
"""The most rows of a table by default."""
MAX_STEPS: Final = 1_000
"""How many records one firing joins, and all others of the last one's timestamp."""


class TableChange(msgspec.Struct, Generic[V, N], frozen=True):
    """One row of the table for one copy. The value None: the row is removed.

    The number of copies is a part of the type. So an update cannot change it: a new copy would have no table.
    """

    copy: int
    copies: N
    key: str
    value: V | None


def change_type(row: Any, copies: int) -> Any:
    """The type of the changes of a table with rows of type ``row``."""
    return TableChange[row, Literal[copies]]  # type: ignore[valid-type]


class BroadcastTable(Computation[Any, dict[str, tuple[int, V]]], Generic[V]):
    """Keeps the table by key: each row's timestamp and value. It produces each change once for every copy.

    A row has the value that arrived last. After :func:`in_order`, this is the newest one by timestamp. A late value
    then holds from the low watermark on, or is dropped if the row has a newer one.

    Args:
        key_of: Returns the key of a value's row.
        output: The stream of the changes.
        row: The type of the rows.
        copies: The number of copies.
        limit: The most rows. The hook fails at a row beyond it.
        by_time: Whether a late value that is older than its row is dropped.
        removes: Whether a value removes its row. None: none does.

    Raises:
        UsageError: ``copies`` or ``limit`` is not positive.
    """

    def __init__(
        self,
        key_of: Callable[[Any], str],
        output: str,
        row: Any,
        *,
        copies: int,
        limit: int,
        by_time: bool,
        removes: Callable[[V], bool] | None,
    ) -> None:
        for name, number in (("copies", copies), ("limit", limit)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise UsageError(f"join_broadcast takes a positive {name}, not {number!r}")
        self.key_of = key_of
        self.output = output
        self.change = change_type(row, copies)
        self.copies = copies
        self.limit = limit
        self.by_time = by_time
        self.removes = removes
        # The type argument for V. It defines the type of the state.
        self.__orig_class__ = BroadcastTable[row]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.change}

    def process_record(self, ctx: Context[dict[str, tuple[int, V]]], record: Record[Any]) -> None:
        """Change the row, and produce the change for each copy."""
        at, value, table = record.timestamp, record.value, ctx.state
        key = self.key_of(value)
        held = table.get(key)
        if self.by_time and held is not None and at < held[0]:
            ctx.count_dropped()
            return
        removed = self.removes is not None and self.removes(value)
        if removed:
            table.pop(key, None)
        else:
            if held is None and len(table) >= self.limit:
                raise ValueError(
                    f"the broadcast table has {len(table)} rows, which is its limit, so there is no room for row "
                    f"{key!r:.80}: raise limit=, or let removes= delete the rows that are over"
                )
            table[key] = at, value
        since = Timestamp(max(at, ctx.watermark))
        for copy in range(self.copies):
            change = TableChange(copy, self.copies, key, None if removed else value)
            ctx.produce(self.output, change, timestamp=since)

    def _key_in_letters(self, key: str, values: Callable[[], Sequence[V]]) -> str:
        return self.key_of(values()[0])


class BroadcastJoin(Computation[Any, dict[str, V]], Generic[V]):
    """Joins each left record with the table, as it has arrived at the record's copy.

    Args:
        function: Returns the result of a left value and the table.
        output: The stream of the results. They have the timestamps of the left records.
        row: The type of the rows.
        result: The type of the results.
        key_of: Returns the user's key of a left value, for dead letters. None: there is none.
    """

    def __init__(
        self,
        function: Callable[[Any, Mapping[str, V]], Any],
        output: str,
        row: Any,
        result: Any,
        key_of: Callable[[Any], str] | None = None,
    ) -> None:
        self.function = function
        self.key_of = key_of
        self.output = output
        self.result = result
        # The type argument for V. It defines the type of the state.
        self.__orig_class__ = BroadcastJoin[row]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}

    def process_record(self, ctx: Context[dict[str, V]], record: Record[Any]) -> None:
        """Produce the result of a left record, or change a row."""
        if record.stream == LEFT:
            ctx.produce(self.output, self.function(record.value, MappingProxyType(ctx.state)))
        else:
            _set(ctx.state, record.value.key, record.value.value)

    def _key_in_letters(self, key: str, values: Callable[[], Sequence[Any]]) -> str:
        value = values()[0]
        if isinstance(value, TableChange):
            return value.key
        return "" if self.key_of is None else self.key_of(value)


class _Rows(Mapping[str, V], Generic[V]):
    """The table of a copy for one firing. A row is decoded when it is first read, and all are when one iterates."""

    def __init__(self, stored: MapState[str, V]) -> None:
        self._stored = stored
        self._read: dict[str, V] = {}
        self._complete = False

    def change(self, key: str, value: V | None) -> None:
        """Set or remove a row."""
        _set(self._stored, key, value)
        _set(self._read, key, value)

    def _all(self) -> dict[str, V]:
        if not self._complete:
            self._read, self._complete = dict(self._stored), True
        return self._read

    def __getitem__(self, key: str) -> V:
        if key not in self._read and not self._complete:
            self._read[key] = self._stored[key]
        return self._read[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._stored)

    def keys(self) -> KeysView[str]:
        """See Mapping."""
        return self._all().keys()

    def values(self) -> ValuesView[V]:
        """See Mapping."""
        return self._all().values()

    def items(self) -> ItemsView[str, V]:
        """See Mapping."""
        return self._all().items()


class BroadcastAsOfJoin(Computation[Any, S], Generic[S]):
    """Joins each left record with the table as of its timestamp, when the low watermark has passed it.

    So the result depends on the timestamps alone. A late record meets the table as of the low watermark.

    Args:
        function: Returns the result of a left value and the table.
        output: The stream of the results. They have the timestamps of the left records.
        types: The types of the left records, the rows and the results.
    """

    def __init__(
        self, function: Callable[[Any, Mapping[str, Any]], Any], output: str, types: tuple[Any, Any, Any]
    ) -> None:
        left, row, self.result = types
        self.function = function
        self.output = output
        # The type argument for S: the type of the state.
        self.__orig_class__ = BroadcastAsOfJoin[_copy_type(left, row)]  # type: ignore[misc]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}

    def process_record(self, ctx: Context[Any], record: Record[Any]) -> None:
        """Keep a left record, or a change, until its time."""
        copy, at, value = ctx.state, record.timestamp, record.value
        first = _first(copy)
        if record.stream == LEFT:
            copy.records.add(at, value)
        else:
            copy.changes.add(at, (value.key, value.value))
        if first is None or at < first:
            self._wake(ctx, at)

    def process_timer(self, ctx: Context[Any], timer: Timer) -> None:
        """Change the table, and produce the results of the left records, in the order of their times."""
        copy = ctx.state
        until = self._end_of_firing(copy.records, ctx.watermark)
        table, changes = _Rows(copy.table), deque(copy.changes.pop_until(until))
        for at, value in copy.records.pop_until(until):
            while changes and changes[0][0] <= at:
                table.change(*changes.popleft()[1])
            ctx.produce(self.output, self.function(value, table), timestamp=at)
        for _, change in changes:
            table.change(*change)
        first = _first(copy)
        if first is not None:
            self._wake(ctx, first)

    def _end_of_firing(self, records: OrderedState[Any], watermark: Timestamp) -> Timestamp:
        """The time below which this firing joins the records. The next firing joins the rest."""
        first, over = records.first(), next(islice(records.range(end=watermark), MAX_STEPS, None), None)
        if first is None or over is None:
            return watermark
        return Timestamp(max(over[0], first[0] + 1))

    def _wake(self, ctx: Context[Any], first: Timestamp) -> None:
        ctx.set_timer(Timestamp(min(first + 1, MAX_TIMESTAMP)), hold=first)


def _copy_type(left: Any, row: Any) -> type[GrowingState]:
    """The type of a copy's state."""

    class Copy(GrowingState):
        records: OrderedState[left]
        changes: OrderedState[tuple[str, row | None]]
        table: MapState[str, row]

    return Copy


def _first(copy: Any) -> Timestamp | None:
    """The first time at which a copy has something to do."""
    first = [one[0] for one in (copy.records.first(), copy.changes.first()) if one is not None]
    return min(first, default=None)


def _set(table: Any, key: str, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
