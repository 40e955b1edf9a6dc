"""Looking into a replication slot, piece by piece, and copying rows in between. All blocks, and runs on one thread."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from msgspec import structs

from millwheel.connectors.postgres.copying import Snapshot, settled
from millwheel.connectors.postgres.pgoutput import TransactionBegin, parse
from millwheel.connectors.postgres.rows import ChangeDecoder, ChangedRow, Load, fields_of, place_of
from millwheel.connectors.postgres.session import PostgresError, opened, psycopg_module
from millwheel.connectors.postgres.slots import PEEK, ReplicatedTable, Slot
from millwheel.connectors.postgres.tables import RowCopier
from millwheel.connectors.postgres.transactions import ChangeReader, FoundChange, Position
from millwheel.connectors.source import BadRecord, Read
from millwheel.model.time import MIN_TIMESTAMP, Timestamp

if TYPE_CHECKING:
    import psycopg

__all__ = ["BUSY_SECONDS", "PEEK_MESSAGES", "READ_RECORDS", "Session"]

T = TypeVar("T")

PEEK_MESSAGES: Final = 20_000
"""How many messages the server decodes at once, and the rest of a transaction more. Each time it begins where its
bookkeeping allows, which is up to some 15 seconds back."""
_FETCH: Final = 100
"""The most messages that are fetched at once. Of large ones it is fewer, by the average of the last ones."""
READ_RECORDS: Final = 1_000
_READ_BYTES: Final = 4 << 20
"""The most of one read, in bytes as the server sends them and with the names of fields, which are stored with each
record. The last change may exceed it."""
_FIELD_BYTES: Final = 8
"""What a field of a stored record has beside its name and value, at most."""
BUSY_SECONDS: Final = 30.0
"""How long another session may use the slot before that is an error. That of a former reader ends within seconds. And
how long a transaction may have committed without being visible."""
_CANCEL_SECONDS: Final = 5.0
_INVISIBLE_SECONDS: Final = 0.1
"""When the log is looked at again that goes on with a transaction which is not visible yet."""
_FLUSH: Final = "SELECT pg_logical_emit_message(true, 'millwheel', '')"
"""A commit, so that the log is durable up to here. Else the server may leave its last page in memory for long, and no
snapshot would be one of what is durable."""
_NOTICE_END: Final = "SELECT set_config('client_connection_check_interval', '1s', false)"
"""A session whose process has died stops decoding, and the slot is free."""
_FORCED: Final = {
    "client_encoding": "UTF8",
    "timezone": "UTC",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "search_path": "pg_catalog",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "120s",
    "synchronous_commit": "local",
}
"""How values are written as text. A large transaction may take its time, because reads do not wait for it. And a cursor
is open between two reads, which are a minute apart at most. The last one is for a session that has nothing to lose."""


class Session(Generic[T]):
    """A connection that looks into the slot behind a position, and knows how far it has come.

    Looking changes nothing: the same place of the slot has the same changes the next time. All that the server decodes
    at once stays there, behind a cursor, so memory is bounded also for a large transaction (G13).

    Without a position, it may begin with a copy of the rows (``copies``): the log is looked into between transactions
    that read rows. ``copying.py`` says why each row and change counts once.

    It has many attributes: of the connection, of the cursor, and of the pace.
    """

    def __init__(
        self, kind: type[T], place: ReplicatedTable, conninfo: str, position: Position | None, *, copies: bool = False
    ) -> None:
        self._kind = kind
        self._place = place
        self._conninfo = conninfo
        self._from = position
        self._begins_copy = copies and position is None
        self._connection: psycopg.Connection[Any] | None = None
        self._cancelled = False
        self._busy_since: float | None = None
        self._slot: Slot
        self._copier: RowCopier
        self._visible = Snapshot(0, frozenset())
        """While rows are copied: the transactions that all later snapshots see, as of after the last look."""
        self._invisible: tuple[int, float] | None = None
        """The last transaction that was in the log and not visible, and when it was found first."""
        self._changes: ChangeReader
        self._decoder: ChangeDecoder[T]
        self._decoded = False
        """Whether there is a cursor, with what the server has decoded."""
        self._rows: deque[tuple[bytes]] = deque()
        self._next = _FETCH
        self._names_bytes = 2 * sum(len(name) + _FIELD_BYTES for name in fields_of(kind))
        self._messages = 0
        """How many messages of the cursor were fetched."""
        self._spent = 0.0
        """The seconds that the server has decoded since it was last asked."""
        self._rests_until = 0.0
        """When the server is asked again. It decodes for half of the time at most, unless changes wait."""
        self._upto = 0
        """Where the cursor ends, if it does not have the most messages."""
        self._behind: Position
        """Where the cursor begins."""

    def read(self, committed: Position | None, most: int) -> Read[ChangedRow[T], Position]:
        """The next changes, without waiting for some.

        Args:
            committed: The slot may forget what is before.
            most: The most records.

        Raises:
            PostgresError: The changes cannot be had.
        """
        errors, looks = psycopg_module().errors, False
        try:
            connection = self._connected()
            if self._begins_copy:
                return Read([], self._begin_copy(), behind=1)  # type: ignore[arg-type]  # None as at a beginning
            if self._copies:
                records = self._copy(connection, min(most, READ_RECORDS))
            else:
                looks = not self._decoded and time.monotonic() >= self._rests_until
                if looks:
                    self._peek(connection, committed)
                records = self._take(connection, min(most, READ_RECORDS))
                self._changes.position = settled(self._changes.position)
        except errors.ObjectInUse:
            self._wait_for_slot()
            return Read([], self._changes.position, behind=1)
        except errors.UndefinedObject as error:
            raise PostgresError(
                f"{error}: the replication slot {self._place.slot!r} has changes of a time without this publication, "
                "and the server does not decode them. Make the publication first. Then give the source another slot, "
                "and its stream another name, which begins now. If nothing was read yet, drop the slot instead"
            ) from error
        self._busy_since = None
        position = self._changes.position

        def place(index: int) -> str:
            return place_of(records[index][0])

        if position.copy is not None:
            # Rows may have any time, if the user states it. So nothing raises the low watermark before all are there.
            return Read(records, position, MIN_TIMESTAMP, behind=1, places=place)
        # Nothing waits if this very read has looked, and found the end.
        return Read(records, position, behind=0 if looks and self._caught_up else 1, places=place)

    def _begin_copy(self) -> Position | None:
        """Begin a copy, if it can begin now. No row comes before that is committed: it has the time of all rows."""
        first = self._copier.first(self._changes.position)
        if first is not None:
            self._begins_copy, self._changes.position = False, first
        return first

    @property
    def _copies(self) -> bool:
        """Whether rows come next, and not the log."""
        copy = self._changes.position.copy
        return copy is not None and (self._copier.is_reading or not (copy.snapshot or self._decoded))

    def _copy(
        self, connection: psycopg.Connection[Any], most: int
    ) -> list[tuple[ChangedRow[T] | BadRecord, Timestamp | None]]:
        """The next rows."""
        position = self._changes.position
        copy = position.copy
        assert copy is not None
        if not self._copier.is_reading:
            with suppress(psycopg_module().Error):  # of a database that takes no writes for now, for example
                connection.execute(_FLUSH)
            if (copy := self._copier.begin(copy)) is None:
                return []
        rows, copy = self._copier.take(copy, most, _READ_BYTES, self._names_bytes)
        self._changes.position = structs.replace(position, copy=copy)
        relation, time_of_rows = self._copier.relation, Timestamp(copy.time)
        decode = self._decoder.decode_copied
        return [(decode(row, relation, position, self._place.slot), time_of_rows) for row in rows]

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = connection = opened(self._conninfo, {}, autocommit=True)
            if self._cancelled:
                raise PostgresError("the reader was closed")
            for name, value in _FORCED.items():
                connection.execute("SELECT set_config(%s, %s, false)", (name, value))
            with suppress(psycopg_module().Error):  # servers on some systems cannot notice it
                connection.execute(_NOTICE_END)
            self._slot = Slot(connection, self._place)
            self._copier = RowCopier(connection, self._place, fields_of(self._kind))
            if self._begins_copy:
                self._slot.look()
                self._copier.look()
            self._changes = ChangeReader(self._place.schema, self._place.table, self._slot.begin(self._from))
            self._decoder = ChangeDecoder(self._kind, self._loader)
        return self._connection

    def _loader(self, kind: int) -> Load:
        """What reads the text of a value: by the driver, and as it is if the driver does not know the type."""
        assert self._connection is not None
        loader = self._connection.adapters.get_loader(kind, psycopg_module().pq.Format.TEXT)
        if loader is None:
            return bytes.decode
        load: Load = loader(kind, self._connection).load
        return load

    @property
    def _caught_up(self) -> bool:
        """Whether all that the server had when it was last asked was read."""
        return not self._decoded and self._changes.position.lsn >= self._upto

    def _peek(self, connection: psycopg.Connection[Any], committed: Position | None) -> None:
        """Let the server decode what comes behind the position, if its log goes on there."""
        self._behind = position = self._changes.position
        state = self._slot.checked(position)
        self._upto, began = state.flushed, time.monotonic()
        if committed is not None and committed.lsn > state.confirmed:
            self._slot.advance(committed.lsn)
            self._spent = time.monotonic() - began
        if self._caught_up:
            return
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        declares = psycopg_module().ClientCursor(connection)  # DECLARE takes no parameters from the server
        declares.execute(PEEK, (self._place.slot, state.flushed, PEEK_MESSAGES, self._place.publication))
        self._decoded, self._messages = True, 0

    def _take(
        self, connection: psycopg.Connection[Any], most: int
    ) -> list[tuple[ChangedRow[T] | BadRecord, Timestamp | None]]:
        """The next changes of what was decoded."""
        copy, found, size = self._changes.position.copy, list[FoundChange](), 0
        while len(found) < most and size < _READ_BYTES and (self._rows or self._fetch(connection)):
            (data,) = self._rows.popleft()
            size += len(data)
            if (message := parse(bytes(data))) is None:
                continue
            if copy is not None and isinstance(message, TransactionBegin) and not self._visible.sees(message.xid):
                self._look_later(connection, message.xid)
                break
            for change in self._changes.read(message):
                size += self._names_bytes
                found.append(change)
        counting = found if copy is None else self._copier.counting(copy, found)
        return [(self._decoder.decode(one, self._place.slot), Timestamp(one.time)) for one in counting]

    def _look_later(self, connection: psycopg.Connection[Any], xid: int) -> None:
        """Stop in front of a transaction that is not visible yet: its rows could not be copied with its changes.

        Raise PostgresError if the same one has been invisible for long.
        """
        self._rows.clear()
        self._end_peek(connection)
        now = time.monotonic()
        if self._invisible is None or self._invisible[0] != xid:
            self._invisible = xid, now
        if now - self._invisible[1] > BUSY_SECONDS:
            raise PostgresError(
                f"the transaction {xid} of the server has committed, and others do not see it yet. It may wait for a "
                f"standby of synchronous_standby_names that is away. The source waits with the copy of "
                f"{self._place.name}: SELECT * FROM pg_stat_activity WHERE backend_xid = '{xid}' finds the session"
            )
        self._rests_until, self._spent = now + max(self._spent, _INVISIBLE_SECONDS), 0.0

    def _fetch(self, connection: psycopg.Connection[Any]) -> bool:
        """Fetch some messages. False: there is no other, and the position is behind them."""
        if not self._decoded:
            return False
        began = time.monotonic()
        self._rows.extend(connection.execute(f"FETCH {self._next} FROM changes", binary=True))
        average = sum(len(data) for (data,) in self._rows) // max(len(self._rows), 1)
        self._next = max(1, min(_FETCH, _READ_BYTES // (average + 1)))
        if not self._messages:
            # The first fetch has decoded all of them.
            self._spent += time.monotonic() - began
            self._slot.checked(self._behind)
            if self._changes.position.copy is not None:
                self._visible = self._copier.visible()
        self._messages += len(self._rows)
        if self._rows:
            return True
        self._end_peek(connection)
        if self._messages < PEEK_MESSAGES:
            self._changes.reached(self._upto)
            self._rests_until, self._spent = time.monotonic() + self._spent, 0.0
        return False

    def _end_peek(self, connection: psycopg.Connection[Any]) -> None:
        self._decoded = False
        connection.execute("ROLLBACK")

    def _wait_for_slot(self) -> None:
        """Another session uses the slot. Raise PostgresError if it has done so for long."""
        assert self._connection is not None
        self._end_peek(self._connection)
        now = time.monotonic()
        if self._busy_since is None:
            self._busy_since = now
        if now - self._busy_since > BUSY_SECONDS:
            state = self._slot.state()
            pid = "another process" if state is None or state.active_pid is None else f"the process {state.active_pid}"
            raise PostgresError(
                f"the replication slot {self._place.slot!r} is in use by {pid} of the server. Each source needs a "
                "slot of its own. If a former reader hangs there: SELECT pg_terminate_backend(active_pid) FROM "
                f"pg_replication_slots WHERE slot_name = '{self._place.slot}'"
            )

    def cancel(self) -> None:
        """Let the call that runs in another thread end soon."""
        self._cancelled = True
        if (connection := self._connection) is not None:
            with suppress(Exception):  # the server does not answer, and ends the session by itself
                connection.cancel_safe(timeout=_CANCEL_SECONDS)

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
