"""A table, and how the fields of a row fill its columns. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, Final, NamedTuple

from msgspec import UNSET, inspect

from millwheel.connectors.cassandra.cql_types import Convert, UnfitError, converter, parsed
from millwheel.connectors.cassandra.errors import CassandraError
from millwheel.model.time import Timestamp
from millwheel.sdk.errors import UsageError
from millwheel.sdk.typeinfo import Field, describe_type, field_of, members, type_name

__all__ = ["LEAST_GRACE_SECONDS", "FieldColumn", "TableColumns", "TableLayout", "fields_of"]

LEAST_GRACE_SECONDS: Final = 3_600
"""How long Cassandra must remember what was deleted (``gc_grace_seconds``). A write may arrive late by a minute or two,
and must find that. An hour leaves room."""
_WITH_FIELDS: Final = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)
_KEYS: Final = ("partition_key", "clustering")
_ALL_DIGITS: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""The context of a thread would round a decimal to 28 digits."""


class TableLayout(NamedTuple):
    """A table as ``system_schema`` describes it.

    Attributes:
        name: With its keyspace, as CQL writes it.
        columns: By name: the kind of the column, such as ``partition_key``; its place in the key; its type.
        grace: ``gc_grace_seconds``.
    """

    name: str
    columns: Mapping[str, tuple[str, int, str]]
    grace: int

    @property
    def keys(self) -> list[str]:
        """The columns of the primary key, in their order."""
        return [name for kind in _KEYS for name in self.of_kind(kind)]

    def of_kind(self, kind: str) -> list[str]:
        """The columns of a kind, in their order."""
        found = [(place, name) for name, (its_kind, place, _) in self.columns.items() if its_kind == kind]
        return [name for _, name in sorted(found)]


@dataclass(frozen=True, slots=True)
class FieldColumn:
    """A field that fills a column.

    Attributes:
        name: That of the column.
        attribute: That of the field in the program.
        convert: What makes the driver's value. None: the driver takes it as it is.
    """

    name: str
    attribute: str
    convert: Convert | None


def fields_of(kind: Any) -> tuple[inspect.Field, ...]:
    """The fields of the type of rows. A column has the name that a field has when it is encoded.

    Raises:
        UsageError: The type has none.
    """
    try:
        described = describe_type(kind)
    except TypeError as error:
        raise UsageError(f"no row of a table can be {kind!r}: {error}") from error
    if not isinstance(described, _WITH_FIELDS) or not described.fields:
        raise UsageError(f"a row of a table has fields, and {type_name(kind)} has none: give a type with fields")
    return described.fields


