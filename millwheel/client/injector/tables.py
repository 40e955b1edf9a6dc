"""Tables of Arrow that are sent by columns (section 5.2).

Records go by columns if that needs no look at each of them: the columns are of plain types without nulls, they have the
fields of the stream's declared type, and each consumer's key is one of the columns. Otherwise they are encoded one by
one, and go the way of all records. So a table has the same effect in either form.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from millwheel.client.injector.admission import RecordAdmission
from millwheel.client.injector.ids import IdScope
from millwheel.client.injector.messages import Columns
from millwheel.client.injector.routing import ConsumerRouting, StreamRouting
from millwheel.client.injector.session import InjectorSession
from millwheel.client.injector.settings import InjectorSettings
from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_KEY_BYTES, MAX_VALUE_BYTES
from millwheel.rpc.column_keys import longest_in
from millwheel.rpc.columns import RecordColumns, plain_types
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import UsageError

__all__ = ["TABLE_RECORDS", "TableAdmission", "table_parts"]

TABLE_RECORDS: Final = 8_192
"""The most records of a table that are passed to the core at a time."""
_TABLE_BYTES: Final = 1 << 20
"""The most bytes of their columns. A larger record is passed alone."""
_NAMES_BYTES: Final = 8 << 20
"""The most bytes that the names of columns have if the records are sent one by one after all."""
_NAME_BYTES: Final = 16
_IN_MSGPACK: Final = (specs.VALUE_FORMAT_MSGPACK, specs.VALUE_FORMAT_UNSPECIFIED)
_PLAIN: Final = frozenset({"bool", "int", "float", "str", "bytes"})
"""The kinds of fields whose values are exactly those of a plain column."""
_encode: Final = msgspec.msgpack.Encoder().encode


def table_parts(data: Any, timestamp: str, most: int = TABLE_RECORDS) -> Iterator[tuple[Any, array[int]]]:
    """The parts of a table: record batches without the column of timestamps, and the timestamps in microseconds.

    Args:
        data: A table or a record batch of Arrow, or what has the Arrow PyCapsule interface.
        timestamp: The column of timestamps: of a type of timestamps, or integers of microseconds.
        most: The most records of a part.

    Raises:
        UsageError: There is no such column, or it has nulls or other values. pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise UsageError("tables need pyarrow: install MillWheel with the extra arrow") from error
    try:
        table = data if isinstance(data, pa.Table) else pa.table(data)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise UsageError(f"a table or record batch of Arrow is sent, or what can be read as one: {error}") from error
    if timestamp not in table.column_names or len(table.column_names) < 2:
        raise UsageError(f"a table has a column {timestamp!r} of timestamps, and others: {table.column_names}")
    if len(set(table.column_names)) < len(table.column_names):
        raise UsageError(f"two columns of the table have one name: {table.column_names}")
    times = table.column(timestamp)
    if not (pa.types.is_timestamp(times.type) or times.type == pa.int64()) or times.null_count:
        raise UsageError(f"column {timestamp!r} has timestamps or integers of microseconds, and no nulls")
    try:
        if pa.types.is_timestamp(times.type):
            times = times.cast(pa.timestamp("us", times.type.tz), safe=False)
        whole = _plain(table.drop_columns([timestamp])).append_column(timestamp, times.cast(pa.int64()))
    except pa.ArrowException as error:
        raise UsageError(f"column {timestamp!r}: {error}") from error
    names = sum(_NAME_BYTES + len(name) for name in whole.column_names)
    rows = max(1, min(most, _TABLE_BYTES * whole.num_rows // max(1, whole.nbytes), _NAMES_BYTES // names))
    for batch in _bounded(whole.combine_chunks().to_batches(rows)):
        stamps = batch.column(batch.num_columns - 1)
        values = pa.RecordBatch.from_arrays(batch.columns[:-1], names=batch.schema.names[:-1])
        yield values, array("q", pa.concat_arrays([stamps.slice(0, 0), stamps]).buffers()[1].to_pybytes())


def _bounded(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches with rows, of which none has far more bytes than the others."""
    for batch in batches:
        half = batch.num_rows // 2
        if half and batch.nbytes > _TABLE_BYTES:
            yield from _bounded((batch.slice(0, half), batch.slice(half)))
        elif batch.num_rows:
            yield batch


def _plain(table: Any) -> Any:
    """The table with columns of plain types, where that changes no value."""
    import pyarrow as pa

    for number, field in enumerate(table.schema):
        kind, types = field.type, pa.types
        kind = kind.value_type if types.is_dictionary(kind) else kind
        wanted = (
            pa.int64() if types.is_integer(kind) and kind != pa.uint64()
            else pa.float64() if kind == pa.float32()
            else pa.string() if types.is_large_string(kind) or types.is_string(kind)
            else pa.binary() if types.is_large_binary(kind) or types.is_binary(kind)
            else field.type
        )  # fmt: skip
        if wanted != field.type:
            table = table.set_column(number, field.name, table.column(number).cast(wanted))
    return table


class TableAdmission:
    """Passes parts of tables to the core, by columns if that is possible."""

    def __init__(self, session: InjectorSession, admission: RecordAdmission, settings: InjectorSettings) -> None:
        self._session = session
        self._admission = admission
        self._settings = settings
        self._fitting: tuple[Any, Any, bool] | None = None
        """The last schema of a table, the declared types, and whether the one has the fields of the others."""

    @property
    def most(self) -> int:
        """The most records of a part: all fit into half of the window, also if each consumer gets them (G13)."""
        consumers = max(1, len(self._session.routing.consumers))
        return max(1, min(TABLE_RECORDS, self._settings.limits.window_records // consumers // 2))

    async def send(
        self, values: Any, timestamps: array[int], newest: int, position: int | None, partition: str
    ) -> None:
        """Send a part of a table.

        Args:
            values: A record batch.
            timestamps: The timestamps of its records, in microseconds.
            newest: The largest of them.
            position: The position of the first record in ``partition``. The others follow. None: records without one.
            partition: The partition of the source.
        """
        count, admission = len(timestamps), self._admission
        positions = None if position is None else range(position, position + count)
        scope = admission.ids.scope(None, positions, partition, None)
        sent = False
        async with admission.turns:
            self._session.check()
            while (keys := self._keys(values)) is not None:
                routing = self._session.routing
                await admission.wait_for_room(newest, count)
                self._session.check()
                if routing is self._session.routing:
                    self._accept(RecordColumns(values, timestamps, ""), keys, positions, scope)
                    sent = True
                    break
        if not sent:
            encoded = [_encode(row) for row in values.to_pylist()]
            await admission.send(encoded, timestamps, None, positions, partition, encoded=True)

    def _accept(
        self, records: RecordColumns, names: Mapping[IncarnationId, str], positions: range | None, scope: IdScope
    ) -> None:
        """Pass records to the core. Nothing is awaited since the look at the routing."""
        admission, count = self._admission, len(records)
        admission.drain()
        ids = admission.ids.delivery_ids(None, positions, slice(0, count))
        keys = {name: records.keyed(key).keys() for name, key in names.items()}
        self._session.step(Columns(records, records.timestamps, keys, scope, ids))
        if positions is None:
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
        """Whether each record with such columns is of a type that is declared for the stream."""
        if not self._settings.check_types or not routing.schemas:
            return True
        known = self._fitting
        if known is None or known[0] != schema or known[1] is not routing.schemas:
            known = self._fitting = schema, routing.schemas, any(_fits(schema, one) for one in routing.schemas)
        return known[2]


def _key_of(consumer: ConsumerRouting, schema: Any) -> str | None:
    """The column that has the consumer's keys. Empty: its keys are empty. None: no column has them."""
    import pyarrow as pa

    if consumer.log:
        return ""
    if len(consumer.fields) != 1 or consumer.fields[0] not in schema.names:
        return None
    return consumer.fields[0] if schema.field(consumer.fields[0]).type == pa.string() else None


def _fits(schema: Any, declared: specs.RecordSchema) -> bool:
    """Whether columns have the fields of a struct, each of exactly its type, which restricts no value."""
    from millwheel.client.arrow.types import arrow_type

    struct = declared.types[0]
    if struct.kind != "struct" or (struct.options and any(msgspec.msgpack.decode(struct.options).values())):
        return False
    for field in struct.fields:
        described = declared.types[field.type]
        if field.name in schema.names:
            plain = described.kind in _PLAIN and not described.options
            fits = plain and schema.field(field.name).type == arrow_type(declared, field.type).type
        else:
            fits = field.optional
        if not fits:
            return False
    return True
