"""Rows of a table as values of the type that the user states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, cast

import msgspec

from millwheel.connectors.postgres.pgoutput import UNCHANGED, Relation, Row, RowMessage, Truncate, Unchanged
from millwheel.connectors.postgres.transactions import FoundChange, Position, format_lsn
from millwheel.connectors.source import BadRecord
from millwheel.model.time import Timestamp, from_datetime
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import UsageError
from millwheel.sdk.typeinfo import describe_type, type_name

__all__ = ["ChangeDecoder", "ChangedRow", "fields_of", "place_of"]

T = TypeVar("T")

Operation = Literal["read", "insert", "update", "delete"]
Load = Callable[[bytes], Any]
"""Makes a Python value of the text of a column's value."""

_OPERATIONS: Final[dict[str, Operation]] = {"I": "insert", "U": "update", "D": "delete"}


class ChangedRow(msgspec.Struct, Generic[T], frozen=True):
    """A row of a table was inserted, updated or deleted, or it was there when the table was copied.

    Its event time is ``committed``, or that of a former change if that is later: event times never go back.

    Attributes:
        operation: ``insert``, ``update`` or ``delete``. Or ``read``, for a row of the initial copy.
        before: The row before, as far as the table's replica identity has it. With ``REPLICA IDENTITY FULL``, that is
            the whole row. With a primary key, it is the key alone, and only for a deletion, and for an update that
            changes the key. The other fields then have their defaults.
        after: The row after. None: it was deleted.
        committed: When the transaction committed, by the clock of the database. Of a copied row: when the copy began.
        lsn: Where the record of that commit is in the write-ahead log. All changes of a transaction have the same, and
            later ones have a greater one. Of a copied row: a place up to which it has all changes.
        index: The number of the change in its transaction, from 1 on. Of a copied row: 0.
    """

    operation: Operation
    before: T | None
    after: T | None
    committed: Timestamp
    lsn: int
    index: int

    @property
    def row(self) -> T:
        """The row after, or the deleted one as far as it is known."""
        return cast(T, self.before if self.after is None else self.after)


def place_of(record: ChangedRow[Any] | BadRecord) -> str:
    """Where a record is in its slot, for people."""
    if isinstance(record, BadRecord):
        return record.place
    if not record.index:
        return f"a copied row, with all changes up to LSN {format_lsn(record.lsn)}"
    return f"LSN {format_lsn(record.lsn)}, change {record.index}"


class _Plan(NamedTuple):
    """One column that the type has: its place in a row, the name of its field, and how its text becomes a value."""

    place: int
    field: str
    load: Load
    in_identity: bool


class _UnreadableError(Exception):
    """A row does not have a value that its type needs."""


