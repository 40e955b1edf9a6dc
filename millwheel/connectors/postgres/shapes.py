"""What is copied of a table: its columns, its primary key and its rows, as the server's catalog has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millwheel.connectors.postgres.pgoutput import Column, Relation
from millwheel.connectors.postgres.session import PostgresError
from millwheel.connectors.postgres.slots import ReplicatedTable

if TYPE_CHECKING:
    import psycopg

__all__ = ["PrimaryColumn", "TableShape", "escaped", "find_operators", "quoted", "table_shape"]

_COLUMNS: Final = """SELECT c.relkind::text, c.relreplident = 'i' AND NOT i.indisreplident, a.attname::text,
a.atttypid::int8, format('%%I.%%I', tn.nspname, t.typname),
CASE WHEN l.oid IS NOT NULL THEN format('%%I.%%I', ln.nspname, l.collname) END,
a.attgenerated::text, array_position(i.indkey::int2[], a.attnum), i.indnkeyatts,
(SELECT quote_ident(gn.nspname) FROM pg_opclass oc JOIN pg_amop am ON am.amopfamily = oc.opcfamily
AND am.amoplefttype = oc.opcintype AND am.amoprighttype = oc.opcintype AND am.amopstrategy = 5
JOIN pg_operator g ON g.oid = am.amopopr JOIN pg_namespace gn ON gn.oid = g.oprnamespace
WHERE oc.oid = i.indclass[array_position(i.indkey::int2[], a.attnum)])
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace tn ON tn.oid = t.typnamespace
LEFT JOIN pg_collation l ON l.oid = a.attcollation LEFT JOIN pg_namespace ln ON ln.oid = l.collnamespace
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE n.nspname = %s AND c.relname = %s ORDER BY a.attnum"""
"""The last column is the schema of the operator ``>`` by which the index of the primary key is ordered."""
_PUBLISHED: Final = "FROM pg_publication_tables WHERE pubname = %s AND schemaname = %s AND tablename = %s"
_PUBLISHES_PARTS: Final = 150_000
_PUBLISHES_GENERATED: Final = 180_000
"""From these versions of the server on, a publication may have some rows and columns alone, or generated columns."""


class PrimaryColumn(NamedTuple):
    """A column of the primary key. ``collation`` is empty for a type without one."""

    name: str
    type: str
    collation: str

    def __str__(self) -> str:
        return f"{self.name} {self.type} {self.collation}".rstrip()

    def typed(self, value: str) -> str:
        """SQL for a text as a value of the column, which compares as the column does."""
        collate = f" COLLATE {self.collation}" if self.collation else ""
        return value + escaped(f"::{self.type}{collate}")


class _FoundColumn(NamedTuple):
    """A row of ``_COLUMNS``."""

    kind: str
    other_identity: bool | None
    name: str
    type_id: int
    type: str
    collation: str | None
    generated: str
    place: int | None
    keys: int | None
    operators: str | None

    @property
    def place_in_key(self) -> int | None:
        """None: it is not in the primary key."""
        place, keys = self.place, self.keys
        return None if place is None or keys is None or place >= keys else place


class TableShape(NamedTuple):
    """What is copied of a table: its columns, its primary key, and which rows. ``path`` finds the key's operators."""

    relation: Relation
    key: tuple[PrimaryColumn, ...]
    only: str
    rows: str
    path: str


def table_shape(connection: psycopg.Connection[Any], place: ReplicatedTable, fields: Mapping[str, Any]) -> TableShape:
    """What is copied of a table now. It also finds the operators of its key.

    Args:
        connection: To the database.
        place: The table, and its publication.
        fields: By the names of columns: what a record has of them.

    Raises:
        PostgresError: It has no primary key, or old rows do not have it; or it is not there, or not published.
    """
    version, found = connection.info.server_version, _columns(connection, place)
    in_key = {at: one for one in found if (at := one.place_in_key) is not None}
    in_order = [in_key[at] for at in sorted(in_key)]
    path = ", ".join(dict.fromkeys(["pg_catalog", *(one.operators for one in in_order if one.operators)]))
    find_operators(connection, path)
    published, rows = _published(connection, place, fields, found[0].kind)
    if not in_order:
        raise PostgresError(
            f"the rows of {place.name} are copied in the order of its primary key, and it has none: give it one, "
            "or let the source begin without the rows, by initial='none'"
        )
    if found[0].other_identity:
        raise PostgresError(
            f"the rows of {place.name} are copied by its primary key, and changes have only the columns of another "
            f"index: ALTER TABLE {place.name} REPLICA IDENTITY DEFAULT, or FULL"
        )
    columns = []
    for one in found:
        is_sent = one.name in published and (not one.generated or version >= _PUBLISHES_GENERATED)
        if one in in_order or (is_sent and one.name in fields):
            columns.append(Column(one in in_order, one.name, one.type_id))
    relation = Relation(0, place.schema, place.table, "d", tuple(columns))
    key = tuple(PrimaryColumn(one.name, one.type, one.collation or "") for one in in_order)
    return TableShape(relation, key, "ONLY " if found[0].kind == "r" else "", rows, path)


def find_operators(connection: psycopg.Connection[Any], path: str) -> None:
    """Let ``>`` be that of the key's types. Found by name elsewhere, it would not have the order of the index."""
    connection.execute("SELECT set_config('search_path', %s, false)", [path])


def _published(
    connection: psycopg.Connection[Any], place: ReplicatedTable, fields: Mapping[str, Any], kind: str
) -> tuple[Sequence[str], str]:
    """The columns and the rows that the publication has. The whole table must not be copied in place of a part.

    Raises:
        PostgresError: It does not have the table, by now.
    """
    has_parts = connection.info.server_version >= _PUBLISHES_PARTS
    parts = "attnames::text[], rowfilter" if has_parts else "NULL, NULL"
    row = connection.execute(f"SELECT {parts} {_PUBLISHED}", (place.publication, place.schema, place.table)).fetchone()
    if row is None:
        raise place.not_published(kind)
    columns, rows = row
    return tuple(fields) if columns is None else columns, rows or ""


def _columns(connection: psycopg.Connection[Any], place: ReplicatedTable) -> list[_FoundColumn]:
    found = connection.execute(_COLUMNS, (place.schema, place.table)).fetchall()
    if not found:
        raise PostgresError(f"the database {connection.info.dbname!r} has no table {place.name} with columns")
    return [_FoundColumn(*one) for one in found]


def escaped(sql: str) -> str:
    """SQL in which the driver finds no parameter."""
    return sql.replace("%", "%%")


def quoted(name: str) -> str:
    """SQL for a name."""
    return escaped('"' + name.replace('"', '""') + '"')
