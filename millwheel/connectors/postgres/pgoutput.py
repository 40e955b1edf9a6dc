"""The messages of PostgreSQL's plugin ``pgoutput``, protocol version 1, from their bytes.

They are described in PostgreSQL's manual, in the chapter on its frontend/backend protocol, "Logical Replication Message
Formats". Pure: bytes in, messages out.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from millwheel.errors import MillwheelError

__all__ = [
    "UNCHANGED",
    "Column",
    "Commit",
    "Message",
    "MessageError",
    "Relation",
    "Row",
    "RowMessage",
    "TransactionBegin",
    "Truncate",
    "Unchanged",
    "parse",
]

EPOCH: Final = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970. PostgreSQL counts from there."""


class MessageError(MillwheelError):
    """Bytes are no message of the protocol."""


class Unchanged:
    """The type of :data:`UNCHANGED`."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
"""A large value that an update did not change, and that is not in the message."""

Row = tuple[bytes | Unchanged | None, ...]
"""The values of a row by column, as PostgreSQL writes them as text. None: NULL."""


@dataclass(frozen=True, slots=True)
class TransactionBegin:
    """A transaction begins. It has committed: its messages follow each other, up to :class:`Commit`.

    Attributes:
        lsn: Where the record of its commit begins in the write-ahead log.
        time: When it committed, in microseconds since 1970.
        xid: Its number in the database.
    """

    lsn: int
    time: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction. ``lsn`` is as in its beginning, and ``end`` is behind the record of the commit."""

    lsn: int
    end: int
    time: int


@dataclass(frozen=True, slots=True)
class Column:
    """A column: whether it is part of the replica identity, its name, and the number of its type."""

    in_identity: bool
    name: str
    type: int


@dataclass(frozen=True, slots=True)
class Relation:
    """What a table looks like from here on. It comes before the first change of a table, and after it was altered.

    ``identity`` is that of ``pg_class.relreplident``: ``d`` is the primary key, ``i`` an index, ``f`` all columns.
    """

    id: int
    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class RowMessage:
    """One row of the table ``relation`` was inserted, updated or deleted.

    Attributes:
        kind: ``I``, ``U`` or ``D``.
        before: The row before, or None where the message does not have it.
        whole: Whether ``before`` has all columns. Otherwise it has those of the replica identity.
        after: The row after. None: it was deleted.
    """

    kind: str
    relation: int
    before: Row | None
    whole: bool
    after: Row | None


@dataclass(frozen=True, slots=True)
class Truncate:
    """All rows of these tables were removed by TRUNCATE."""

    relations: tuple[int, ...]


Message = TransactionBegin | Commit | Relation | RowMessage | Truncate


def parse(data: bytes) -> Message | None:
    """The message in ``data``. None: one that says nothing of rows, such as a replication origin.

    Raises:
        MessageError: It is no message of this protocol, is cut short, or has something behind it.
    """
    reader = _MessageFields(data)
    kind = reader.text(1)
    try:
        message = _parse(kind, reader)
    except (struct.error, UnicodeDecodeError) as error:
        raise MessageError(f"a message {kind!r} of pgoutput cannot be read: {error}") from error
    if message is not None and not reader.at_end:
        raise MessageError(f"a message {kind!r} of pgoutput has bytes behind its end")
    return message


def _parse(kind: str, reader: _MessageFields) -> Message | None:
    match kind:
        case "B":
            lsn, time, xid = reader.take(">QqI")
            return TransactionBegin(lsn, time + EPOCH, xid)
        case "C":
            _, lsn, end, time = reader.take(">BQQq")
            return Commit(lsn, end, time + EPOCH)
        case "R":
            return _relation(reader)
        case "I" | "U" | "D":
            return _row_change(kind, reader)
        case "T":
            count, _ = reader.take(">IB")
            return Truncate(tuple(reader.take(f">{count}I")) if count else ())
        case "O" | "Y" | "M":
            return None
        case _:
            raise MessageError(f"pgoutput sent a message of the unknown kind {kind!r}")


def _relation(reader: _MessageFields) -> Relation:
    (relation,) = reader.take(">I")
    schema, name = reader.string() or "pg_catalog", reader.string()
    identity = reader.text(1)
    (count,) = reader.take(">H")
    columns = []
    for _ in range(count):
        (flags,) = reader.take(">B")
        column = reader.string()
        kind, _ = reader.take(">Ii")
        columns.append(Column(bool(flags & 1), column, kind))
    return Relation(relation, schema, name, identity, tuple(columns))


def _row_change(kind: str, reader: _MessageFields) -> RowMessage:
    (relation,) = reader.take(">I")
    before, whole, part = None, False, reader.text(1)
    if part in "KO" and kind != "I":
        before, whole = reader.row(), part == "O"
        if kind == "D":
            return RowMessage(kind, relation, before, whole, None)
        part = reader.text(1)
    if part != "N" or kind == "D":
        raise MessageError(f"a message {kind!r} of pgoutput has a part {part!r}")
    return RowMessage(kind, relation, before, whole, reader.row())


class _MessageFields:
    """Takes one field after the other from the bytes of a message."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def take(self, layout: str) -> tuple[int, ...]:
        fields = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return fields

    def take_bytes(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if count < 0 or len(taken) < count:
            raise MessageError(f"a message of pgoutput ends {count - len(taken)} bytes before its end")
        self._at += count
        return taken

    def text(self, count: int) -> str:
        return self.take_bytes(count).decode("latin-1")

    def string(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise MessageError("a name in a message of pgoutput has no end")
        name = self._data[self._at : end].decode()
        self._at = end + 1
        return name

    def row(self) -> Row:
        (count,) = self.take(">H")
        return tuple(self._value() for _ in range(count))

    def _value(self) -> bytes | Unchanged | None:
        match kind := self.text(1):
            case "n":
                return None
            case "u":
                return UNCHANGED
            case "t":
                (length,) = self.take(">i")
                return self.take_bytes(length)
            case _:
                raise MessageError(f"a row of pgoutput has a value of the unknown kind {kind!r}")