@dataclass(slots=True)
class ChangeDecoder(Generic[T]):
    """Makes :class:`ChangedRow` of what a slot says.

    Args:
        kind: The type of a row: a Struct or a dataclass, whose fields have the names of columns.
        loader: Gives what reads the text of a value, by the number of its type in the database.
    """

    kind: type[T]
    loader: Callable[[int], Load]
    _planned: tuple[Relation, list[_Plan]] | None = None

    def decode(self, found: FoundChange, split: str) -> ChangedRow[T] | BadRecord:
        """The change, or why it cannot be read."""
        read = _read_or_problem(lambda: self._changed(found))
        if not isinstance(read, str):
            return read
        change, transaction = found.change, found.transaction
        row = () if isinstance(change, Truncate) else change.after or change.before or ()
        place = f"LSN {format_lsn(transaction.lsn)}, transaction {transaction.xid}, change {found.index}"
        return BadRecord(split, place, read, _raw(row))

    def _changed(self, found: FoundChange) -> ChangedRow[T]:
        change, transaction = found.change, found.transaction
        if isinstance(change, Truncate):
            raise _UnreadableError(
                f"TRUNCATE removed all rows of {_name(found.relation)}, and the rows are not known. A publication "
                "WITH (publish = 'insert, update, delete') does not send that"
            )
        if found.problem:
            raise _UnreadableError(found.problem)
        before, after = self._rows(change, found.relation)
        operation, committed = _OPERATIONS[change.kind], Timestamp(transaction.time)
        return ChangedRow(operation, before, after, committed, transaction.lsn, found.index)

    def decode_copied(self, row: Row, relation: Relation, at: Position, split: str) -> ChangedRow[T] | BadRecord:
        """A row that was copied when the log was read up to ``at``, or why it cannot be read."""
        assert at.copy is not None
        began = Timestamp(at.copy.time)

        def changed() -> ChangedRow[T]:
            _, after = self._rows(RowMessage("I", relation.id, None, False, row), relation)
            return ChangedRow("read", None, after, began, at.lsn, 0)

        read = _read_or_problem(changed)
        if not isinstance(read, str):
            return read
        key = [value for value, column in zip(row, relation.columns, strict=True) if column.in_identity]
        return BadRecord(split, f"the copied row with the key {_raw(key).decode(errors='replace')}", read, _raw(row))

    def _rows(self, change: RowMessage, relation: Relation) -> tuple[T | None, T | None]:
        plans, name = self._plans(relation), _name(relation)
        before = after = None
        if change.before is not None:
            known = plans if change.whole else [plan for plan in plans if plan.in_identity]
            before = self._value({plan.field: self._load(plan, change.before) for plan in known}, name, change.whole)
        if change.after is not None:
            whole = change.before if change.whole else None
            values = {}
            for plan in plans:
                row = change.after
                if row[plan.place] is UNCHANGED:
                    if whole is None:
                        raise _UnreadableError(
                            f"the update did not change the large value of {plan.field}, and the write-ahead log does "
                            f"not have it. For later updates: ALTER TABLE {name} REPLICA IDENTITY FULL"
                        )
                    row = whole
                values[plan.field] = self._load(plan, row)
            after = self._value(values, name, True)
        return before, after

    def _load(self, plan: _Plan, row: Row) -> Any:
        value = row[plan.place]
        if isinstance(value, Unchanged):
            raise _UnreadableError(f"the row before has no value of {plan.field}")
        return None if value is None else plan.load(value)

    def _value(self, values: Mapping[str, Any], name: str, whole: bool) -> T:
        try:
            return msgspec.convert(values, self.kind)
        except msgspec.ValidationError as error:
            if whole:
                raise
            raise _UnreadableError(
                f"of a deleted row, or one whose key was changed, the replica identity of {name} has only "
                f"{', '.join(values)}, and {type_name(self.kind)} needs more: {error}. Give the other fields defaults, "
                f"or for later changes: ALTER TABLE {name} REPLICA IDENTITY FULL"
            ) from None

    def _plans(self, relation: Relation) -> list[_Plan]:
        if self._planned is None or self._planned[0] != relation:
            fields, plans = fields_of(self.kind), []
            for index, column in enumerate(relation.columns):
                if (field := fields.get(column.name)) is not None:
                    load = _loading(self.loader(column.type), field)
                    plans.append(_Plan(index, column.name, load, column.in_identity))
            self._planned = relation, plans
        return self._planned[1]


_MAX_RAW: Final = 1_000
"""The most bytes of a row that cannot be read."""


def _read_or_problem(read: Callable[[], ChangedRow[T]]) -> ChangedRow[T] | str:
    """What ``read`` makes of a row, or why it cannot."""
    try:
        return read()
    except _UnreadableError as error:
        return str(error)
    except (msgspec.ValidationError, ValueError, ArithmeticError) as error:
        return error_message(error)
    except Exception as error:
        if "DataError" not in {one.__name__ for one in type(error).__mro__}:  # of the driver: no such date in Python
            raise
        return error_message(error)


def _raw(row: Iterable[bytes | Unchanged | None]) -> bytes:
    values = (b"\\N" if one is None else b"" if isinstance(one, Unchanged) else one for one in row)
    return b"\t".join(values)[:_MAX_RAW]


def fields_of(kind: Any) -> dict[str, Any]:
    """By column: what its field in the type is.

    Raises:
        UsageError: The type has no fields with names.
    """
    described = describe_type(kind)
    fields = getattr(described, "fields", None)
    if not fields or not hasattr(fields[0], "encode_name"):
        raise UsageError(f"a row is a Struct or a dataclass with a field for each column, not {type_name(kind)}")
    return {one.encode_name: one.type for one in fields}


def _loading(load: Load, field: Any) -> Load:
    """How a column's text becomes the value of a field. A time becomes microseconds, and anything a text, if stated."""
    members = getattr(field, "types", (field,))
    is_text = any(isinstance(one, msgspec.inspect.StrType) for one in members)
    is_number = any(isinstance(one, msgspec.inspect.IntType) for one in members)

    def loaded(text: bytes) -> Any:
        value = load(text)
        if is_number and isinstance(value, datetime) and value.tzinfo is not None:
            return from_datetime(value)
        return text.decode() if is_text and not isinstance(value, str) else value

    return loaded


def _name(relation: Relation) -> str:
    return f"{relation.schema}.{relation.name}"
