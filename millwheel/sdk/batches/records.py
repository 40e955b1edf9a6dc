"""The records that a hook gets at once, as values and as columns (sections 3, 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millwheel.rpc.columns import RecordColumns
from millwheel.rpc.nullable_column import NullableColumn
from millwheel.sdk.batches.column_records import records_at, whole_fields
from millwheel.sdk.batches.fields import column_of, field_values, needed, number_kind
from millwheel.sdk.batches.rows import BatchRows
from millwheel.sdk.codecs import Codec, ValueCodec, codec_for
from millwheel.sdk.column_fields import ColumnFields
from millwheel.sdk.typeinfo import Field, field_of, supertype

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column

__all__ = ["RecordBatch", "RecordForm"]

In_co = TypeVar("In_co", covariant=True)


class RecordForm:
    """What batches know of the records of an input."""

    def __init__(
        self,
        stream: str,
        record_type: Any,
        codec: Codec[Any] | None = None,
        decode: Callable[[bytes], Any] | None = None,
        fields: ColumnFields | None = None,
        *,
        same_encoding: bool = False,
    ) -> None:
        """
        Args:
            stream: The name by which the hook knows the input.
            record_type: The type of the values that the hook gets.
            codec: The user's codec of the stream.
            decode: Makes the hook's value of an encoded one. None: values are given, because a function makes them.
            fields: How fields are found in columns of Arrow. None: only the values say it.
            same_encoding: Whether the delivered encodings are those of the hook's values, in MessagePack.
        """
        self.stream = stream
        self.type = record_type
        self.decode = decode
        self.fields = fields
        self.same_encoding = same_encoding
        self._codec = codec

    @cached_property
    def codec(self) -> ValueCodec:
        """The codec of the hook's values."""
        return codec_for(self.type, f"stream {self.stream!r}", self._codec)


