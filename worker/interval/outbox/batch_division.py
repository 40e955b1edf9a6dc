"""Dividing many productions among outbound batches: by the intervals that own their keys, and by size (4.2, 6.1.1)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from millwheel.rpc.column_keys import bytes_in
from millwheel.rpc.columns import RecordColumns, bytes_of
from millwheel.rpc.packed_values import sizes_of

__all__ = ["parts_of", "places_by_journal", "tables_by_journal"]


def places_by_journal(locate: Callable[[bytes], str], keys: Sequence[bytes]) -> list[tuple[str, Sequence[int] | None]]:
    """The journals that own some keys, each with the places of its keys. None: all of them.

    >>> places_by_journal(lambda key: "low" if key < b"m" else "high", [b"a", b"z", b"b"])
    [('low', [0, 2]), ('high', [1])]

    Args:
        locate: The journal that owns a key. Empty: none does. An interval has all keys between two of its own.
        keys: The keys, at least one.
    """
    journal = locate(min(keys))
    if journal and locate(max(keys)) == journal:
        return [(journal, None)]
    places: dict[str, list[int]] = {}
    add = {key: places.setdefault(locate(key), []).append for key in dict.fromkeys(keys)}
    for at, key in enumerate(keys):
        add[key](at)
    return [(name, None if len(places) == 1 else chosen) for name, chosen in places.items()]


def tables_by_journal(
    locate: Callable[[bytes], str], records: RecordColumns
) -> Iterator[tuple[str, RecordColumns, Sequence[int] | None]]:
    """The journals that own the keys of some records, each with its records and their places. None: all of them.

    As ``places_by_journal``, without a key for each record.
    """
    keys = records.keys()
    least, greatest = keys.extremes()
    journal = locate(least)
    if least == greatest or (journal and locate(greatest) == journal):
        yield journal, records, None
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    distinct = keys.column.dictionary_encode()
    journals = [locate(key) for key in bytes_in(distinct.dictionary)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(journals))}
    if len(numbers) == 1:
        yield journals[0], records, None
        return
    of_distinct = array("i", [numbers[name] for name in journals])
    each = pa.Array.from_buffers(pa.int32(), len(of_distinct), [None, pa.py_buffer(of_distinct)])
    of_records = each.take(distinct.indices)
    for name, number in numbers.items():
        places = pc.indices_nonzero(pc.equal(of_records, pa.scalar(number, pa.int32())))
        yield name, records.taken(places), places.to_pylist()


def parts_of(
    keys: Sequence[bytes], values: Sequence[bytes], most_records: int, most_bytes: int
) -> Iterator[tuple[slice, int]]:
    """Parts of some records that each fit into an outbound batch, and their bytes.

    A part ends with the record that reaches a limit, as a batch does that takes one record after the other.
    """
    first, count = 0, len(values)
    while first < count:
        last = first + most_records
        some, own = values[first:last], keys[first:last]
        end, size = first + len(some), bytes_of(some) + sum(map(len, own))
        if size >= most_bytes:
            sizes = accumulate(len(key) + of_value for key, of_value in zip(own, sizes_of(some), strict=True))
            end, size = next((first + at, size) for at, size in enumerate(sizes, 1) if size >= most_bytes)
        yield slice(first, end), size
        first = end
