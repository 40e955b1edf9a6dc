"""The keys of records that are columns of Arrow: a sequence that makes no object for a key until it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, overload

__all__ = [
    "ColumnKeys",
    "KeySource",
    "bytes_in",
    "integers_of",
    "is_key_type",
    "key_list",
    "keys_of",
    "longest_in",
    "text_types",
]

KeySource = str | bytes
"""Where records that are columns have their keys: in a column of this name. Or bytes: the one key of all of them."""

_SINGLE_READS: Final = 32
"""So many keys are read from the column. With more of them, all keys are made at once: that costs a tenth for each."""


class ColumnKeys(Sequence[bytes]):
    """The keys of records that are columns. ``records``: these records, as ``RecordColumns``, which make their keys."""

    __slots__ = ("_column", "_list", "_reads", "records")

    def __init__(self, records: Any) -> None:
        self.records = records
        self._column: Any = None
        self._list: list[bytes] | None = None
        self._reads = 0

    @property
    def column(self) -> Any:
        """Texts or bytes. None: all records have one key."""
        if self._column is None and self.records.same is None:
            self._column = keys_of(self.records.batch.column(self.records.key))
        return self._column

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if self._list is not None or isinstance(index, slice) or self._reads >= _SINGLE_READS:
            return self.tolist()[index]
        self._reads += 1
        value = self.records.same if self.column is None else self.column[index].as_py()
        return value if isinstance(value, bytes) else value.encode()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.tolist())

    def tolist(self) -> list[bytes]:
        """All keys. They are kept, and must not be changed."""
        if self._list is None:
            self._list = [self.records.same] * len(self) if self.column is None else bytes_in(self.column)
        return self._list

    @property
    def longest(self) -> int:
        """The size of the longest key."""
        return len(self.records.same) if self.column is None else longest_in(self.column)

    @property
    def has_texts(self) -> bool:
        """Whether all keys are texts, which were validated as UTF-8."""
        import pyarrow as pa

        return self.column is None or bool(self.column.type == pa.string())

    def extremes(self) -> tuple[bytes, bytes]:
        """The least and the greatest key. There is at least one."""
        if self.column is None:
            return self.records.same, self.records.same
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pc.min_max(self.column.view(pa.binary()))
        return found["min"].as_py(), found["max"].as_py()


def key_list(keys: Sequence[bytes]) -> Sequence[bytes]:
    """The keys without the columns that they came in, which are then not kept for them (G13)."""
    return keys.tolist() if isinstance(keys, ColumnKeys) else keys


@lru_cache(1)
def text_types() -> frozenset[Any]:
    """The types of columns that have texts or bytes."""
    import pyarrow as pa

    return frozenset((pa.string(), pa.binary()))


def is_key_type(kind: Any) -> bool:
    """Whether a column of a type may have keys: texts, bytes or integers."""
    import pyarrow as pa

    return kind in text_types() or bool(kind == pa.int64())


def keys_of(column: Any) -> Any:
    """The keys of a column, as texts or bytes. An integer has its decimal digits, as ``encode_key`` gives it."""
    import pyarrow as pa

    return column if column.type in text_types() else column.cast(pa.string())


def bytes_in(column: Any) -> list[bytes]:
    """The values of a column of texts or bytes, as bytes."""
    import pyarrow as pa

    found: list[bytes] = column.view(pa.binary()).to_pylist()
    return found


def longest_in(column: Any) -> int:
    """The longest text or bytes of a column. 0 for other columns."""
    if column.type not in text_types() or not len(column):
        return 0
    import numpy as np  # its calls for a column cost a tenth of those of ``pyarrow.compute``

    bounds = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    return int((bounds[1:] - bounds[:-1]).max())


def integers_of(memory: Any) -> Any:
    """A column of the integers of 64 bits that some memory has: an array, or a buffer of Arrow."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), memoryview(memory).nbytes // 8, [None, pa.py_buffer(memory)])