class TableColumns:
    """How rows of a type fill a table."""

    def __init__(self, kind: Any, table: TableLayout) -> None:
        """Check that the table takes the rows.

        Raises:
            CassandraError: It does not. The text names each difference.
        """
        self.table = table
        self._items = isinstance(describe_type(kind), inspect.TypedDictType)
        fields = {field.encode_name: field for field in fields_of(kind)}
        problems = _unfit_tables(table, fields)
        found: dict[str, FieldColumn] = {}
        for name, field in fields.items():
            try:
                convert = _convert_of(field, table, _is_timestamp(kind, field.name))
                found[name] = FieldColumn(name, field.name, convert)
            except UnfitError as error:
                problems.append(f"column {name} {error}")
        if problems:
            raise CassandraError(
                f"rows of {type_name(kind)} do not fit into the table {table.name}: {'; '.join(problems)}. Change the "
                "table or the type, or write to another table"
            )
        keys = [found[name] for name in table.keys]
        self.columns = [*keys, *(one for name, one in found.items() if name not in table.keys)]
        """Those of the primary key come first, in its order."""
        self.keys = len(keys)
        """How many columns the primary key has."""
        self.partition = len(table.of_kind("partition_key"))
        """How many of them are the key of the partition."""

    def values(self, row: Any, unset: Any) -> list[Any]:
        """The values of a row, for all columns. ``unset``: what a field that is UNSET becomes.

        Raises:
            ValueError: A part of the primary key is missing.
        """
        return self._values_of(row, self.columns, unset)

    def key_of(self, row: Any) -> list[Any]:
        """The values of a row for the primary key.

        Raises:
            ValueError: A part of it is missing.
        """
        return self._values_of(row, self.columns[: self.keys], None)

    def _values_of(self, row: Any, columns: Sequence[FieldColumn], unset: Any) -> list[Any]:
        values = []
        for number, column in enumerate(columns):
            value = row.get(column.attribute, UNSET) if self._items else getattr(row, column.attribute)
            if number < self.keys and (value is None or value is UNSET):
                raise ValueError(f"{column.name} is a part of the primary key, and is {value}")
            if value is UNSET:
                value = unset
            elif value is not None and column.convert is not None:
                value = column.convert(value)
            values.append(value)
        if self.partition == 1 and values[0] in ("", b""):
            raise ValueError(f"{self.columns[0].name} is the key of the partition, and is empty")
        return values

    def upsert(self, seconds: int | None) -> str:
        """The statement that writes a row: its parameters are the columns, and the write time.

        ``seconds``: how long the row lives. None: as the table says.
        """
        names = ", ".join(_quoted(one.name) for one in self.columns)
        marks = ", ".join("?" for _ in self.columns)
        lives = "" if seconds is None else f" AND TTL {seconds}"
        return f"INSERT INTO {self.table.name} ({names}) VALUES ({marks}) USING TIMESTAMP ?{lives}"

    def delete(self) -> str:
        """The statement that deletes a row: its parameters are the write time, and the columns of the primary key."""
        keys = " AND ".join(f"{_quoted(one.name)} = ?" for one in self.columns[: self.keys])
        return f"DELETE FROM {self.table.name} USING TIMESTAMP ? WHERE {keys}"


def _unfit_tables(table: TableLayout, fields: Collection[str]) -> list[str]:
    """Why the table as a whole does not take such rows."""
    problems = [f"its primary key has {name}, and the rows do not" for name in table.keys if name not in fields]
    if any(kind == "counter" for _, _, kind in table.columns.values()):
        problems.append(
            "it has counters, which a repeated write would count twice: write totals, which replace each other"
        )
    if table.grace < LEAST_GRACE_SECONDS:
        problems.append(
            f"gc_grace_seconds is {table.grace}, so a deletion could be forgotten before an older write arrives late: "
            f"ALTER TABLE {table.name} WITH gc_grace_seconds = {LEAST_GRACE_SECONDS}, or more"
        )
    return problems


def _is_timestamp(kind: Any, name: str) -> bool:
    """Whether a field is a Timestamp of MillWheel, or may be None."""
    stated = field_of(kind, name)
    return isinstance(stated, Field) and Timestamp in members(stated.type)


def _convert_of(field: inspect.Field, table: TableLayout, is_timestamp: bool) -> Convert | None:
    """The converter of a field for the column of its name."""
    if field.encode_name not in table.columns:
        raise UnfitError(f"is not there: the table has {', '.join(table.columns)}")
    kind, _, text = table.columns[field.encode_name]
    column = parsed(text)
    if kind == "static":
        raise UnfitError("is static: of two rows that write it at once, it is not known which is the last one")
    if kind in _KEYS and column.is_collection:
        raise UnfitError("is a collection in the primary key, which the sink does not write")
    if column.name == "counter":
        return None  # the table is refused as a whole
    convert = converter(field.type, column, is_timestamp=is_timestamp)
    # Cassandra finds 1.0 and 1.00 equal there, and a batch must find rows equal that Cassandra does.
    return _normalised if kind == "clustering" and column.name == "decimal" else convert


def _normalised(value: Decimal | int) -> Decimal:
    """The same number without trailing zeros: equal numbers have equal bytes then, and other ones have not."""
    return Decimal(value).normalize(_ALL_DIGITS)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
