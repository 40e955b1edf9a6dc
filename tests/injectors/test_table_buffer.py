"""Small tables of one turn of the event loop, gathered before the core gets them (5.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pytest

from millwheel.client.injector.ids import partition_scope
from millwheel.client.injector.small_tables import SmallTable, SmallTables
from millwheel.client.injector.table_buffer import TableBuffer
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.column_keys import KeySource
from millwheel.rpc.columns import RecordColumns

SCOPE, OTHER = partition_scope("s", "p", "0"), partition_scope("s", "p", "1")
KEYS: Final[Mapping[IncarnationId, KeySource]] = {IncarnationId("c"): "key", IncarnationId("log"): b""}


SMALL = SmallTables()
SMALL.learn(pa.table({"key": ["k"], "number": [1], "at": [1]}), "at")


def small(whole: pa.Table, tables: SmallTables = SMALL) -> SmallTable:
    found = tables.read(whole, "at")
    assert found is not None
    return found


def table(first: int, count: int = 2) -> SmallTable:
    numbers = range(first, first + count)
    return small(pa.table({"key": [f"k{one}" for one in numbers], "number": list(numbers), "at": list(numbers)}))


def filled(*firsts: int) -> TableBuffer:
    buffer = TableBuffer()
    for first in firsts:
        assert buffer.takes(table(first), KEYS, SCOPE, first)
        buffer.add(table(first), KEYS, SCOPE, first)
    return buffer


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_buffer_gives_its_tables_in_their_order() -> None:
    buffer = filled(5, 7, 9)
    assert (buffer.count, buffer.size) == (6, sum(table(first).size for first in (5, 7, 9)))
    columns = buffer.take()
    assert (columns.ids, columns.scope, list(columns.timestamps)) == (range(5, 11), SCOPE, [5, 6, 7, 8, 9, 10])
    assert list(columns.values) == [value for first in (5, 7, 9) for value in table(first).records()]
    assert list(columns.keys[IncarnationId("c")]) == [b"k%d" % one for one in range(5, 11)]
    assert list(columns.keys[IncarnationId("log")]) == [b""] * 6
    assert not buffer.count


@pytest.mark.parametrize("firsts", [(5,), (5, 7)])
def test_a_table_may_change_after_it_was_added(firsts: Sequence[int]) -> None:
    """Arrow uses the memory of a NumPy array, which a program may use again."""
    buffer, numbers = TableBuffer(), np.zeros(2, np.int64)
    for first in firsts:
        numbers[:] = first
        one = small(pa.table({"key": ["a", "b"], "number": pa.array(numbers), "at": [first] * 2}))
        buffer.add(one, KEYS, SCOPE, first)
    numbers[:] = 99
    found = buffer.take().values
    assert isinstance(found, RecordColumns)
    assert found.batch.column("number").to_pylist() == [first for first in firsts for _ in range(2)]


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_buffer_takes_only_what_follows() -> None:
    buffer = filled(5)
    assert buffer.takes(table(7), KEYS, SCOPE, 7)
    assert not buffer.takes(table(7), KEYS, OTHER, 7)
    assert not buffer.takes(table(8), KEYS, SCOPE, 8), "a gap"
    assert not buffer.takes(table(7), dict(KEYS), SCOPE, 7), "another routing, or other columns"
    fields = [pa.field("key", pa.string(), nullable=False), pa.field("number", pa.int64()), pa.field("at", pa.int64())]
    other, strict = SmallTables(), pa.table({"key": ["k"], "number": [1], "at": [7]}, pa.schema(fields))
    other.learn(strict, "at")
    assert not buffer.takes(small(strict, other), KEYS, SCOPE, 7), "Arrow joins no columns of which some may be null"


@pytest.mark.guarantee("G14", section="6.1.1")
def test_a_record_behind_a_promise_does_not_join_those_before_it() -> None:
    buffer = filled(5)
    buffer.promise = 7
    assert buffer.takes(table(7), KEYS, SCOPE, 7)
    buffer.promise = 8
    assert not buffer.takes(table(7), KEYS, SCOPE, 7)
