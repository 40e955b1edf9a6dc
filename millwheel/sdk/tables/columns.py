"""Encoded values as columns of Arrow. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, get_origin

import msgspec
import pyarrow as pa

from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.codecs import ValueFormat, codec_for
from millwheel.sdk.errors import UsageError, ValueDecodeError
from millwheel.sdk.record_schema import record_schema
from millwheel.sdk.tables.types import ArrowType, arrow_type, json_text, struct_fields

__all__ = ["StreamColumns", "ValueColumn", "columns_of_type"]

_ENCODED: Final = ArrowType(pa.binary())
_AS_JSON: Final = ArrowType(pa.string(), json_text)
_VALUE: Final = "value"
"""The column of records that have no fields."""
_IN_MSGPACK: Final = (specs.VALUE_FORMAT_MSGPACK, specs.VALUE_FORMAT_UNSPECIFIED)
_FAULTS: Final = (pa.ArrowException, msgspec.MsgspecError, OverflowError, TypeError, ValueError, AttributeError)
"""What decoding and pyarrow raise for a value of another type."""


class ValueColumn:
    """One column of values.

    Args:
        form: How the values are encoded. All but MessagePack stay as they are, as bytes.
        schema: The type. None if only the user's code has it: the values become JSON.
    """

    def __init__(self, form: specs.ValueFormat.ValueType, schema: specs.RecordSchema | None) -> None:
        self._decodes = form in _IN_MSGPACK
        self._kind = _ENCODED if not self._decodes else _AS_JSON if schema is None else arrow_type(schema)
        self.type: pa.DataType = self._kind.type

    def array(self, values: Sequence[bytes], names: Sequence[Any], what: str) -> pa.Array:
        """The column.

        Args:
            values: Encoded values.
            names: Names each value, for an error.
            what: What has such values, for an error.

        Raises:
            ValueDecodeError: A value is not of the type. The error names it.
        """
        try:
            return self._array(values)
        except _FAULTS as error:
            raise _fault(values, names, what, self._array, error) from error

    def _array(self, values: Sequence[bytes]) -> pa.Array:
        found = list(map(_decode, values)) if self._decodes else list(values)
        return pa.array(self._kind.values(found), self._kind.type)


class StreamColumns:
    """The columns of a stream: the fields of its type, or one column ``value`` if the type has no fields.

    Args:
        spec: The stream's declaration.
        offset_column: The name of a column with each record's offset. Empty: none.
        timestamp_column: The name of a column with each record's timestamp. Empty: none.
        defaults: The plain values of fields that records lack. Other fields that are missing are null.

    Raises:
        UsageError: The type has a field of that name.
    """

    def __init__(
        self,
        spec: specs.StreamSpec,
        offset_column: str = "",
        timestamp_column: str = "",
        defaults: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._defaults = defaults
        self._stream = spec.name
        schema = spec.schema if spec.HasField("schema") else None
        encoded = spec.format not in _IN_MSGPACK
        self._fields = None if encoded or schema is None else struct_fields(schema)
        self._value = ValueColumn(spec.format, schema) if self._fields is None else None
        self._has_offsets, self._has_timestamps = bool(offset_column), bool(timestamp_column)
        columns = [pa.field(name, kind) for name, kind in self._kinds()]
        extra = [(offset_column, pa.int64()), (timestamp_column, pa.timestamp("us", "UTC"))]
        for name, kind in extra:
            if name and any(name == column.name for column in columns):
                raise UsageError(f"stream {spec.name!r} has a column {name!r} already: give the added one another name")
            columns += [pa.field(name, kind)] if name else []
        self.schema = pa.schema(columns)

    def _kinds(self) -> list[tuple[str, pa.DataType]]:
        if self._fields is not None:
            return [(field.name, field.kind.type) for field in self._fields]
        assert self._value is not None
        return [(_VALUE, self._value.type)]

    def batch(self, first_offset: int, values: Sequence[bytes], timestamps: Sequence[int]) -> pa.RecordBatch:
        """The columns of consecutive records.

        Args:
            first_offset: The offset of the first record.
            values: The encoded values.
            timestamps: Their timestamps, in microseconds.

        Raises:
            ValueDecodeError: A record is not of the stream's type. The error names its offset.
        """
        offsets, what = range(first_offset, first_offset + len(values)), f"stream {self._stream!r}, offset"
        try:
            columns = self._arrays(values) if self._value is None else [self._value.array(values, offsets, what)]
        except _FAULTS as error:
            raise _fault(values, offsets, what, self._arrays, error) from error
        if self._has_offsets:
            columns.append(pa.array(offsets, pa.int64()))
        if self._has_timestamps:
            columns.append(pa.array(timestamps, pa.int64()).cast(pa.timestamp("us", "UTC")))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _arrays(self, values: Sequence[bytes]) -> list[pa.Array]:
        records = list(map(_decode, values))
        if self._defaults:
            records = [{**self._defaults, **record} for record in records]
        return [
            pa.array(field.kind.values(list(map(field.of, records))), field.kind.type) for field in self._fields or ()
        ]


def columns_of_type(stream: str, record_type: Any, form: ValueFormat) -> StreamColumns:
    """The columns of values of a type, which are encoded in this form. ``stream``: its name in errors."""
    spec = specs.StreamSpec(name=stream, format=form.value)
    schema = record_schema(record_type) if form is ValueFormat.MSGPACK else None
    if schema is not None:
        spec.schema.CopyFrom(schema)
    return StreamColumns(spec, defaults=_omitted(record_type))


def _omitted(record_type: Any) -> dict[str, Any]:
    """The defaults of a struct that encodes no field with its default, as plain values."""
    struct = get_origin(record_type) or record_type
    if not (isinstance(struct, type) and issubclass(struct, msgspec.Struct) and struct.__struct_config__.omit_defaults):
        return {}
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(record_type):
        if not field.required:
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            encoded = codec_for(tuple[field.type], f"field {field.name!r}").checked((default,))  # type: ignore[name-defined]
            (found[field.encode_name],) = _decode(encoded)
    return found


_decode: Final = msgspec.msgpack.Decoder().decode


def _fault(
    values: Sequence[bytes], names: Sequence[Any], what: str, convert: Any, error: Exception
) -> ValueDecodeError:
    """The error for the first value that alone cannot be converted."""
    for name, value in zip(names, values, strict=True):
        try:
            convert([value])
        except _FAULTS as one:
            return ValueDecodeError(f"{what} {name}: its value is not of the declared type: {one}")
    return ValueDecodeError(f"{what} {names[0]} to {names[-1]}: {error}")
