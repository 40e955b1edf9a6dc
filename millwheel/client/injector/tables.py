"""Tables of Arrow that are sent by columns, where :mod:`millwheel.client.injector.table_forms` allows it (section 5.2).

Otherwise their records are encoded one by one, and go the way of all records. So a table has the same effect in either
form. Its rows are maps in MessagePack, so a stream of another format takes no table.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from millwheel.client.injector.admission import CHUNK_RECORDS, RecordAdmission
from millwheel.client.injector.column_division import DELIVERY_BYTES, DELIVERY_RECORDS
from millwheel.client.injector.ids import BatchOf, IdScope
from millwheel.client.injector.messages import KeyedRecords
from millwheel.client.injector.session import InjectorSession
from millwheel.client.injector.settings import InjectorSettings
from millwheel.client.injector.small_tables import SmallTable, SmallTables
from millwheel.client.injector.table_data import arrow_of
from millwheel.client.injector.table_forms import IN_MSGPACK, TableCounts, TableForms
from millwheel.client.injector.table_intake import TableIntake
from millwheel.model.incarnation import IncarnationId
from millwheel.model.wording import counted
from millwheel.rpc.column_keys import KeySource, bytes_in
from millwheel.rpc.columns import RecordColumns, exact, names_bytes, plain_types
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import MillwheelError, TooLargeError, UsageError, ValueEncodeError

__all__ = ["TableAdmission", "plain_table", "table_parts", "times_in"]

_MAX_INTERVALS: Final = 4
"""A part of a table has records for so many deliveries at most. It is divided over the intervals of their keys."""
_FULL: Final = 7 / 8
"""How full the deliveries of a part for several intervals are, if its keys are spread evenly. No share is exactly even,
and one that is a little larger than a delivery would be two of them."""
_NAMES_BYTES: Final = 8 << 20
"""The most bytes that the names of columns have if the records are sent one by one after all."""


def plain_table(data: Any, timestamp: str, id_column: str | None = None) -> Any:
    """A table with columns of plain types, as far as that changes no value. The last one has the timestamps.

    Args:
        data: A table or a record batch of Arrow, or what has the Arrow PyCapsule interface.
        timestamp: The column of timestamps: of a type of timestamps, or integers of microseconds.
        id_column: The column of the records' ids, if they have some: texts, bytes or integers.

    Raises:
        UsageError: There is no such column, or it has nulls or other values. pyarrow cannot be loaded.
        ValueEncodeError: A column has values that Arrow does not allow.
    """
    data = arrow_of(data)
    import pyarrow as pa

    table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
    names = table.column_names
    if timestamp not in names:
        raise UsageError(f"the table has no column {timestamp!r} for timestamps: its columns are {names}")
    if len(names) < 2:
        raise UsageError(f"the table has no column besides {timestamp!r}, the timestamps: its records have no fields")
    if len(set(names)) < len(names):
        raise UsageError(f"two columns of the table have one name: {names}")
    times = table.column(timestamp)
    if not (pa.types.is_timestamp(times.type) or times.type == pa.int64()):
        raise UsageError(
            f"column {timestamp!r} is of type {times.type}: it must have timestamps, or microseconds as int64"
        )
    _check_no_nulls(timestamp, times, "a time")
    _check_values(table)
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
        raise UsageError(f"the table has no column {name!r} for ids beside that of timestamps: {table.column_names}")
    ids = table.column(name)
    if not (pa.types.is_integer(ids.type) or ids.type in (pa.string(), pa.binary())):
        raise UsageError(f"column {name!r} is of type {ids.type}: ids are texts, bytes or integers")
    _check_no_nulls(name, ids, "an id")
    if not pa.types.is_integer(ids.type) and pc.min(pc.binary_length(ids)).as_py() == 0:
        raise UsageError(f"column {name!r} has an id that is empty: give each row one that is its own")


def _check_no_nulls(name: str, column: Any, what: str) -> None:
    """Raise UsageError if the column has a null. ``what``: what each record needs."""
    import pyarrow.compute as pc

    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise UsageError(
            f"column {name!r} has {counted(column.null_count, 'null')}, the first in row {row} counted from 0: each "
            f"record needs {what}"
        )


def _check_values(table: Any) -> None:
    """Raise ValueEncodeError if a column has values that Arrow does not allow, such as texts that are no UTF-8."""
    import pyarrow as pa

    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException as error:
            raise ValueEncodeError(f"column {name!r} of the table: {error}; no row is sent") from error


def times_in(table: Any) -> Sequence[int]:
    """The least and the greatest timestamp of what ``TableAdmission.read`` gives, in microseconds. Empty: no rows."""
    if isinstance(table, SmallTable):
        return table.oldest, table.newest
    import pyarrow.compute as pc

    found = pc.min_max(table.column(table.num_columns - 1))
    return [found[name].as_py() for name in ("min", "max")] if table.num_rows else []


def table_parts(
    table: Any, most: int = DELIVERY_RECORDS, size: int = DELIVERY_BYTES
) -> Iterator[tuple[Any, array[int]]]:
    """The parts of a ``plain_table``: record batches without the timestamps, and these, in microseconds.

    A part has buffers of its own, if it may go by columns. So what is not ACKed keeps no more of the table in memory.

    Args:
        table: The table.
        most: The most records of a part.
        size: The most bytes of a part. A larger record is a part of its own.
    """
    import pyarrow as pa

    plain = plain_types()
    names = names_bytes(table.column_names)
    rows = max(1, min(most, size * table.num_rows // max(1, table.nbytes), _NAMES_BYTES // names))
    with suppress(pa.ArrowNotImplementedError):  # dictionaries of lists, for example: a part is then of one chunk
        table = table.combine_chunks()
    for batch in _bounded(table.to_batches(rows), size):
        *columns, stamps = (exact(one) if one.type in plain else one for one in batch.columns)
        values = pa.RecordBatch.from_arrays(columns, names=batch.schema.names[:-1])
        yield values, array("q", stamps.buffers()[1].to_pybytes())


def _bounded(batches: Iterable[Any], size: int) -> Iterator[Any]:
    """Batches with rows, of which none has far more bytes than the others."""
    for batch in batches:
        half = batch.num_rows // 2
        if half and batch.nbytes > size:
            yield from _bounded((batch.slice(0, half), batch.slice(half)), size)
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


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a table: its records, and its first row in the table.

    ``positions``: those of its records in ``partition``, if they have some. ``ids``: the user's ids in place of these,
    from ``id_column``, which are unique in ``batch`` if that is given.
    """

    records: RecordColumns
    row: int
    positions: range | None
    partition: str
    ids: list[bytes] | None
    id_column: str | None
    batch: BatchOf | None

    @property
    def values(self) -> Any:
        """The records as a record batch of Arrow."""
        return self.records.batch

    def within(self, most: int, size: int) -> int:
        """How many of its first records are at most so many, with at most so many bytes. At least one."""
        count = min(len(self.records), most)
        if count == len(self.records) and self.records.size <= size:
            return count
        while count > 1 and self.values.slice(0, count).nbytes > size:
            count //= 2
        return count

    def cut(self, first: int, end: int) -> _Part:
        """Its records from ``first`` to before ``end``. All are to go by columns."""
        positions = None if self.positions is None else self.positions[first:end]
        ids = None if self.ids is None else self.ids[first:end]
        return replace(
            self,
            records=self.records.cut(first, end),
            row=self.row + first,
            positions=positions,
            ids=ids,
        )

    def name_row(self, at: int, error: MillwheelError) -> None:
        """Add to the error of record ``at``: which row of the table that is, what its column has, and what was sent."""
        row = self.row + at
        place = "" if self.positions is None else f", position {self.positions[at]} of partition {self.partition!r}"
        before = f"the {counted(row, 'row')} before it" if row else "no row"
        verb = "is" if row <= 1 else "are"
        error.args = (
            f"row {row} of the table (counted from 0{place}): {error}{_hint(self.values, at, str(error))}. "
            f"{before.capitalize()} {verb} sent",
        )


