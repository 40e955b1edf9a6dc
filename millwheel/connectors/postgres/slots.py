"""Replication slots and publications: what is asked of them, and what an error says to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millwheel.connectors.postgres.session import PostgresError, psycopg_module
from millwheel.connectors.postgres.transactions import Position, format_lsn

if TYPE_CHECKING:
    import psycopg

__all__ = ["PEEK", "ReplicatedTable", "Slot", "SlotState"]


class SlotState(NamedTuple):
    """What the server says of a slot. ``flushed``: how far its write-ahead log is durable."""

    plugin: str | None
    database: str | None
    confirmed: int
    wal_status: str | None
    active_pid: int | None
    flushed: int


@dataclass(frozen=True, slots=True)
class ReplicatedTable:
    """What is read: a table, by a publication and a slot."""

    schema: str
    table: str
    publication: str
    slot: str

    @property
    def name(self) -> str:
        """The name of the table as SQL has it."""
        return f'"{self.schema}"."{self.table}"'

    def not_published(self, kind: str) -> PostgresError:
        """The error of a publication that does not have the table. ``kind``: the catalog's ``relkind`` of the table."""
        root = ". Of a partitioned table, it needs WITH (publish_via_partition_root = true)" if kind == "p" else ""
        return PostgresError(
            f"the publication {self.publication!r} does not have the table: ALTER PUBLICATION "
            f'"{self.publication}" ADD TABLE {self.name}{root}'
        )


_STATE: Final = """SELECT plugin::text, database::text, (confirmed_flush_lsn - '0/0')::text, wal_status, active_pid,
(pg_current_wal_flush_lsn() - '0/0')::text FROM pg_replication_slots WHERE slot_name = %s"""
_PUBLICATION: Final = """SELECT p.pubupdate OR p.pubdelete, EXISTS (SELECT FROM pg_publication_tables
WHERE pubname = p.pubname AND schemaname = %s AND tablename = %s) FROM pg_publication p WHERE p.pubname = %s"""
_IDENTITY: Final = """SELECT c.relreplident::text, c.relkind::text, EXISTS (SELECT FROM pg_index i
WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"""
_CREATE: Final = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
_ADVANCE: Final = "SELECT pg_replication_slot_advance(%s, '0/0'::pg_lsn + %s::numeric)"
PEEK: Final = """DECLARE changes NO SCROLL CURSOR FOR
SELECT data FROM pg_logical_slot_peek_binary_changes(%s, '0/0'::pg_lsn + %s::numeric, %s,
'proto_version', '1', 'publication_names', %s)"""


class Slot:
    """The slot of a place, by one connection, which is in autocommit."""

    def __init__(self, connection: psycopg.Connection[Any], place: ReplicatedTable) -> None:
        self._connection = connection
        self._place = place

    def begin(self, position: Position | None) -> Position:
        """Look whether the place can be read from ``position``. Without one, make the slot if there is none.

        Returns:
            Where to begin.

        Raises:
            PostgresError: It cannot be read.
        """
        self.look()
        if position is None:
            if self.state() is None:
                self._create()
            return Position(self.checked(None).confirmed)
        self.checked(position)
        return position

    def state(self) -> SlotState | None:
        """What the server says of the slot now. None: there is none of that name."""
        row = self._connection.execute(_STATE, (self._place.slot,)).fetchone()
        if row is None:
            return None
        plugin, database, confirmed, wal_status, active_pid, flushed = row
        return SlotState(plugin, database, int(confirmed or 0), wal_status, active_pid, int(flushed))

    def checked(self, position: Position | None) -> SlotState:
        """The state of the slot, which has all changes behind ``position``.

        *Invariant (G1): no change is missing behind a position.* A slot has the transactions from its confirmed place
        on, and that never goes back while the server runs. So a look after the changes were taken shows that
        they were complete.

        Raises:
            PostgresError: The slot has not all of them, or is no slot of the plugin and of this database.
        """
        slot, state = self._place.slot, self.state()
        another = (
            "Changes in between are lost: give the source another slot and its stream another name, which begins now"
        )
        if state is None:
            raise PostgresError(
                f"the replication slot {slot!r} does not exist: it was dropped, or the server was replaced. {another}"
            )
        database = self._connection.info.dbname
        if state.plugin != "pgoutput" or state.database != database:
            raise PostgresError(
                f"the replication slot {slot!r} is of the plugin {state.plugin!r} and of the database "
                f"{state.database!r}: give the source a slot of its own, which it makes by itself"
            )
        if state.wal_status == "lost":
            raise PostgresError(
                f"the server has removed what the replication slot {slot!r} still needed, because it was more than "
                f"max_slot_wal_keep_size. {another}, and SELECT pg_drop_replication_slot('{slot}')"
            )
        if position is not None:
            self._compare(position, state, another)
        return state

    def _compare(self, position: Position, state: SlotState, another: str) -> None:
        slot, at = self._place.slot, format_lsn(position.lsn)
        if state.confirmed > position.lsn:
            raise PostgresError(
                f"the replication slot {slot!r} has changes from {format_lsn(state.confirmed)} on, and {at} comes "
                f"next: another reader uses the slot, or the topology was restored from an earlier time. {another}"
            )
        # Rows of a snapshot were read when all that it sees was durable.
        read = position.lsn if position.copy is None else max(position.lsn, position.copy.until)
        if state.flushed < read:
            raise PostgresError(
                f"the write-ahead log of the server ends at {format_lsn(state.flushed)}, and {format_lsn(read)} was "
                f"read before: the "
                f"database was set back, or is another one. {another}"
            )

    def advance(self, lsn: int) -> None:
        """Let the server forget what is below ``lsn``. What is at the position must be committed (G1)."""
        self._connection.execute(_ADVANCE, (self._place.slot, lsn))

    def _create(self) -> None:
        errors = psycopg_module().errors
        try:
            self._connection.execute(_CREATE, (self._place.slot,))
        except errors.DuplicateObject:
            pass  # another reader of this split was faster
        except errors.InsufficientPrivilege as error:
            user = self._connection.info.user
            raise PostgresError(f'{error}. As a superuser: ALTER ROLE "{user}" REPLICATION') from error
        except errors.ObjectNotInPrerequisiteState as error:
            raise PostgresError(
                f"{error}. As a superuser: ALTER SYSTEM SET wal_level = 'logical'. Then restart the server"
            ) from error

    def look(self) -> None:
        """Raise PostgresError if no changes of the table would come, or an update would fail in the database."""
        place, connection = self._place, self._connection
        found = connection.execute(_PUBLICATION, (place.schema, place.table, place.publication)).fetchone()
        table = connection.execute(_IDENTITY, (place.schema, place.table)).fetchone()
        if table is None:
            raise PostgresError(f"the database {connection.info.dbname!r} has no table {place.name}")
        if found is None:
            raise PostgresError(
                f'there is no publication {place.publication!r}: CREATE PUBLICATION "{place.publication}" FOR TABLE '
                f"{place.name}"
            )
        needs_identity, published = found
        identity, kind, has_index = table
        if not published:
            raise place.not_published(kind)
        if needs_identity and kind == "r" and identity != "f" and not has_index:
            raise PostgresError(
                f"{place.name} has no replica identity, so PostgreSQL refuses each UPDATE and DELETE while the "
                f"publication has the table. Give it a primary key, or: ALTER TABLE {place.name} REPLICA IDENTITY FULL"
            )
