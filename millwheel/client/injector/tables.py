"""Tables of Arrow that are sent by columns (section 5.2).

Records go by columns if that needs no look at each of them: the columns are of plain types without nulls, they have the
fields of the stream's declared type, and each consumer's key is one of the columns. Otherwise they are encoded one by
one, and go the way of all records. So a table has the same effect in either form. Its rows are maps in MessagePack, so
a stream of another format takes no table.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from millwheel.client.injector.admission import CHUNK_RECORDS, RecordAdmission
from millwheel.client.injector.ids import BatchOf, IdScope
from millwheel.client.injector.messages import Columns
from millwheel.client.injector.routing import ConsumerRouting, StreamRouting
from millwheel.client.injector.session import InjectorSession
from millwheel.client.injector.settings import InjectorSettings
from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_KEY_BYTES, MAX_VALUE_BYTES
from millwheel.rpc.column_keys import bytes_in, longest_in
from millwheel.rpc.columns import SCHEMA_BYTES, RecordColumns, exact, names_bytes, plain_types
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import UsageError, ValueEncodeError

__all__ = ["TABLE_RECORDS", "TableAdmission", "plain_table", "table_parts", "times_in"]

TABLE_RECORDS: Final = 8_192
"""The most records of a table that are passed to the core at a time."""
_TABLE_BYTES: Final = 1 << 20
"""The most bytes of their columns. A larger record is passed alone."""
_NAMES_BYTES: Final = 8 << 20
"""The most bytes that the names of columns have if the records are sent one by one after all."""
_IN_MSGPACK: Final = (specs.VALUE_FORMAT_MSGPACK, specs.VALUE_FORMAT_UNSPECIFIED)
_PLAIN: Final = frozenset({"bool", "int", "float", "str", "bytes"})
"""The kinds of fields whose values are exactly those of a plain column."""


def plain_table(data: Any, timestamp: str, id_column: str | None = None) -> Any:
    """A table with columns of plain types, as far as that changes no value. The last one has the timestamps.

    Args:
        data: A table or a record batch of Arrow, or what has the Arrow PyCapsule interface.
        timestamp: The column of timestamps: of a type of timestamps, or integers of microseconds.
        id_column: The column of the records' ids, if they have some: texts, bytes or integers.

    Raises:
        UsageError: There is no such column, or it has nulls or other values. pyarrow cannot be loaded.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise UsageError(f"tables need pyarrow: install MillWheel with the extra arrow ({error})") from error
    try:
        table = data if isinstance(data, pa.Table) else _read(data)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise UsageError(f"a table or record batch of Arrow is sent, or what can be read as one: {error}") from error
    if timestamp not in table.column_names or len(table.column_names) < 2:
        raise UsageError(f"a table has a column {timestamp!r} of timestamps, and others: {table.column_names}")
    if len(set(table.column_names)) < len(table.column_names):
        raise UsageError(f"two columns of the table have one name: {table.column_names}")
    times = table.column(timestamp)
    if not (pa.types.is_timestamp(times.type) or times.type == pa.int64()) or times.null_count:
        raise UsageError(f"column {timestamp!r} has timestamps or integers of microseconds, and no nulls")
    if pa.types.is_timestamp(times.type):
        # Fractions of a microsecond are cut off. In another unit, what changes is a time beyond the last one: an error.
        cut = times.type.unit == "ns"
        times = _cast(timestamp, times, pa.timestamp("us", times.type.tz), safe=not cut).cast(pa.int64())
    plain = _plain(table.drop_columns([timestamp]))
    if id_column is not None:
        _check_ids(plain, id_column)
    return plain.append_column(timestamp, times)