class RecordBatch(Generic[In_co]):
    """Records of one stream, in the order in which ``process_record`` would get them. It is valid in its hook only.

    A row is a record: its number is the same in ``keys``, ``values``, ``timestamps``, ``late`` and each column.
    """

    __slots__ = ("_form", "_rows", "_values")

    def __init__(self, form: RecordForm, rows: BatchRows) -> None:
        self._form = form
        self._rows = rows
        self._values: list[In_co] | None = rows.values or None

    def __len__(self) -> int:
        return len(self._rows.keys)

    def __repr__(self) -> str:
        return f"RecordBatch(stream={self.stream!r}, records={len(self)})"

    @property
    def stream(self) -> str:
        """The input stream of the records."""
        return self._form.stream

    @property
    def keys(self) -> list[str]:
        """The key of each record. A key may occur many times."""
        return [key.decode() for key in self._rows.keys]

    @property
    def values(self) -> list[In_co]:
        """The values.

        Raises:
            ValueDecodeError: A value does not decode as the stream's type. The hook fails for that record alone.
        """
        if self._values is None:
            decode, encoded = self._form.decode, self._encoded()
            assert decode is not None, "values that functions make are given"
            self._values = list(map(decode, encoded))
        return self._values

    @property
    def timestamps(self) -> Column:
        """The event times, in microseconds since the epoch: an array of int64."""
        return column_of(self._rows.timestamps, int, "batch.timestamps")

    @property
    def late(self) -> Column:
        """Whether each record was below the low watermark when it came (G14): an array of bool."""
        return column_of(self._rows.late, bool, "batch.late")

    def column(self, name: str | None = None) -> Column:
        """A field of all records as an array of NumPy, which the hook may change.

        The field's type gives the type of the array: ``float`` is float64, and so is ``float | None``, with NaN for
        None; ``int`` is int64; ``bool`` is bool. Arrays of one shape become the rows of a larger one. All else is
        an array of objects.

        Args:
            name: The field. None: the values themselves, such as those of a stream of ``float``.

        Raises:
            UsageError: The records have no such field, or it does not fit into an array.
            ValueDecodeError: A value does not decode as the stream's type.
        """
        what = "batch.column()" if name is None else f"batch.column({name!r})"
        if name is None:
            return column_of(self.values, supertype(self._form.type), what)
        if (found := self._from_arrow(name)) is not None:
            return found
        values, annotation = field_values(self.values, self._form.type, name, f"stream {self.stream!r}")
        return column_of(values, supertype(annotation), what)

    def rows_by_key(self) -> dict[str, Column]:
        """The row numbers of each key, in their order, with the keys in the order of their first records.

        They select from columns: ``prices[rows].mean()``.
        """
        rows: dict[bytes, list[int]] = {}
        for row, key in enumerate(self._rows.keys):
            rows.setdefault(key, []).append(row)
        from numpy import array

        return {key.decode(): array(found) for key, found in rows.items()}

    def to_arrow(self) -> Any:
        """The records as a table of pyarrow: the fields as columns, with the types of docs/arrow.md.

        A stream whose type has no fields has one column, ``value``.

        Raises:
            UsageError: pyarrow is missing.
            ValueDecodeError: A value is not of the stream's type.
        """
        pa = needed("pyarrow", "openmillwheel[arrow]", "batch.to_arrow()")
        from millwheel.sdk.tables.columns import columns_of_type

        form = self._form
        columns = columns_of_type(self.stream, form.type, form.codec.format)
        if (given := self._given(columns.schema.names)) is None:
            # Of the values, because a stored record may lack fields that have defaults.
            given = columns.batch(0, list(map(form.codec.checked, self.values)), ())
        return pa.Table.from_batches([given])

    def to_pandas(self) -> Any:
        """The records as a DataFrame of pandas. It needs pyarrow, too: see :meth:`to_arrow`."""
        needed("pandas", "pandas", "batch.to_pandas()")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """The records as a DataFrame of Polars. It needs pyarrow, too: see :meth:`to_arrow`."""
        return needed("polars", "polars", "batch.to_polars()").from_arrow(self.to_arrow())

    def _columns(self) -> RecordColumns | None:
        """The values as columns of all fields, in the order of the type. None: only the values say it."""
        if self._rows.table is not None:
            return self._rows.table
        fields, delivered, all_fields = self._form.fields, self._rows.delivered, whole_fields(self._form.type)
        if fields is None or isinstance(all_fields, str) or not isinstance(delivered, RecordColumns):
            return None
        if fields.columns_of(all_fields.wanted, delivered.kinds(), delivered.with_nulls()) is None:
            return None
        return records_at(delivered, all_fields.names, self._rows.indexes)

    def _encoded_by(self, codec: ValueCodec) -> list[bytes]:
        """The values as ``codec`` encodes them. Where the sender's encodings are those, none is made.

        *Invariant (G1): each of them decodes, and to the same value each time.* So what could not be read later fails
        here, alone. What user's code makes while a value is decoded, such as a new id, is made once: here.

        Args:
            codec: A codec of the hook's values, without a codec of the user's.

        Raises:
            ValueDecodeError: A value does not decode as the stream's type.
            ValueEncodeError: The encoding of a value that steps have made does not decode.
        """
        values = self.values  # it raises for one that does not decode
        same = self._form.same_encoding
        if same and codec.repeatable and not isinstance(self._rows.delivered, RecordColumns):
            return self._encoded()
        return list(map(codec.encode, values)) if same else codec.verify_all(values)

    def _rows_by_key(self) -> Iterator[tuple[Sequence[int], list[int]]]:
        """The rows of each key with their times, in the order of the keys' first records."""
        keys, times = self._rows.keys, self._rows.timestamps
        if keys.count(keys[0]) == len(keys):
            yield range(len(keys)), times
            return
        found: dict[bytes, list[int]] = {}
        for row, key in enumerate(keys):
            found.setdefault(key, []).append(row)
        for rows in found.values():
            yield rows, [times[row] for row in rows]

    def _encoded(self) -> list[bytes]:
        delivered = self._rows.delivered
        return [delivered[index] for index in self._rows.indexes]

    def _given(self, names: Sequence[str]) -> Any:
        """The columns that the sender gave, where no value says otherwise. None: it did not give all of them."""
        fields, delivered = self._form.fields, self._rows.delivered
        if fields is None or not isinstance(delivered, RecordColumns):
            return None
        kinds = delivered.kinds()
        if fields.columns_of((), kinds, delivered.with_nulls()) is None or not set(names) <= kinds.keys():
            return None
        return delivered.batch.select(list(names)).take(self._rows.indexes)

    def _from_arrow(self, name: str) -> Column | None:
        """The column of numbers that the sender gave, where no value says otherwise. None: it did not give columns."""
        fields, delivered = self._form.fields, self._rows.delivered
        if fields is None or not isinstance(delivered, RecordColumns):
            return None
        field = field_of(self._form.type, name)
        kind = number_kind(field.type) if isinstance(field, Field) else None
        nulls = delivered.with_nulls()
        if kind is None or (names := fields.columns_of([(name, kind)], delivered.kinds(), nulls)) is None:
            return None
        import numpy as np

        found: Any = delivered.column(names[0], np.array(self._rows.indexes))
        if isinstance(found, NullableColumn):  # of floats: no other field that may be None has such a column
            return np.where(found.valid, found.items, np.nan)
        return found  # type: ignore[no-any-return]
