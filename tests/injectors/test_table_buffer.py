"""Small tables of one turn of the event loop, gathered before the core gets them (5.2)."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pytest

from millwheel.client.injector.ids import partition_scope
from millwheel.client.injector.small_tables import SmallTables
from millwheel.client.injector.table_buffer import TableBuffer
from millwheel.client.injector.tables import plain_table, table_parts
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.columns import RecordColumns

SCOPE, OTHER = partition_scope("s", "p", "0"), partition_scope("s", "p", "1")
KEYS: Final[Mapping[IncarnationId, str]] = {IncarnationId("c"): "key", IncarnationId("log"): ""}


def table(first: int, count: int = 2) -> RecordColumns:
    numbers = range(first, first + count)
    batch = pa.record_batch({"key": [f"k{one}" for one in numbers], "number": list(numbers)})
    return RecordColumns(batch, array("q", numbers), "")


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
    assert list(columns.values) == [value for first in (5, 7, 9) for value in table(first)]
    assert list(columns.keys[IncarnationId("c")]) == [b"k%d" % one for one in range(5, 11)]
    assert list(columns.keys[IncarnationId("log")]) == [b""] * 6
    assert not buffer.count


@pytest.mark.parametrize("firsts", [(5,), (5, 7)])
def test_a_table_may_change_after_it_was_added(firsts: Sequence[int]) -> None:
    """Arrow uses the memory of a NumPy array, which a program may use again."""
    buffer, numbers = TableBuffer(), np.zeros(2, np.int64)
    for first in firsts:
        numbers[:] = first
        batch = pa.record_batch({"key": ["a", "b"], "number": pa.array(numbers)})
        buffer.add(RecordColumns(batch, array("q", [first] * 2), ""), KEYS, SCOPE, first)
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


@pytest.mark.guarantee("G14", section="6.1.1")
def test_a_record_behind_a_promise_does_not_join_those_before_it() -> None:
    buffer = filled(5)
    buffer.promise = 7
    assert buffer.takes(table(7), KEYS, SCOPE, 7)
    buffer.promise = 8
    assert not buffer.takes(table(7), KEYS, SCOPE, 7)


def test_a_small_table_is_read_as_any_other() -> None:
    """From the second one on, the schema is known. A part of a larger table counts with its own bytes alone."""
    whole = pa.table(
        {"key": ["a", "b", None, "d"], "at": pa.array([4, 3, 2, 1], pa.timestamp("us")), "flag": [True] * 4}
    )
    whole = whole.replace_schema_metadata({"pandas": "x"})
    small = SmallTables()
    assert small.read(whole, "at") is None
    plain = plain_table(whole.slice(1, 2), "at")
    small.learn(whole, "at", plain)
    found = small.read(whole.slice(1, 2), "at")
    ((values, stamps),) = table_parts(plain)
    assert found is not None
    assert (found.batch, found.timestamps) == (values, stamps)
    assert found.size == RecordColumns(values, stamps, "").size
    assert found.batch.schema.metadata is None


def test_metadata_of_columns_is_not_sent() -> None:
    """Two schemas count as equal if only their metadata differ, and these may be of any size."""
    small, usual = SmallTables(), pa.table({"key": ["a"], "at": [1]})
    small.learn(usual, "at", plain_table(usual, "at"))
    fields = [pa.field("key", pa.string(), metadata={"note": "x" * 100_000}), pa.field("at", pa.int64())]
    found = small.read(pa.table({"key": ["a"], "at": [1]}, pa.schema(fields)), "at")
    assert found is not None
    assert found.batch.schema.field("key").metadata is None


@pytest.mark.parametrize(
    "other",
    [
        pa.table({"key": ["a"], "at": pa.array([None], pa.int64())}),
        pa.table({"key": ["a"], "at": pa.array([1], pa.timestamp("us"))}),
        pa.table({"key": [1], "at": [1]}),
        pa.table({"at": [1], "key": ["a"]}),
        pa.table({"key": [], "at": []}, pa.schema([("key", pa.string()), ("at", pa.int64())])),
        pa.concat_tables([pa.table({"key": ["a"], "at": [1]})] * 2),
        pa.table({"key": ["a"] * 3_000, "at": [1] * 3_000}),
        pa.table({"key": ["a"], "at": [1]}).to_pandas(),
    ],
    ids=["null", "times", "type", "order", "empty", "chunks", "large", "pandas"],
)
def test_what_is_no_small_table_goes_the_usual_way(other: object) -> None:
    small, usual = SmallTables(), pa.table({"key": ["a"], "at": [1]})
    small.learn(usual, "at", plain_table(usual, "at"))
    assert small.read(usual, "at") is not None
    assert small.read(other, "at") is None