def _check_ids(table: Any, name: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if name not in table.column_names:
        raise UsageError(f"a table has a column {name!r} of ids beside that of timestamps: {table.column_names}")
    ids = table.column(name)
    if not (pa.types.is_integer(ids.type) or ids.type in (pa.string(), pa.binary())) or ids.null_count:
        raise UsageError(f"column {name!r} has ids: texts, bytes or integers, and no nulls")
    if not pa.types.is_integer(ids.type) and pc.min(pc.binary_length(ids)).as_py() == 0:
        raise UsageError(f"column {name!r} has an id that is empty: give each row one that is its own")


def _read(data: Any) -> Any:
    """The table of other data. The index of a data frame of pandas is no column."""
    import pyarrow as pa

    pandas = any(one.__module__.partition(".")[0] == "pandas" for one in type(data).__mro__)
    return pa.Table.from_pandas(data, preserve_index=False) if pandas and hasattr(data, "columns") else pa.table(data)


def times_in(table: Any) -> list[int]:
    """The least and the greatest timestamp of a ``plain_table``, in microseconds. Empty if it has no rows."""
    import pyarrow.compute as pc

    found = pc.min_max(table.column(table.num_columns - 1))
    return [found[name].as_py() for name in ("min", "max")] if table.num_rows else []


def table_parts(table: Any, most: int = TABLE_RECORDS) -> Iterator[tuple[Any, array[int]]]:
    """The parts of a ``plain_table``: record batches without the timestamps, and these, in microseconds.

    A part has buffers of its own, if it may go by columns. So what is not ACKed keeps no more of the table in memory.

    Args:
        table: The table.
        most: The most records of a part.
    """
    import pyarrow as pa

    plain = plain_types()
    names = names_bytes(table.column_names)
    rows = max(1, min(most, _TABLE_BYTES * table.num_rows // max(1, table.nbytes), _NAMES_BYTES // names))
    with suppress(pa.ArrowNotImplementedError):  # dictionaries of lists, for example: a part is then of one chunk
        table = table.combine_chunks()
    for batch in _bounded(table.to_batches(rows)):
        *columns, stamps = (exact(one) if one.type in plain else one for one in batch.columns)
        values = pa.RecordBatch.from_arrays(columns, names=batch.schema.names[:-1])
        yield values, array("q", stamps.buffers()[1].to_pybytes())


def _bounded(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches with rows, of which none has far more bytes than the others."""
    for batch in batches:
        half = batch.num_rows // 2
        if half and batch.nbytes > _TABLE_BYTES:
            yield from _bounded((batch.slice(0, half), batch.slice(half)))
        elif batch.num_rows:
            yield batch


def _plain(table: Any) -> Any:
    """The table with columns of plain types, where that changes no value. Times and durations have microseconds."""
    import pyarrow as pa

    types = pa.types
    for number, field in enumerate(table.schema):
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        wanted = (
            pa.int64() if types.is_integer(kind) and kind != pa.uint64()
            else pa.float64() if kind == pa.float32()
            else pa.string() if types.is_large_string(kind) or types.is_string(kind) or types.is_string_view(kind)
            else pa.binary() if types.is_large_binary(kind) or types.is_binary(kind) or types.is_binary_view(kind)
            else pa.timestamp("us", kind.tz) if types.is_timestamp(kind) and kind.unit == "ns"
            else pa.duration("us") if types.is_duration(kind) and kind.unit == "ns"
            else field.type
        )  # fmt: skip
        if wanted == field.type:
            continue
        column = table.column(number)
        with suppress(pa.ArrowNotImplementedError):  # this pyarrow has no such cast: the records go one by one
            if kind != field.type and kind in (pa.string_view(), pa.binary_view()):
                # Arrow casts a dictionary of views to another dictionary alone.
                column = _cast(field.name, column, pa.dictionary(field.type.index_type, wanted))
            table = table.set_column(number, field.name, _cast(field.name, column, wanted))
    return table


def _cast(name: str, column: Any, wanted: Any, *, safe: bool = True) -> Any:
    """The column in another type. UsageError: a value does not fit. ArrowNotImplementedError: there is no such cast."""
    import pyarrow as pa

    try:
        return column.cast(wanted, safe=safe)
    except pa.ArrowNotImplementedError:
        raise
    except pa.ArrowException as error:
        raise UsageError(f"column {name!r} of the table: {error}") from error


class TableAdmission:
    """Passes parts of tables to the core, by columns if that is possible."""

    def __init__(self, session: InjectorSession, admission: RecordAdmission, settings: InjectorSettings) -> None:
        self._session = session
        self._admission = admission
        self._settings = settings
        self._fitting: tuple[Any, Any, bool] | None = None
        """The last schema of a table, the declared types, and whether such records go by columns."""

    @property
    def most(self) -> int:
        """The most records of a part: all fit into half of the window, also if each consumer gets them (G13)."""
        consumers = max(1, len(self._session.routing.consumers))
        return max(1, min(TABLE_RECORDS, self._settings.limits.window_records // consumers // 2))

    async def send(
        self, values: Any, timestamps: array[int], newest: int, position: int | None, partition: str,
        id_column: str | None = None, batch: BatchOf | None = None,
    ) -> None:  # fmt: skip
        """Send a part of a table.

        Args:
            values: A record batch.
            timestamps: The timestamps of its records, in microseconds.
            newest: The largest of them.
            position: The position of the first record in ``partition``. The others follow. None: records without one.
            partition: The partition of the source.
            id_column: The column of the user's ids, in place of positions.
            batch: The batch of a query in which these ids are unique.

        Raises:
            UsageError: The stream's format is another one than that of a table's rows.
            ValueEncodeError: A column has no valid values.
        """
        _check_values(values)
        count, admission = len(timestamps), self._admission
        positions = None if position is None else range(position, position + count)
        ids = None if id_column is None else _id_texts(values.column(id_column))
        scope = admission.ids.scope(ids, positions, partition, batch)
        sent = False
        async with admission.turns:
            self._session.check()
            while (keys := self._keys(values)) is not None:
                routing = self._session.routing
                await admission.wait_for_room(newest, count)
                self._session.check()
                if routing is self._session.routing:
                    self._accept(RecordColumns(values, timestamps, ""), keys, ids, positions, scope)
                    sent = True
                    break
        if not sent:
            await self._send_rows(values, timestamps, ids, positions, partition, batch)

    async def _send_rows(
        self, values: Any, timestamps: array[int], ids: list[bytes] | None, positions: range | None, partition: str,
        batch: BatchOf | None,
    ) -> None:  # fmt: skip
        """Send records one by one. If one cannot be encoded, the chunks before it are accepted."""
        admission = self._admission
        if (form := self._session.routing.format) not in _IN_MSGPACK:
            shown = specs.ValueFormat.Name(form).removeprefix("VALUE_FORMAT_")
            raise UsageError(
                f"stream {self._session.core.stream!r} has values of format {shown}, and the rows of a table are maps "
                "in MessagePack: send values of that format by send_many"
            )
        for first in range(0, len(timestamps), CHUNK_RECORDS):
            part = slice(first, first + CHUNK_RECORDS)
            encoded = admission.encoder.rows(_rows_of(values[part]))
            some_ids = None if ids is None else ids[part]
            some = None if positions is None else positions[part]
            await admission.send(encoded, timestamps[part], some_ids, some, partition, batch, encoded=True)

    def _accept(
        self, records: RecordColumns, names: Mapping[IncarnationId, str], ids: list[bytes] | None,
        positions: range | None, scope: IdScope,
    ) -> None:  # fmt: skip
        """Pass records to the core. Nothing is awaited since the look at the routing."""
        admission, count = self._admission, len(records)
        admission.drain()
        delivered = admission.ids.delivery_ids(ids, positions, slice(0, count))
        keys = {name: records.keyed(key).keys() for name, key in names.items()}
        self._session.step(Columns(records, records.timestamps, keys, scope, delivered))
        if ids is None and positions is None:
            admission.ids.next += count

    def _keys(self, values: Any) -> dict[IncarnationId, str] | None:
        """The column of the keys, by consumer. Empty: a consumer's keys are empty. None: the records go one by one."""
        routing, settings = self._session.routing, self._settings
        plain = plain_types()
        if (
            not routing.column_batches
            or routing.format not in _IN_MSGPACK
            or settings.check_at_worker
            or any(column.type not in plain or column.null_count for column in values.columns)
            or not self._fits(values.schema, routing)
        ):
            return None
        found = {name: _key_of(consumer, values.schema) for name, consumer in routing.consumers.items()}
        keys = {name: key for name, key in found.items() if key is not None}
        if len(keys) < len(found):
            return None
        # A row or a key that is too large gets its error where it is encoded.
        longest = RecordColumns(values, array("q"), "").longest
        if longest > MAX_VALUE_BYTES or any(
            longest_in(values.column(key)) > MAX_KEY_BYTES for key in keys.values() if key
        ):
            return None
        return keys

    def _fits(self, schema: Any, routing: StreamRouting) -> bool:
        """Whether each record with such columns is of a type that is declared for the stream, if one is.

        A receiver refuses a long schema.
        """
        known = self._fitting
        if known is None or known[0] != schema or known[1] is not routing.schemas:
            declared = routing.schemas if self._settings.check_types else ()
            fits = not declared or any(_fits(schema, one) for one in declared)
            known = self._fitting = schema, routing.schemas, fits and schema.serialize().size <= SCHEMA_BYTES
        return known[2]


def _rows_of(values: Any) -> list[dict[str, Any]]:
    """The rows as Python values. ValueEncodeError: Python has no such value, such as a time after the year 9999."""
    try:
        rows: list[dict[str, Any]] = values.to_pylist()
    except (ValueError, OverflowError) as error:  # Arrow's own errors of values are ValueErrors, too
        raise ValueEncodeError(f"a row of the table: {error}") from error
    return rows


def _id_texts(column: Any) -> list[bytes]:
    """The ids of a column as the texts by which they count."""
    import pyarrow as pa

    return bytes_in(column.cast(pa.string()) if pa.types.is_integer(column.type) else column)


def _check_values(values: Any) -> None:
    """Raise ValueEncodeError if a column has values that Arrow does not allow, such as texts that are no UTF-8."""
    import pyarrow as pa

    for name, column in zip(values.schema.names, values.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException as error:
            raise ValueEncodeError(f"column {name!r} of the table: {error}") from error


def _key_of(consumer: ConsumerRouting, schema: Any) -> str | None:
    """The column that has the consumer's keys. Empty: its keys are empty. None: no column has them."""
    import pyarrow as pa

    if consumer.log:
        return ""
    if len(consumer.fields) != 1 or consumer.fields[0] not in schema.names or "." in consumer.fields[0]:
        return None  # with a dot it is a path: the field of a field
    return consumer.fields[0] if schema.field(consumer.fields[0]).type == pa.string() else None


def _fits(schema: Any, declared: specs.RecordSchema) -> bool:
    """Whether columns have the fields of a struct, each of exactly its type, which restricts no value."""
    from millwheel.client.arrow.types import arrow_type

    struct = declared.types[0]
    if struct.kind != "struct" or (struct.options and any(msgspec.msgpack.decode(struct.options).values())):
        return False
    for field in struct.fields:
        if field.name in schema.names:
            plain = _is_plain(declared, field.type)
            fits = plain and schema.field(field.name).type == arrow_type(declared, field.type).type
        else:
            fits = field.optional
        if not fits:
            return False
    return True


def _is_plain(declared: specs.RecordSchema, number: int) -> bool:
    """Whether a type takes each value of a plain column: it is such a type itself, or that or None."""
    described = declared.types[number]
    if described.options:
        return False
    if described.kind != "union":
        return described.kind in _PLAIN
    others = [part for part in described.parts if declared.types[part].kind != "none"]
    return len(others) == 1 and declared.types[others[0]].kind in _PLAIN and not declared.types[others[0]].options
