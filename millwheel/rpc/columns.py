"""The records of a delivery as columns of Arrow, and their form in delivery.proto (RecordColumns).

The receiver needs no object for a record: it reads keys and timestamps by columns. Where a record is needed, its value
is made: a MessagePack map with the columns' names, as the sender would have encoded it.

pyarrow is an extra (``arrow``). It is loaded with the first columns.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, overload

import msgspec
from google.protobuf.message import DecodeError

from millwheel.errors import NotInstalledError
from millwheel.model.limits import MAX_KEY_BYTES
from millwheel.rpc.column_keys import (
    ColumnKeys,
    KeySource,
    integers_of,
    is_key_type,
    longest_in,
    text_types,
)
from millwheel.rpc.nullable_column import NullableColumn, items_at, truths_of, validity_of
from millwheel.rpc.packed_values import PackedValues
from millwheel.rpc.v1 import delivery_pb2 as wire

__all__ = [
    "NAMES_BYTES",
    "SCHEMA_BYTES",
    "RecordColumns",
    "bytes_of",
    "exact",
    "extremes_in",
    "extremes_of",
    "has_columns",
    "in_one",
    "joined",
    "longest_of",
    "names_bytes",
    "plain_types",
    "schema_bytes",
    "texts_of",
]

_CHUNK: Final = 256
"""So many values are made at a time, and kept."""
SCHEMA_BYTES: Final = 64 << 10
"""The longest schema. Some are kept, so their size is bounded (G13)."""
NAMES_BYTES: Final = 16 << 20
"""The most bytes that the names of columns may have in all encoded records of a delivery (G13). Senders keep to half of
it. Columns of truth values are small, and the records that are made of them are not."""
_ROW_BYTES: Final = 16
"""More than a map and one of its values have beside name and content in MessagePack."""

_OFFSET_BYTES: Final = 4
_MISSING: Final = (
    "it has records as columns, and pyarrow is not here: install openmillwheel[arrow] on all workers, and for this "
    "process (a worker, a master that restores, or a command), and start it again"
)

_encode: Final = msgspec.msgpack.Encoder().encode


@lru_cache(1)
def has_columns() -> bool:
    """Whether this process can read columns: pyarrow is installed, and fits the system."""
    try:
        import pyarrow  # noqa: F401 - only whether it is there
    except ImportError:
        return False
    return True


@lru_cache(1)
def plain_types() -> dict[Any, type]:
    """The types of columns that a delivery may have, and those of their values. A value may also be null."""
    import pyarrow as pa

    return {pa.bool_(): bool, pa.int64(): int, pa.float64(): float, pa.string(): str, pa.binary(): bytes}


class RecordColumns(Sequence[bytes]):
    """The records of one delivery as columns. As a sequence it has their values, encoded.

    >>> import pyarrow as pa
    >>> columns = RecordColumns(pa.record_batch({"text": ["cat", "dog"], "size": [3, 4]}), array("q", [10, 11]), "text")
    >>> list(columns.keys()), msgspec.msgpack.decode(columns[1])
    ([b'cat', b'dog'], {'text': 'dog', 'size': 4})
    """

    __slots__ = ("_chunks", "_extremes", "average", "batch", "key", "size", "timestamps")

    def __init__(
        self, batch: Any, timestamps: array[int], key: KeySource = b"", *, like: RecordColumns | None = None
    ) -> None:
        """
        Args:
            batch: A record batch of Arrow. Its columns are of ``plain_types``.
            timestamps: In microseconds, one for each record.
            key: The column of the keys: texts, bytes or integers without nulls. Or the one key of all records, which is
                the empty one as long as no consumer's keys are asked for.
            like: The same records, with other keys. What is known of them is taken over.
        """
        self.batch = batch
        self.timestamps = timestamps
        self.key = key
        self.size: int = batch.nbytes if like is None else like.size
        """The size of the columns, in bytes. Arrow takes microseconds to compute it."""
        self.average: int = _average(batch, self.size, len(timestamps)) if like is None else like.average
        """The size of a record, in bytes: that in the columns, and that of their names, which its value has. All count
        alike: so parts of a delivery add up to its size. The buffers of received columns have nothing else."""
        self._extremes: tuple[int, int] | None = None if like is None else like._extremes
        self._chunks: dict[int, list[bytes]] = {} if like is None else like._chunks

    def __len__(self) -> int:
        return len(self.timestamps)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            first, end, step = index.indices(len(self))
            if step != 1:
                return [self[at] for at in range(first, end, step)]
            values: list[bytes] = []
            for number in range(first // _CHUNK, -(-end // _CHUNK)):
                start = number * _CHUNK
                values += self._chunk(number)[max(0, first - start) : end - start]
            return values
        if not 0 <= index < len(self):
            raise IndexError(index)
        number, place = divmod(index, _CHUNK)
        return self._chunk(number)[place]

    def _chunk(self, number: int) -> list[bytes]:
        """Some encoded values, which are kept."""
        chunk = self._chunks.get(number)
        if chunk is None:
            some = self.batch.slice(number * _CHUNK, _CHUNK)
            row, columns = _row_maker(tuple(some.schema.names)), [column.to_pylist() for column in some.columns]
            rows = map(row, *columns) if columns else (row() for _ in range(some.num_rows))
            chunk = self._chunks[number] = list(map(_encode, rows))
        return chunk

    def keys(self) -> ColumnKeys:
        """The keys."""
        return ColumnKeys(self)

    def taken(self, indexes: Any) -> RecordColumns:
        """The records with these indexes, which are an array of Arrow."""
        times = integers_of(self.timestamps).take(indexes)
        return RecordColumns(self.batch.take(indexes), array("q", times.buffers()[1].to_pybytes()), self.key)

    def cut(self, first: int, end: int) -> RecordColumns:
        """The records from ``first`` to before ``end``, in buffers of their own."""
        import pyarrow as pa

        some = self.batch.slice(first, end - first)
        own = pa.RecordBatch.from_arrays([exact(column) for column in some.columns], schema=some.schema)
        return RecordColumns(own, self.timestamps[first:end], self.key)

    def has_keys(self, key: KeySource) -> bool:
        """Whether each record has a key there: a text or an integer in a column, or the one key of all records."""
        if isinstance(key, bytes):
            return True
        import pyarrow as pa

        number = self.batch.schema.get_field_index(key)
        if number < 0:
            return False
        column = self.batch.column(number)
        return (
            column.type in (pa.string(), pa.int64()) and not column.null_count and longest_in(column) <= MAX_KEY_BYTES
        )

    @property
    def same(self) -> bytes | None:
        """The key of all records. None: a column has the keys."""
        return self.key if isinstance(self.key, bytes) else None

    def keyed(self, key: KeySource) -> RecordColumns:
        """The same records with other keys."""
        return self if key == self.key else RecordColumns(self.batch, self.timestamps, key, like=self)

    def extremes(self) -> tuple[int, int]:
        """The least and the greatest timestamp. There is at least one."""
        if self._extremes is None:
            self._extremes = extremes_of(self.timestamps)
        return self._extremes

    def kinds(self) -> dict[str, type]:
        """By the names of columns: the types of their values that are not null."""
        return {field.name: plain_types()[field.type] for field in self.batch.schema}

    def with_nulls(self) -> frozenset[str]:
        """The names of the columns that have nulls."""
        batch = self.batch
        return frozenset(name for name, one in zip(batch.schema.names, batch.columns, strict=True) if one.null_count)

    @property
    def why_unreadable(self) -> str:
        """Why ``from_wire`` does not take what ``to_wire`` writes. Empty: each reader takes it.

        Invariant (G1, G8): what is journaled or sent as columns can be read. Each maker of columns must ask this first.
        """
        schema = self.batch.schema
        return _why_no_schema(schema, schema_bytes(schema)) or _why_long_names(schema, len(self))

    def column(self, name: str, rows: Any) -> Any:
        """A column of numbers or truth values, as NumPy has it, or of texts, as Arrow has it. It must not be changed.

        If one of these items is null, it is a ``NullableColumn`` of that.

        Args:
            name: Its name.
            rows: The records: a slice, or an array of their indexes.
        """
        import numpy as np

        column = self.batch.column(name)
        plain = plain_types()[column.type]
        items: Any = column
        if plain is bool:
            items = truths_of(column)
        elif plain in (int, float):
            kind = np.float64 if plain is float else np.int64
            # pyarrow's own way loads pandas, if it is installed: a third of a second, and much memory.
            items = np.frombuffer(column.buffers()[1], kind, len(column), column.offset * np.dtype(kind).itemsize)
        if column.null_count:
            valid = validity_of(column)
            items = NullableColumn(items if items is column else np.where(valid, items, items.dtype.type(0)), valid)
        return items_at(items, rows)

    @property
    def longest(self) -> int:
        """A bound of the longest encoded value, in bytes."""
        return names_bytes(self.batch.schema.names) + sum(map(longest_in, self.batch.columns))

    # The form in delivery.proto.

    def to_wire(self) -> wire.RecordColumns:
        """The message."""
        times = self.timestamps
        if sys.byteorder == "big":
            times = array("q", times)
            times.byteswap()
        message = wire.RecordColumns(schema=self.batch.schema.serialize().to_pybytes())
        if (same := self.same) is None:
            message.key = str(self.key)
        else:
            message.same_key = same
        message.timestamps_us = times.tobytes()
        for number, given in enumerate(self.batch.columns):
            column = given if _is_exact(given) else exact(given)
            validity, *buffers = column.buffers()
            if column.null_count:
                message.with_nulls.append(number)
                buffers = [validity.slice(0, _bit_bytes(len(column))), *buffers]
            message.buffers.extend(bytes(buffer or b"") for buffer in buffers)
        return message

    @classmethod
    def from_wire(cls, message: wire.RecordColumns) -> RecordColumns:
        """The columns of a message, which are completely validated.

        Raises:
            ValueError: The message is malformed.
        """
        import pyarrow as pa

        times = array("q")
        if len(message.timestamps_us) % times.itemsize:
            raise ValueError(f"{len(message.timestamps_us)} bytes are no whole number of timestamps")
        times.frombytes(message.timestamps_us)
        if sys.byteorder == "big":
            times.byteswap()
        schema, rest, columns = _schema(message.schema), iter(message.buffers), []
        if message.key and (message.key not in schema.names or not is_key_type(schema.field(message.key).type)):
            raise ValueError(f"the columns have no column {message.key!r} of texts, bytes or integers for keys")
        message.same_key.decode()  # UnicodeDecodeError is a ValueError
        nulls = _nulls_of(message, schema)
        try:
            for number, field in enumerate(schema):
                validity = next(rest) if number in nulls else None
                buffers = [next(rest) for _ in range(_buffers_of(field.type))]
                right = validity is None or len(validity) == _bit_bytes(len(times))
                if not right or [len(one) for one in buffers] != _sizes_of(field.type, len(times), buffers):
                    raise ValueError(f"column {field.name!r} has buffers of other sizes than its {len(times):,} values")
                given = [None if one is None else pa.py_buffer(one) for one in (validity, *buffers)]
                column = pa.Array.from_buffers(field.type, len(times), given)
                column.validate(full=True)
                columns.append(column)
        except StopIteration:
            raise ValueError("the columns have fewer buffers than their schema needs") from None
        except pa.ArrowException as error:
            raise ValueError(f"column {field.name!r}: {error}") from error
        if next(rest, None) is not None:
            raise ValueError("the columns have more buffers than their schema needs")
        if why := _why_long_names(schema, len(times)):
            raise ValueError(why)
        return cls(pa.RecordBatch.from_arrays(columns, schema=schema), times, message.key or message.same_key)

    @classmethod
    def from_stored(cls, content: bytes) -> RecordColumns:
        """The columns of an encoded message that was stored.

        Raises:
            ValueError: The message is malformed.
            NotInstalledError: pyarrow is missing.
        """
        if not has_columns():
            raise NotInstalledError(_MISSING)
        try:
            message = wire.RecordColumns.FromString(content)
        except DecodeError as error:
            raise ValueError(f"no columns of records: {error}") from error
        return cls.from_wire(message)


def joined(tables: Sequence[RecordColumns], timestamps: array[int]) -> RecordColumns:
    """The records of some tables, one table after the other. They have one schema, and one column of keys.

    ``timestamps``: those of all records.
    """
    first = tables[0]
    if len(tables) == 1:
        return first
    return RecordColumns(in_one([one.batch for one in tables]), timestamps, first.key)


def _average(batch: Any, size: int, count: int) -> int:
    names = sum(len(name.encode()) for name in batch.schema.names)
    return -(-size // max(1, count)) + names


@lru_cache(64)
def _row_maker(names: tuple[str, ...]) -> Callable[..., Any]:
    """A function from the items of a row to an object that is encoded as the mapping with these names.

    A struct is made and encoded in half of a mapping's time.
    """
    fields = [f"item{place}" for place in range(len(names))]
    try:
        return msgspec.defstruct("Row", fields, rename=dict(zip(fields, names, strict=True)), gc=False)
    except ValueError:  # msgspec takes no name with quotes, backslashes or control characters
        return lambda *items: dict(zip(names, items, strict=True))


@lru_cache(64)
def _schema(encoded: bytes) -> Any:
    """The schema of a message. A sender has few, so they are kept."""
    import pyarrow as pa

    if why := _why_large(len(encoded)):
        raise ValueError(why)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(encoded))
    except (pa.ArrowException, OSError, EOFError) as error:
        raise ValueError(f"no schema of columns: {error}") from error
    if why := _why_no_schema(schema, len(encoded)):
        raise ValueError(why)
    return schema.remove_metadata()


def _why_no_schema(schema: Any, size: int) -> str:
    """Why no delivery has such columns. ``size``: that of the encoded schema. Empty: it may have them."""
    if why := _why_large(size):
        return why
    if not len(schema) or len(set(schema.names)) < len(schema):
        return f"columns need names of their own, and there is at least one: {schema.names}"
    if others := [field for field in schema if field.type not in plain_types()]:
        return f"column {others[0].name!r} is of type {others[0].type}: a delivery has no such columns"
    return ""


def _why_large(size: int) -> str:
    return f"a schema of {size:,} bytes; the limit is {SCHEMA_BYTES:,}" if size > SCHEMA_BYTES else ""


def _why_long_names(schema: Any, count: int) -> str:
    """Why the names of the columns are too long for so many records. Empty: they are not."""
    if (names := count * names_bytes(schema.names)) <= NAMES_BYTES:
        return ""
    return f"names of columns with {names:,} bytes in all records; the limit is {NAMES_BYTES:,}"


def _nulls_of(message: wire.RecordColumns, schema: Any) -> frozenset[int]:
    """The numbers of the columns with nulls. That of the keys is none of them."""
    nulls = frozenset(message.with_nulls)
    if len(nulls) < len(message.with_nulls) or any(number >= len(schema) for number in nulls):
        raise ValueError(f"{len(message.with_nulls):,} numbers of columns with nulls, of {len(schema)}: one is wrong")
    if message.key and schema.get_field_index(message.key) in nulls:
        raise ValueError(f"the column of the keys, {message.key!r}, is stated to have nulls")
    return nulls


def exact(column: Any) -> Any:
    """The column in buffers of its own, which begin with its first value, and end with its last one.

    The buffers of a slice are those of the whole column.
    """
    import pyarrow as pa

    return pa.concat_arrays([column.slice(0, 0), column])


def _is_exact(column: Any) -> bool:
    """Whether the buffers of a column's values have nothing else, as those of joined tables."""
    _, *buffers = column.buffers()
    if column.offset or not all(buffers):
        return False
    return [len(one) for one in buffers] == _sizes_of(column.type, len(column), buffers)


