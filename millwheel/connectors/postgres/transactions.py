"""Which changes of a replication slot come next, behind a position. Pure: messages in, changes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from millwheel.connectors.postgres.pgoutput import (
    Commit,
    Message,
    MessageError,
    Relation,
    RowMessage,
    TransactionBegin,
    Truncate,
)
from millwheel.model.time import MIN_TIMESTAMP

__all__ = ["ChangeReader", "Copy", "FoundChange", "Key", "Position", "format_lsn"]

Key = tuple[str, ...]
"""The primary key of a row, as PostgreSQL writes its values as text."""


class Copy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the rows were copied that the table had at the beginning. ``copying.py`` says what follows from it."""

    key: tuple[str, ...] = ()
    """The columns of the primary key, with what decides their order: the type, and the collation."""
    time: int = 0
    """The event time of all copied rows: when the copy began, by the clock of the database."""
    settled: Key | None = None
    """All changes of rows up to this key count. None: there is no such row."""
    copied: Key | None = None
    """The key of the last row that was copied."""
    ended: bool = False
    """Whether no row is left to be copied."""
    snapshot: str = ""
    """What the rows between both keys are of, and if ``ended``, those behind them. Empty: there are none."""
    until: int = 0
    """All that the snapshot sees is below this place in the log."""


class Position(msgspec.Struct, frozen=True):
    """How far the changes of a slot were read.

    Commits are ordered by where their records begin in the write-ahead log. All transactions below ``lsn`` were read,
    and the first ``index`` changes of the one at ``lsn``, if there is one.
    """

    lsn: int
    index: int = 0
    time: int = int(MIN_TIMESTAMP)
    """The event time of the last change. Those of later changes are no older."""
    copy: Copy | None = None
    """How far the rows of the table were copied. None: nothing is left to copy."""


@dataclass(frozen=True, slots=True)
class FoundChange:
    """A change of the table, with the transaction that made it.

    Attributes:
        index: Its number among the changes of the table in the transaction, from 1 on.
        time: Its event time: when the transaction committed, or the latest time of a commit before it.
        relation: What the table looked like.
        problem: Why it cannot be used. Empty: it can.
    """

    transaction: TransactionBegin
    index: int
    time: int
    change: RowMessage | Truncate
    relation: Relation
    problem: str = ""


class ChangeReader:
    """Finds the changes of one table among the messages of a slot, and knows the position behind each.

    *Invariant (G1): the same messages behind the same position are the same changes.* A slot is decoded again and again
    from a place that is not ahead of the position, and always in the order of commits. So a transaction is skipped if
    it is below the position. Of the one at the position, as many changes are skipped as were read. Event times depend
    on the messages and on the position alone.
    """

    def __init__(self, schema: str, table: str, position: Position) -> None:
        self._table = schema, table
        self._relation: dict[int, Relation] = {}
        self._transaction: TransactionBegin | None = None
        self._count = 0
        self.position = position

    def read(self, message: Message) -> Iterator[FoundChange]:
        """Yield the change in a message, if it is one of the table and was not read before. The position follows.

        Raises:
            MessageError: The message cannot come at this place.
        """
        match message:
            case TransactionBegin():
                self._begin(message)
            case Commit():
                self._commit(message)
            case Relation():
                self._relation[message.id] = message
            case RowMessage(relation=number):
                if (relation := self._known(number)) is not None:
                    yield from self._count_one(message, relation)
            case Truncate(relations=numbers):
                for number in numbers:
                    if (relation := self._known(number)) is not None:
                        yield from self._count_one(message, relation)

    def reached(self, lsn: int) -> None:
        """All transactions below ``lsn`` were read."""
        if lsn > self.position.lsn:
            self.position = Position(lsn, 0, self.position.time, self.position.copy)

    def _begin(self, message: TransactionBegin) -> None:
        if self._transaction is not None:
            raise MessageError("pgoutput began a transaction within another one")
        self._transaction, self._count = message, 0

    def _commit(self, message: Commit) -> None:
        if self._transaction is None or self._transaction.lsn != message.lsn:
            raise MessageError("pgoutput ended a transaction that it had not begun")
        self._transaction = None
        self.reached(message.end)

    def _known(self, number: int) -> Relation | None:
        """The relation of that number, if it is the table."""
        relation = self._relation.get(number)
        if relation is None:
            raise MessageError(f"pgoutput sent a change of the relation {number}, which it had not described")
        return relation if (relation.schema, relation.name) == self._table else None

    def _count_one(self, change: RowMessage | Truncate, relation: Relation) -> Iterator[FoundChange]:
        transaction, position = self._transaction, self.position
        if transaction is None:
            raise MessageError("pgoutput sent a change outside of a transaction")
        self._count += 1
        if (transaction.lsn, self._count) > (position.lsn, position.index):
            time = max(position.time, transaction.time)
            self.position = Position(transaction.lsn, self._count, time, position.copy)
            yield FoundChange(transaction, self._count, time, change, relation)


def format_lsn(lsn: int) -> str:
    """A place in the write-ahead log as PostgreSQL writes it.

    >>> format_lsn(0x1_0016B648)
    '1/16B648'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