class TableAdmission:
    """Passes tables to the core, by columns if that is possible."""

    def __init__(self, session: InjectorSession, admission: RecordAdmission, settings: InjectorSettings) -> None:
        self._session = session
        self._admission = admission
        self._settings = settings
        self._forms = TableForms(session, settings)
        self._small = SmallTables()
        self.intake = TableIntake(session, admission, self._forms, self._most)
        """Takes small tables."""
        self._sizes: tuple[Any, int, int] = None, 0, 0
        """A routing, and the most records and bytes of a part by it."""

    def read(self, data: Any, timestamp: str, id_column: str | None = None) -> Any:
        """What ``send`` takes: a small table like the ones before it, or a ``plain_table``. See there."""
        data = arrow_of(data)
        if id_column is not None:
            return plain_table(data, timestamp, id_column)
        if (small := self._small.read(data, timestamp)) is not None:
            return small
        table = plain_table(data, timestamp)
        self._small.learn(data, timestamp)
        return table

    @property
    def counts(self) -> TableCounts:
        """How many records were sent in which form."""
        return self._forms.counts

    def look_at_workers(self) -> None:
        """Say which workers have answered that they read no columns."""
        self._forms.look_at_workers()

    def _most(self) -> tuple[int, int]:
        """The most records and bytes of a part, by the present routing: so many that intervals get large deliveries.

        Invariant (G13): a third of the window has room for the part, also if each consumer gets its records.
        """
        if self._sizes[0] is not self._session.routing:
            self._sizes = self._session.routing, *self._sizes_now()
        return self._sizes[1:]

    def _sizes_now(self) -> tuple[int, int]:
        consumers, limits = self._session.routing.consumers.values(), self._settings.limits
        intervals = min((len(one.routes) for one in consumers), default=1)
        deliveries = 1 if intervals <= 1 else _FULL * min(intervals, _MAX_INTERVALS)
        part = 3 * max(1, len(consumers))
        records = min(int(DELIVERY_RECORDS * deliveries), self._session.core.window // part)
        return max(1, records), max(1, min(int(DELIVERY_BYTES * deliveries), limits.window_bytes // part))

    async def send(
        self,
        table: Any,
        position: int | None,
        partition: str,
        id_column: str | None = None,
        batch: BatchOf | None = None,
    ) -> None:
        """Send a table.

        Args:
            table: What ``read`` has given, or a ``plain_table``.
            position: The position of the first row in ``partition``. The others follow. None: records without one.
            partition: The partition of the source.
            id_column: The column of the user's ids, in place of positions.
            batch: The batch of a query in which these ids are unique.

        Raises:
            UsageError: The stream's format is another one than that of a table's rows.
            ValueEncodeError: A row is not of the stream's type.
        """
        self._admission.drain()
        row = 0
        for records in self._parts(table):
            end = row + len(records)
            positions = None if position is None else range(position + row, position + end)
            ids = None if id_column is None else _id_texts(records.batch.column(id_column))
            await self._send_part(_Part(records, row, positions, partition, ids, id_column, batch))
            row = end

    def _parts(self, table: Any) -> Iterator[RecordColumns]:
        if isinstance(table, SmallTable):
            yield table.records()
            return
        for values, timestamps in table_parts(table, *self._most()):
            yield RecordColumns(values, timestamps)

    async def _send_part(self, part: _Part) -> None:
        """Send a part. It was cut by an earlier routing, so by the present one it may be too large."""
        admission = self._admission
        newest = part.records.extremes()[1]
        scope = admission.ids.scope(part.ids, part.positions, part.partition, part.batch)
        async with admission.turns:
            self._session.check()
            while (keys := self._forms.keys(part.records, part.id_column)) is not None:
                routing, whole = self._session.routing, len(part.records)
                count = part.within(*self._most())
                await admission.wait_for_room(newest, count)
                self._session.check()
                if routing is not self._session.routing:
                    continue
                self._accept(part if count == whole else part.cut(0, count), keys, scope)
                if count == whole:
                    return
                part = part.cut(count, whole)
        await self._send_rows(part)

    async def _send_rows(self, part: _Part) -> None:
        """Send records one by one. If one is refused, those before it are accepted."""
        admission, positions = self._admission, part.positions
        if (form := self._session.routing.format) not in IN_MSGPACK:
            shown = specs.ValueFormat.Name(form).removeprefix("VALUE_FORMAT_")
            raise UsageError(
                f"stream {self._session.core.stream!r} has values of format {shown}, and the rows of a table are maps "
                "in MessagePack: send values of that format by send_many"
            )
        for first in range(0, len(part.records), CHUNK_RECORDS):
            encoded, wrong = self._encoded(part.values[first : first + CHUNK_RECORDS])
            some = slice(first, first + len(encoded))

            def refused(index: int, error: MillwheelError, first: int = first) -> None:
                self.counts.by_rows += index
                part.name_row(first + index, error)

            await admission.send(
                encoded,
                part.records.timestamps[some],
                None if part.ids is None else part.ids[some],
                None if positions is None else positions[some],
                part.partition,
                part.batch,
                encoded=True,
                refused=refused,
            )
            self.counts.by_rows += len(encoded)
            if wrong is not None:
                part.name_row(some.stop, wrong)
                raise wrong

    def _encoded(self, values: Any) -> tuple[list[bytes], MillwheelError | None]:
        """The encoded rows before the first one that cannot be encoded, and its error."""
        try:
            return self._admission.encoder.rows(_rows_of(values)), None
        except (ValueEncodeError, TooLargeError) as error:
            half = len(values) // 2
            if not half:
                return [], error
        encoded, wrong = self._encoded(values[:half])
        if wrong is None:
            more, wrong = self._encoded(values[half:])
            encoded += more
        return encoded, wrong

    def _accept(self, part: _Part, names: Mapping[IncarnationId, KeySource], scope: IdScope) -> None:
        """Pass records to the core. Nothing is awaited since the look at the routing."""
        records, admission = part.records, self._admission
        count = len(records)
        admission.drain()
        ids = admission.ids.delivery_ids(part.ids, part.positions, slice(0, count))
        columns = {key: records.keyed(key).keys() for key in set(names.values())}
        keys = {name: columns[key] for name, key in names.items()}
        self._session.step(KeyedRecords(records, records.timestamps, keys, scope, ids))
        self.counts.by_columns += count
        if part.ids is None and part.positions is None:
            admission.ids.next += count


def _id_texts(column: Any) -> list[bytes]:
    """The ids of a column as the texts by which they count."""
    import pyarrow as pa

    return bytes_in(column.cast(pa.string()) if pa.types.is_integer(column.type) else column)


def _rows_of(values: Any) -> list[dict[str, Any]]:
    """The rows as Python values. ValueEncodeError: Python has no such value, such as a time after the year 9999."""
    try:
        rows: list[dict[str, Any]] = values.to_pylist()
    except (ValueError, OverflowError) as error:  # Arrow's own errors of values are ValueErrors, too
        raise ValueEncodeError(f"it is no value of Python: {error}") from error
    return rows


def _hint(values: Any, at: int, error: str) -> str:
    """What the column has that a decoder's error names by its path, if that helps to mend it. Empty: nothing."""
    import pyarrow as pa

    for field, column in zip(values.schema, values.columns, strict=True):
        if f"`$.{field.name}`" not in error:
            continue
        if not column[at].is_valid:
            return (
                f". Column {field.name!r} is null in this row, as NaN, None and NaT of pandas become: fill it "
                "(pandas: `fillna`), or declare the field with `| None`"
            )
        if pa.types.is_decimal(field.type):
            return (
                f". Column {field.name!r} is of type {field.type}, and a decimal is sent as a text, with all digits: "
                "cast the column (pandas: `astype(float)`), or declare the field as Decimal"
            )
    return ""
