"""Divides columns of records by the intervals of their keys, without a step for each record. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from millwheel.rpc.column_keys import bytes_in
from millwheel.rpc.columns import RecordColumns

__all__ = ["divided"]


def divided(
    columns: RecordColumns, starts: Sequence[bytes], ids: Sequence[Any]
) -> Iterator[tuple[int, RecordColumns, Sequence[Any]]]:
    """The records of each interval that has some, by its number, with their ids.

    Args:
        columns: The records.
        starts: The first key of each interval but the lowest one.
        ids: The ids of the records.
    """
    if not starts or not columns.key:
        yield 0, columns, ids
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = columns.batch.column(columns.key).dictionary_encode()
    intervals = pa.array([bisect_right(starts, key) for key in bytes_in(keys.dictionary)], pa.int32())
    found = pc.unique(intervals).to_pylist()
    if len(found) == 1:
        yield found[0], columns, ids
        return
    of_records = intervals.take(keys.indices)
    for number in sorted(found):
        indexes = pc.indices_nonzero(pc.equal(of_records, number))
        if isinstance(ids, range) and ids.step == 1:
            own = pc.add(indexes.cast(pa.uint64()), pa.scalar(ids.start, pa.uint64())).to_pylist()
        else:
            own = [ids[index] for index in indexes.to_pylist()]
        yield number, columns.taken(indexes), own
