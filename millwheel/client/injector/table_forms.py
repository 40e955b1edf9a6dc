"""How the records of a table are sent: by columns, or one by one (section 5.2).

They go by columns if that needs no look at each of them: the columns are of plain types, they have the fields of the
stream's declared type, with nulls where it allows None, and each consumer's key is one of the columns. Otherwise they
go one by one. That
has the same effect and takes several times the processor time, so the log says why, once for a schema and a reason.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from millwheel.client.injector.routing import ConsumerRouting, StreamRouting
from millwheel.client.injector.session import InjectorSession
from millwheel.client.injector.settings import InjectorSettings
from millwheel.client.injector.small_tables import SmallTable, SmallTableLayout
from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_KEY_BYTES, MAX_VALUE_BYTES
from millwheel.model.wording import named
from millwheel.rpc.column_keys import KeySource, longest_in
from millwheel.rpc.columns import SCHEMA_BYTES, RecordColumns, names_bytes, plain_types, schema_bytes
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["IN_MSGPACK", "TableCounts", "TableForms"]

log = logging.getLogger("millwheel.client")

IN_MSGPACK: Final = (specs.VALUE_FORMAT_MSGPACK, specs.VALUE_FORMAT_UNSPECIFIED)
"""The formats of streams that take the rows of a table."""
_PLAIN: Final = frozenset({"bool", "int", "float", "str", "bytes"})
"""The kinds of fields whose values are exactly those of a plain column."""
_MAX_SAID: Final = 64
"""So many messages are kept, so that each is said once. A program with more schemas may hear one again."""


@dataclass(frozen=True, slots=True)
class _ByRows:
    """Why records go one by one. ``remedy``: what their sender can do about it. Empty: nothing."""

    why: str
    remedy: str = ""


@dataclass(slots=True)
class TableCounts:
    """How many records of tables were sent by columns, and how many one by one."""

    by_columns: int = 0
    by_rows: int = 0


@dataclass(frozen=True, slots=True)
class _SchemaForm:
    """What a table's schema says, by one routing and one column of ids.

    ``misfit``: why its records are not surely of a declared type, or cannot be columns. None: they can. ``keys``: the
    sources of the keys, by consumer, or why there is none. ``names_bytes``: what a row has beside its values' content.
    """

    schema: Any
    routing: StreamRouting
    id_column: str | None
    misfit: _ByRows | None
    keys: Mapping[IncarnationId, KeySource] | _ByRows
    names_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _SmallForm:
    """What ``TableForms.keys`` has found for a small table.

    ``keys``: what it gave. ``columns``: the numbers of the columns with keys. ``names_bytes``: see ``_SchemaForm``.
    """

    layout: SmallTableLayout
    routing: StreamRouting
    keys: Mapping[IncarnationId, KeySource]
    columns: Sequence[int]
    names_bytes: int

    def has(self, table: SmallTable) -> bool:
        """Whether a table has the same layout, no nulls, and no large row or key."""
        if table.layout is not self.layout or table.size + self.names_bytes > MAX_VALUE_BYTES:
            return False
        columns = table.columns
        for column in columns:
            if column.null_count:
                return False
        return not any(map(_has_long, [columns[number] for number in self.columns]))


class TableForms:
    """Decides how the records of tables are sent, and says what a sender should know about it.

    Attributes:
        counts: How many records were sent in which form.
    """

    def __init__(self, session: InjectorSession, settings: InjectorSettings) -> None:
        self.counts = TableCounts()
        self._session = session
        self._settings = settings
        self._looked: _SchemaForm | None = None
        """What the last schema of a table says."""
        self._small: _SmallForm | None = None
        """What was found for the last small table that goes by columns."""
        self._said: set[tuple[Any, str]] = set()

    def keys(self, records: RecordColumns, id_column: str | None = None) -> Mapping[IncarnationId, KeySource] | None:
        """Where each consumer's keys are. None: the records go one by one.

        Args:
            records: The records.
            id_column: The column with their ids, if they have some. It need not be a field of the stream's type.
        """
        routing = self._session.routing
        if routing.format not in IN_MSGPACK:
            return None  # it is refused
        found = self._form(records, routing, id_column)
        if not isinstance(found, _ByRows):
            return found
        remedy = f". To send it by columns: {found.remedy}" if found.remedy else ""
        text = f"a table goes by rows: {found.why}. It has the same effect, and takes more processor time{remedy}"
        self._say(logging.WARNING if found.remedy else logging.INFO, records.batch.schema, text)
        return None

    def keys_of_small(self, table: SmallTable) -> Mapping[IncarnationId, KeySource] | None:
        """What ``keys`` gives for the records of a small table.

        Invariant: without nulls and large values, the answer depends on the layout and the routing alone. So it is the
        one that ``keys`` gave for the last table.
        """
        known, routing = self._small, self._session.routing
        if known is not None and known.routing is routing and known.has(table):
            return known.keys
        if (keys := self.keys(table.records())) is not None:
            schema = table.layout.empty.schema
            columns = [schema.get_field_index(key) for key in set(keys.values()) if key and isinstance(key, str)]
            self._small = _SmallForm(table.layout, routing, keys, columns, names_bytes(schema.names))
        return keys

    def _form(
        self, records: RecordColumns, routing: StreamRouting, id_column: str | None
    ) -> Mapping[IncarnationId, KeySource] | _ByRows:
        values, known = records.batch, self._looked
        schema = values.schema
        if known is None or known.routing is not routing or known.id_column != id_column or known.schema != schema:
            known = self._looked = self._look_at(schema, routing, id_column)
        if not routing.column_batches:
            return _ByRows("the cluster's format has no columns", "raise it to 4 (docs/upgrading.md)")
        if self._settings.check_at_worker:
            return _ByRows("by the setting check_at_worker, a worker checks each record")
        declared = routing.schemas if self._settings.check_types else ()
        if (reason := known.misfit or _unfit_nulls(values, declared)) is not None:
            return reason
        if isinstance(known.keys, _ByRows):
            return known.keys
        columns = {name: key for name, key in known.keys.items() if isinstance(key, str)}
        for name, key in columns.items():
            if values.column(key).null_count:
                return _ByRows(f"the key of {_name_of(routing.consumers[name])} is column {key!r}, which has nulls")
        # A row or a key that is too large gets its error where it is encoded.
        large = records.size + known.names_bytes > MAX_VALUE_BYTES  # each row is smaller than all of them
        if (large and records.longest > MAX_VALUE_BYTES) or any(
            _has_long(values.column(key)) for key in set(columns.values())
        ):
            return _ByRows("a row or its key may be too large")
        return known.keys

    def _look_at(self, schema: Any, routing: StreamRouting, id_column: str | None) -> _SchemaForm:
        """What a schema says of its records' form. Undeclared columns get a message."""
        meant = {id_column, *self._settings.extra_columns}
        if unseen := [repr(name) for name in _undeclared(schema, routing.schemas) if name not in meant]:
            shown = named(unseen)
            text = f"a table has columns that are no fields of {routing.record_type}, which ignores them: {shown}"
            self._say(logging.WARNING, schema, text)
        declared = routing.schemas if self._settings.check_types else ()
        misfit = _unfit_column(schema, routing.schemas) or _misfit_of(schema, declared)
        return _SchemaForm(schema, routing, id_column, misfit, _keys_of(schema, routing), names_bytes(schema.names))

    def look_at_workers(self) -> None:
        """Say which workers have answered that they read no columns."""
        if without := self._session.core.outbound.without_columns:
            shown = named(sorted(without))
            text = f"tables go by rows to workers without the extra arrow: {shown}. To send them by columns: install it"
            self._say(logging.WARNING, None, text)

    def _say(self, level: int, schema: Any, text: str) -> None:
        """Log a text about tables of this schema, if it is a new one."""
        if (schema, text) in self._said:
            return
        if len(self._said) >= _MAX_SAID:
            self._said.clear()
        self._said.add((schema, text))
        log.log(level, "injector %s of stream %r: %s", self._session.core.process, self._session.core.stream, text)


