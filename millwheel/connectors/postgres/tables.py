"""Rows of a table in the order of its primary key, from a key on, by transactions that are short.

Everything here blocks, and runs on one thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from millwheel.connectors.postgres.copying import Beyond, Snapshot, counted, keys_of, with_rows
from millwheel.connectors.postgres.pgoutput import Relation, Row
from millwheel.connectors.postgres.session import PostgresError, psycopg_module
from millwheel.connectors.postgres.shapes import TableShape, escaped, find_operators, quoted, table_shape
from millwheel.connectors.postgres.slots import ReplicatedTable
from millwheel.connectors.postgres.transactions import Copy, FoundChange, Key, Position

if TYPE_CHECKING:
    import psycopg

__all__ = ["COPY_SECONDS", "DURABLE_SECONDS", "OPEN_SECONDS", "RowCopier"]

COPY_SECONDS: Final = 2.0
"""How long a transaction reads rows. An ALTER TABLE waits for it, and so does all that comes behind that. The log is
read between two such transactions. While the reads are held back, it stays open until the next one."""
DURABLE_SECONDS: Final = 1.0
"""How long a transaction waits until what it sees is durable. By its defaults, the server needs 0.6 s at most."""
_DURABLE_PAUSE: Final = 0.01
OPEN_SECONDS: Final = 30.0
"""How long the copy waits for open transactions before the log of the process says so, each time."""
_FETCH: Final = 100
"""The most rows that are fetched at once. Of large ones it is fewer, by the average of the last ones."""
_FETCH_BYTES: Final = 4 << 20
_BEGIN: Final = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "SET LOCAL lock_timeout = '30s'",
    "SET LOCAL row_security = off",  # an error where rows would be left out
    "SET LOCAL cursor_tuple_fraction = 0",  # by the index: the first row at once, rather than all of them soon
)
"""None of these statements takes the snapshot. The first query does, and it comes behind the lock. In a snapshot from
before a table was rewritten (ALTER TABLE), the table would be empty."""
_SNAPSHOT: Final = "SELECT pg_current_snapshot()::text, (pg_current_wal_insert_lsn() - '0/0')::text"
_DURABLE: Final = "SELECT pg_current_wal_flush_lsn() - '0/0' >= %s::numeric"
_NOW: Final = "SELECT pg_current_xact_id()::text, (extract(epoch FROM clock_timestamp()) * 1000000)::int8"
"""All transactions that have written something by now have smaller numbers. A snapshot does not name all of them."""
_ENDED: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= %s::xid8"
_OLDEST: Final = """SELECT what FROM (
SELECT transaction, format('the prepared transaction %L of the database %I', gid, database) FROM pg_prepared_xacts
UNION ALL SELECT backend_xid, format('the session %s (%s) of the database %I', pid, application_name, datname)
FROM pg_stat_activity WHERE backend_xid IS NOT NULL) AS open (xid, what) ORDER BY age(xid) DESC LIMIT 1"""

log = logging.getLogger("millwheel.postgres")


class RowCopier:
    """Copies rows by a connection, which is in autocommit.

    Rows of one transaction have one snapshot, and each read returns some of them. So memory is bounded, and the server
    keeps old versions of rows for seconds (G13).
    """

    def __init__(self, connection: psycopg.Connection[Any], place: ReplicatedTable, fields: Mapping[str, Any]) -> None:
        self._connection = connection
        self._place = place
        self._fields = fields
        self._shape: TableShape | None = None
        self._ends_at: float | None = None
        """When the transaction ends. None: there is none."""
        self._rows: deque[Row] = deque()
        self._next = _FETCH
        self._after = ""
        """A transaction that began after the slot was made."""
        self._began = 0
        self._said_at: float | None = None
        """When it was said last that the copy waits, or when the wait began."""

    def look(self) -> None:
        """Look whether the rows can be copied.

        Raises:
            PostgresError: They cannot.
        """
        self._look_at_table()

    def first(self, position: Position) -> Position | None:
        """The position at which a copy begins, behind the beginning of the slot. None: not yet.

        The slot has no transaction that committed before its beginning. Such a one may be invisible for a while: it
        waits for a standby, for example. So all that ran then must have ended.
        """
        if not self._after:
            self._after, self._began = self._one(_NOW)
        if not self._one(_ENDED, self._after)[0]:
            self._say_what_is_open(time.monotonic())
            return None
        copy = Copy(tuple(map(str, self._look_at_table().key)), self._began)
        return structs.replace(position, time=max(position.time, self._began), copy=copy)

    def _say_what_is_open(self, now: float) -> None:
        """Log what the copy waits for, from time to time.

        It is no error: a reader that was opened again would begin to wait from then on, and might never end.
        """
        if self._said_at is None:
            self._said_at = now
        if now - self._said_at >= OPEN_SECONDS and (oldest := self._one(_OLDEST)) is not None:
            self._said_at = now
            log.warning(
                "the copy of %s waits for transactions that were open when it began, in any database of the server. "
                "The oldest that is open now: %s. If it was forgotten, end it", self._place.name, oldest[0]
            )  # fmt: skip

    @property
    def is_reading(self) -> bool:
        """Whether a transaction is open."""
        return self._ends_at is not None

    def begin(self, copy: Copy) -> Copy | None:
        """Begin a transaction, behind the last row that was copied.

        *Invariant (G1): what a copied row's snapshot sees is durable in the log of the server.* A commit may be visible
        before that (``synchronous_commit = off``), and so is each rollback. If the server crashes then, the row is
        taken back. And the number of the transaction is given again: the snapshot would see the new one, too.

        Returns:
            The copy with the snapshot. None: not now, because something that it sees is not durable yet.

        Raises:
            PostgresError: The table cannot be copied, or no longer in this order.
        """
        connection, place = self._connection, self._place
        for statement in _BEGIN:
            connection.execute(statement)
        try:
            connection.execute(f"LOCK TABLE {place.name} IN ACCESS SHARE MODE")
            snapshot, until = self._one(_SNAPSHOT)
            if not self._is_durable(until):
                connection.execute("ROLLBACK")
                return None
            self._declare(self._in_order_of(copy, self._look_at_table()), copy.copied)
        except psycopg_module().errors.InsufficientPrivilege as error:
            raise PostgresError(
                f'{error}. To copy rows: GRANT SELECT ON {place.name} TO "{connection.info.user}". With row-level '
                "security, the role also needs BYPASSRLS"
            ) from error
        self._ends_at = time.monotonic() + COPY_SECONDS
        return structs.replace(copy, snapshot=snapshot, until=int(until))

    def _is_durable(self, until: str) -> bool:
        """Whether the log is durable up to a place, now or soon."""
        ends_at = time.monotonic() + DURABLE_SECONDS
        while not self._one(_DURABLE, until)[0]:
            if time.monotonic() >= ends_at:
                return False
            time.sleep(_DURABLE_PAUSE)
        return True

    def _declare(self, shape: TableShape, behind: Key | None) -> None:
        names, key = [quoted(one.name) for one in shape.relation.columns], [quoted(one.name) for one in shape.key]
        wanted = [escaped(f"({shape.rows})")] if shape.rows else []
        wanted += [f"{_row(key)} > {_row([one.typed('%s') for one in shape.key])}"] if behind is not None else []
        where = f" WHERE {' AND '.join(wanted)}" if wanted else ""
        table = shape.only + escaped(self._place.name)
        select = f"SELECT {', '.join(names)} FROM {table}{where} ORDER BY {', '.join(key)}"
        # DECLARE takes no parameters from the server.
        declares = psycopg_module().ClientCursor(self._connection)
        declares.execute(f"DECLARE copied NO SCROLL CURSOR FOR {select}", behind or ())

    def _in_order_of(self, copy: Copy, shape: TableShape) -> TableShape:
        """The shape, if it has the order in which rows were copied so far. Where a key stands follows from that."""
        if tuple(map(str, shape.key)) != copy.key:
            raise PostgresError(
                f"the primary key of {self._place.name} was changed while its rows were copied: it was "
                f"({', '.join(copy.key)}). Give the source another slot and its stream another name, which copies all "
                "rows"
            )
        return shape

    def take(self, copy: Copy, most_rows: int, most_bytes: int, names_bytes: int) -> tuple[list[Row], Copy]:
        """The next rows of the transaction, and the copy behind them. The last row may exceed ``most_bytes``.

        ``names_bytes``: what each row counts beside its values.
        """
        rows: list[Row] = []
        size = 0
        while len(rows) < most_rows and size < most_bytes and (self._rows or self._fetch()):
            row = self._rows.popleft()
            rows.append(row)
            size += _size(row) + names_bytes
        assert self._ends_at is not None
        ended = len(rows) < most_rows and size < most_bytes
        last = self._key_of(rows[-1]) if rows else None
        if ended or time.monotonic() >= self._ends_at:
            self._rows.clear()
            self._ends_at = None
            self._connection.execute("ROLLBACK")
        return rows, with_rows(copy, last, ended=ended)

    def _fetch(self) -> bool:
        cursor = self._connection.execute(f"FETCH {self._next} FROM copied", prepare=False)  # columns may change
        result = cursor.pgresult
        assert result is not None
        for place in range(result.ntuples):
            self._rows.append(tuple(result.get_value(place, column) for column in range(result.nfields)))
        average = sum(map(_size, self._rows)) // max(len(self._rows), 1)
        self._next = max(1, min(_FETCH, _FETCH_BYTES // (average + 1)))
        return bool(self._rows)

    def _key_of(self, row: Row) -> Key:
        assert self._shape is not None
        values = {column.name: value for column, value in zip(self._shape.relation.columns, row, strict=True)}
        return tuple(one.decode() for column in self._shape.key if isinstance(one := values[column.name], bytes))

    @property
    def relation(self) -> Relation:
        """What the copied rows look like."""
        assert self._shape is not None
        return self._shape.relation

    def visible(self) -> Snapshot:
        """The transactions that are visible now."""
        return Snapshot.parse(self._one("SELECT pg_current_snapshot()::text")[0])

    def counting(self, copy: Copy, found: Sequence[FoundChange]) -> Iterator[FoundChange]:
        """Yield those changes that count while rows are copied, or what of them counts.

        Raises:
            PostgresError: The rows are no longer in this order.
        """
        if not found:
            return
        shape = self._in_order_of(copy, self._shape or self._look_at_table())
        names = [one.name for one in shape.key]
        keys = [keys_of(one, names) for one in found]
        if None in keys:
            # Its columns may have other names by now.
            self._in_order_of(copy, self._look_at_table())
        beyond = iter(self._beyond(shape, copy, [key for one in keys if one is not None for key in one]))
        for change, own in zip(found, keys, strict=True):
            places = None if own is None else [next(beyond) for _ in own]
            if (what := counted(copy, change, places)) is not None:
                yield what

    def _beyond(self, shape: TableShape, copy: Copy, keys: Sequence[Key]) -> Sequence[Beyond]:
        """Where keys are, by the order of the database."""
        if not keys:
            return []
        names = [f"k{number}" for number in range(len(shape.key))]
        values = _row([one.typed(name) for name, one in zip(names, shape.key, strict=True)])
        behind = f"{values} > {_row([one.typed('%s') for one in shape.key])}"
        compared = ", ".join("true" if one is None else behind for one in (copy.settled, copy.copied))
        arrays = ", ".join("%s::text[]" for _ in names)
        select = f"SELECT {compared} FROM unnest({arrays}) WITH ORDINALITY AS k({', '.join(names)}, n) ORDER BY n"
        bounds = [*(copy.settled or ()), *(copy.copied or ())]
        columns = [list(column) for column in zip(*keys, strict=True)]
        find_operators(self._connection, shape.path)  # the end of a transaction may have taken it back
        return self._connection.execute(select, [*bounds, *columns]).fetchall()

    def _look_at_table(self) -> TableShape:
        """What is copied now. PostgresError: it cannot be."""
        self._shape = table_shape(self._connection, self._place, self._fields)
        return self._shape

    def _one(self, statement: str, *parameters: Any) -> Any:
        return self._connection.execute(statement, parameters or None).fetchone()


def _size(row: Row) -> int:
    return sum(len(one) for one in row if isinstance(one, bytes))


def _row(values: Sequence[str]) -> str:
    return f"({', '.join(values)})"
