"""Divides columns of records by the intervals of their keys, without a step for each record. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final

from millwheel.rpc.column_keys import bytes_in, keys_of
from millwheel.rpc.columns import RecordColumns

__all__ = ["DELIVERY_BYTES", "DELIVERY_RECORDS", "divided"]

DELIVERY_RECORDS: Final = 8_192
"""The most records of a table in one delivery: the receiver takes them in one step."""
DELIVERY_BYTES: Final = 1 << 20
"""The most bytes of their columns in one delivery. A larger record is delivered alone."""

_COMPARED: Final = 12
"""With at most so many bounds, each key is compared with each bound in Arrow: 7 ns each. A search takes 100 ns."""


def divided(
    columns: RecordColumns, starts: Sequence[bytes], ids: Sequence[Any]
) -> Iterator[tuple[int, RecordColumns, Sequence[Any]]]:
    """The records of each interval that has some, by its number, with their ids, as deliveries.

    Invariant (G13): each has at most ``DELIVERY_RECORDS`` and ``DELIVERY_BYTES``, also where all records are of one
    interval: the routing may have changed since a part was made for several.

    Args:
        columns: The records.
        starts: The first key of each interval but the lowest one.
        ids: The ids of the records.
    """
    if not starts or columns.same is not None:
        yield from _cut(bisect_right(starts, columns.same or b""), columns, ids)
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = keys_of(columns.batch.column(columns.key))
    of_records = _by_comparison(keys, starts) if len(starts) <= _COMPARED else _by_search(keys, starts)
    found = sorted(pc.unique(of_records).to_pylist())
    if len(found) == 1:
        yield from _cut(found[0], columns, ids)
        return
    for number in found:
        whole = pc.indices_nonzero(pc.equal(of_records, pa.scalar(number, of_records.type)))
        yield from _cut(number, columns.taken(whole), _ids_at(ids, whole))


def _cut(number: int, columns: RecordColumns, ids: Sequence[Any]) -> Iterator[tuple[int, RecordColumns, Sequence[Any]]]:
    """The records of interval ``number``, in deliveries that are not too large."""
    count = len(columns)
    if count <= DELIVERY_RECORDS and (columns.size <= DELIVERY_BYTES or count == 1):
        yield number, columns, ids
        return
    at = DELIVERY_RECORDS if count > DELIVERY_RECORDS else count // 2
    yield from _cut(number, columns.cut(0, at), ids[:at])
    yield from _cut(number, columns.cut(at, count), ids[at:])


def _ids_at(ids: Sequence[Any], indexes: Any) -> Sequence[Any]:
    if not (isinstance(ids, range) and ids.step == 1):
        return [ids[index] for index in indexes.to_pylist()]
    import pyarrow as pa
    import pyarrow.compute as pc

    return _numbers(pc.add(indexes.cast(pa.uint64()), pa.scalar(ids.start, pa.uint64())))


def _by_comparison(keys: Any, starts: Sequence[bytes]) -> Any:
    """The interval of each record: how many bounds its key has reached. Arrow orders texts by their bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = keys.cast(pa.binary())
    reached = pc.greater_equal(texts, pa.scalar(starts[0], pa.binary())).cast(pa.int8())
    for start in starts[1:]:
        reached = pc.add(reached, pc.greater_equal(texts, pa.scalar(start, pa.binary())).cast(pa.int8()))
    return reached


def _by_search(keys: Any, starts: Sequence[bytes]) -> Any:
    """The interval of each record, by a search for each distinct key."""
    import pyarrow as pa

    distinct = keys.dictionary_encode()
    intervals = pa.array([bisect_right(starts, key) for key in bytes_in(distinct.dictionary)], pa.int32())
    return intervals.take(distinct.indices)


def _numbers(column: Any) -> array[int]:
    """The numbers of a column of 64 bits without a sign, as they are in its memory."""
    numbers = array("Q")
    at = 8 * column.offset
    numbers.frombytes(memoryview(column.buffers()[1])[at : at + 8 * len(column)])
    return numbers
