"""The records of a batch, of which some came as columns: a value is made of one where a sink asks for it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, get_origin, overload

import msgspec

from millwheel.connectors.tables import RowColumns
from millwheel.model.time import Timestamp
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.typeinfo import cached_by_type

__all__ = ["BatchRecords", "SomeRecords"]

T = TypeVar("T")

SomeRecords = Sequence[tuple[Any, int]] | RecordColumns
"""Records that follow one another, as values with their times or as columns."""


class BatchRecords(Sequence[tuple[T, Timestamp]]):
    """Values with their times, in order. Each time that they are read, they are the same.

    Attributes:
        parts: The records, in the forms in which they came.
        record_type: The type of the values.
    """

    def __init__(
        self, parts: Sequence[SomeRecords], decode_all: Callable[[Sequence[bytes]], list[T]], record_type: Any
    ) -> None:
        self.parts = parts
        self.record_type = record_type
        self._decode_all = decode_all
        self._made: list[tuple[T, Timestamp]] | None = None

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @overload
    def __getitem__(self, index: int) -> tuple[T, Timestamp]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[T, Timestamp]]: ...
    def __getitem__(self, index: int | slice) -> tuple[T, Timestamp] | list[tuple[T, Timestamp]]:
        return self._all()[index]

    def __iter__(self) -> Iterator[tuple[T, Timestamp]]:
        return iter(self._all())

    def _all(self) -> list[tuple[T, Timestamp]]:
        if self._made is None:
            self._made = [record for part in self.parts for record in self._records(part)]
        return self._made

    def _records(self, part: SomeRecords) -> Sequence[tuple[Any, Any]]:
        if not isinstance(part, RecordColumns):
            return part
        made = _constructor(self.record_type)
        if made is None:
            return list(zip(self._decode_all(part[:]), part.timestamps, strict=True))
        cells = [column.to_pylist() for column in part.batch.columns]
        return list(zip(map(made, *cells), part.timestamps, strict=True))

    @property
    def times(self) -> array[int]:
        """The time of each record, in microseconds since the epoch."""
        found = array("q")
        for part in self.parts:
            found.extend(part.timestamps if isinstance(part, RecordColumns) else [at for _, at in part])
        return found

    def table(self, columns: RowColumns) -> Any:
        """A table of pyarrow with these records as rows."""
        import pyarrow as pa

        return pa.concat_tables([self._table(part, columns) for part in self.parts]).combine_chunks()

    def _table(self, part: SomeRecords, columns: RowColumns) -> Any:
        found = columns.of_columns(part.batch) if isinstance(part, RecordColumns) else None
        return columns.table([value for value, _ in self._records(part)]) if found is None else found


@cached_by_type
def _constructor(record_type: Any) -> Callable[..., Any] | None:
    """What makes a value of its fields, in their order, as a decoder makes it. None: a decoder must do it.

    The columns of a batch are all fields of its type, each of exactly its type (``whole_fields``).
    """
    struct = get_origin(record_type) or record_type
    if type(struct) is not type(msgspec.Struct) or struct.__match_args__ != struct.__struct_fields__:
        return None  # a class of classes may call another function, and a field may be given by its name alone
    made: Callable[..., Any] = struct
    return made
