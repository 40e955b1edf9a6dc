"""The records of a batch, of which some came as columns: a value is made of one where a sink asks for it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, get_origin, overload

import msgspec

from millwheel.connectors.tables import RowColumns
from millwheel.model.time import Timestamp
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.batches.column_records import whole_fields
from millwheel.sdk.typeinfo import cached_by_type, type_name

__all__ = ["BatchRecords", "SomeRecords"]

T = TypeVar("T")

SomeRecords = Sequence[tuple[Any, int]] | RecordColumns
"""Records that follow one another, as values with their times or as columns."""


class BatchRecords(Sequence[tuple[T, Timestamp]]):
    """Values with their times, in order. Each time that they are read, they are the same.

    *Invariant (G1): values and tables say what a decoder of the present type makes of the encoded rows.* Columns may
    have been stored before an update of the type. So they are taken only where they are exactly its fields.

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
        self._made_of = dict[int, Sequence[tuple[T, Timestamp]]]()
        """By the number of a part: its records as values. A default may be another one each time that it is made."""

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | BatchRecords) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # a list has none either

    def __repr__(self) -> str:
        return f"BatchRecords({type_name(self.record_type)}, records={len(self)})"

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
            self._made = [record for number in range(len(self.parts)) for record in self._records(number)]
        return self._made

    def _records(self, number: int) -> Sequence[tuple[Any, Any]]:
        """The records of a part as values."""
        if (found := self._made_of.get(number)) is None:
            found = self._made_of[number] = self._read(self.parts[number])
        return found

    def _read(self, part: SomeRecords) -> Sequence[tuple[Any, Any]]:
        if not isinstance(part, RecordColumns):
            return part
        made = _constructor(self.record_type) if self._are_fields(part) else None
        if made is None:
            return list(zip(self._decode_all(part[:]), part.timestamps, strict=True))
        cells = [column.to_pylist() for column in part.batch.columns]
        return list(zip(map(made, *cells), part.timestamps, strict=True))

    def _are_fields(self, part: RecordColumns) -> bool:
        """Whether the columns are all fields of the type as it is now, each of exactly its type."""
        fields = whole_fields(self.record_type)
        return not isinstance(fields, str) and fields.are_in(part)

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

        return pa.concat_tables([self._table(number, columns) for number in range(len(self.parts))]).combine_chunks()

    def _table(self, number: int, columns: RowColumns) -> Any:
        part, found = self.parts[number], None
        if isinstance(part, RecordColumns) and self._are_fields(part):
            found = columns.of_columns(part.batch)
        return columns.table([value for value, _ in self._records(number)]) if found is None else found


@cached_by_type
def _constructor(record_type: Any) -> Callable[..., Any] | None:
    """What makes a value of its fields, in their order, as a decoder makes it. None: a decoder must do it.

    The columns are all fields of the type, each of exactly its type (``whole_fields``).
    """
    struct = get_origin(record_type) or record_type
    if type(struct) is not type(msgspec.Struct) or struct.__match_args__ != struct.__struct_fields__:
        return None  # a class of classes may call another function, and a field may be given by its name alone
    made: Callable[..., Any] = struct
    return made