def in_one(batches: Sequence[Any]) -> Any:
    """The rows of at least two record batches in one, in buffers of its own. They have one schema, but for metadata."""
    import pyarrow as pa

    if (concat := getattr(pa, "concat_batches", None)) is not None:
        return concat(batches)
    # Before version 19 of pyarrow.
    (found,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found


def _sizes_of(kind: Any, count: int, buffers: Sequence[bytes]) -> list[int]:
    """The sizes of the buffers of so many values. What is beside the values would not be counted (G13)."""
    if kind not in text_types():
        return [_bit_bytes(count * kind.bit_width)]
    offsets = buffers[0]
    first, end = (int.from_bytes(one, sys.byteorder) for one in (offsets[:_OFFSET_BYTES], offsets[-_OFFSET_BYTES:]))
    return [_OFFSET_BYTES * (count + 1), end if first == 0 else -1]


def _buffers_of(kind: Any) -> int:
    """The number of buffers of a column without nulls."""
    return 2 if kind in text_types() else 1


def _bit_bytes(count: int) -> int:
    """How many bytes have so many bits."""
    return -(-count // 8)


def texts_of(texts: Sequence[str]) -> Any:
    """A column of texts. pyarrow's own way to make one loads pandas, too."""
    import pyarrow as pa

    encoded = [text.encode() for text in texts]
    buffers = [array("i", accumulate(map(len, encoded), initial=0)), b"".join(encoded)]
    return pa.Array.from_buffers(pa.string(), len(texts), [None, *map(pa.py_buffer, buffers)])


def extremes_of(timestamps: Sequence[int]) -> tuple[int, int]:
    """The least and the greatest of some timestamps."""
    return extremes_in(timestamps) if isinstance(timestamps, array) else (min(timestamps), max(timestamps))


def extremes_in(memory: Any) -> tuple[int, int]:
    """The least and the greatest of the integers of 64 bits that some memory has. There is at least one."""
    import numpy as np

    times = np.frombuffer(memory, np.int64)
    return int(np.minimum.reduce(times)), int(np.maximum.reduce(times))


def names_bytes(names: Iterable[str]) -> int:
    """A bound of what an encoded record has beside its values' content, if its columns have these names."""
    return sum(_ROW_BYTES + len(name.encode()) for name in names)


def schema_bytes(schema: Any) -> int:
    """The size of a schema in a message. ``SCHEMA_BYTES`` is the most."""
    return int(schema.serialize().size)


def bytes_of(values: Sequence[bytes], count: int | None = None) -> int:
    """The size of values in memory. ``count``: of so many of them, if they are columns: all count alike."""
    if isinstance(values, RecordColumns):
        return values.average * (len(values) if count is None else count)
    return values.size if isinstance(values, PackedValues) else sum(map(len, values))


def longest_of(values: Sequence[bytes]) -> int:
    """The size of the longest value, or a bound of it. 0 if there is none."""
    if isinstance(values, PackedValues):
        return values.longest if values else 0
    return values.longest if isinstance(values, RecordColumns) else max(map(len, values), default=0)