def _unfit_column(schema: Any, declared: Sequence[specs.RecordSchema]) -> _ByRows | None:
    """The first column that is not of a plain type."""
    plain = plain_types()
    for field in schema:
        if field.type in plain:
            continue
        why = f"column {field.name!r} is of type {field.type}"
        if _undeclared((field,), declared):
            return _ByRows(why, "leave the column out, as the stream's type has no such field")
        # A declared type wants it so, or the record is refused.
        return _ByRows(why, "" if declared else "cast it to texts, numbers or truth values")
    return None


def _unfit_nulls(values: Any, declared: Sequence[specs.RecordSchema]) -> _ByRows | None:
    """The first column with nulls whose field is never None. Each declared type has to allow it: one of them counts."""
    for name, column in zip(values.schema.names, values.columns, strict=True):
        if column.null_count and not all(_takes_none(one, name) for one in declared):
            return _ByRows(f"column {name!r} has nulls, and the field of the stream's type is never None")
    return None


def _takes_none(declared: specs.RecordSchema, name: str) -> bool:
    """Whether a field of a plain struct may be None, or there is no such field."""
    fields = [one for one in declared.types[0].fields if one.name == name]
    return all(declared.types[one.type].kind == "union" for one in fields)


def _undeclared(schema: Any, declared: Sequence[specs.RecordSchema]) -> list[str]:
    """The names of columns that no declared type has as a field. Empty if one is no struct, and may take any."""
    if not declared or any(one.types[0].kind != "struct" for one in declared):
        return []
    known = {field.name for one in declared for field in one.types[0].fields}
    return [field.name for field in schema if field.name not in known]


def _misfit_of(schema: Any, declared: Sequence[specs.RecordSchema]) -> _ByRows | None:
    """Why columns do not have the fields of any declared type, or a receiver would refuse their schema."""
    if schema_bytes(schema) > SCHEMA_BYTES:
        return _ByRows("the names and types of its columns are longer than a delivery may have")
    reasons = [_misfit_with(schema, one) for one in declared]
    return None if not reasons or None in reasons else reasons[0]


def _misfit_with(schema: Any, declared: specs.RecordSchema) -> _ByRows | None:
    """Why columns do not have the fields of a struct, each of exactly its type, which restricts no value."""
    from millwheel.sdk.tables.types import arrow_type

    struct = declared.types[0]
    if struct.kind != "struct":
        return _ByRows("the stream's type is no struct")
    if struct.options and any(msgspec.msgpack.decode(struct.options).values()):
        return _ByRows("the stream's type has options, such as a tag")
    for field in struct.fields:
        if field.name not in schema.names:
            if not field.optional:
                return _ByRows(f"it has no column {field.name!r}, which the stream's type needs")
            continue
        if not _is_plain(declared, field.type):
            return _ByRows(f"field {field.name!r} of the stream's type has limits, or is of no plain type")
        wanted, given = arrow_type(declared, field.type).type, schema.field(field.name).type
        if given != wanted:
            return _ByRows(f"column {field.name!r} is of type {given}", f"cast it to {wanted}, its declared type")
    return None


def _is_plain(declared: specs.RecordSchema, number: int) -> bool:
    """Whether a type takes each value of a plain column that is not null: it is such a type, or that or None."""
    described = declared.types[number]
    if described.options:
        return False
    if described.kind != "union":
        return described.kind in _PLAIN
    others = [part for part in described.parts if declared.types[part].kind != "none"]
    return len(others) == 1 and declared.types[others[0]].kind in _PLAIN and not declared.types[others[0]].options


def _has_long(column: Any) -> bool:
    """Whether a key of a column is too long. All keys of a small table together are no longer than one may be."""
    *_, content = column.buffers()
    return content is not None and content.size > MAX_KEY_BYTES and longest_in(column) > MAX_KEY_BYTES


def _keys_of(schema: Any, routing: StreamRouting) -> dict[IncarnationId, KeySource] | _ByRows:
    """Where the keys are, by consumer, or why a consumer's keys are in no column."""
    found = dict[IncarnationId, KeySource]()
    for name, consumer in routing.consumers.items():
        key = _key_of(consumer, schema)
        if isinstance(key, _ByRows):
            return key
        found[name] = key
    return found


def _name_of(consumer: ConsumerRouting) -> str:
    return f"computation {consumer.topology}/{consumer.computation}"


def _key_of(consumer: ConsumerRouting, schema: Any) -> KeySource | _ByRows:
    """Where the consumer's keys are."""
    import pyarrow as pa

    if consumer.same is not None:
        return consumer.same
    who, fields = _name_of(consumer), consumer.fields
    if len(fields) != 1:
        return _ByRows(f"the key of {who} is of several fields" if fields else f"{who} computes its key by code")
    if "." in fields[0]:
        return _ByRows(f"the key of {who} is the field of a field: {fields[0]}")
    if fields[0] not in schema.names:
        return _ByRows(f"it has no column {fields[0]!r}, the key of {who}")
    if (kind := schema.field(fields[0]).type) not in (pa.string(), pa.int64()):
        return _ByRows(f"the key of {who} is column {fields[0]!r}, which is of type {kind}: no texts, no integers")
    return str(fields[0])
