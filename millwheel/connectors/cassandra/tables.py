"""What a writer finds in the cluster: its table, the table of the progress, and prepared statements. It blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cassandra import RequestValidationException
from cassandra.cluster import Cluster
from cassandra.cluster import Session as DriverSession
from cassandra.metadata import protect_name
from cassandra.query import PreparedStatement

from millwheel.connectors.cassandra.columns import TableColumns, TableLayout
from millwheel.connectors.cassandra.errors import CassandraError
from millwheel.connectors.cassandra.progress import PROGRESS
from millwheel.connectors.cassandra.settings import CassandraAccess
from millwheel.connectors.cassandra.spec import TableSpec
from millwheel.store.cassandra.schema import table_id, until_known

__all__ = ["PreparedTable", "prepare_table"]

_CREATE: Final = (
    "CREATE TABLE IF NOT EXISTS {table} (sink text, shard int, run bigint, number bigint, id text, time bigint, "
    "PRIMARY KEY ((sink, shard)))"
)
_PROGRESS_COLUMNS: Final = frozenset({"sink", "shard", "run", "number", "id", "time"})
_READ: Final = "SELECT run, number, id, time FROM {table} WHERE sink = ? AND shard = ?"
_BEGIN: Final = "INSERT INTO {table} (run, number, id, time, sink, shard) VALUES (?, ?, ?, ?, ?, ?) IF NOT EXISTS"
_ADVANCE: Final = (
    "UPDATE {table} SET run = ?, number = ?, id = ?, time = ? WHERE sink = ? AND shard = ? "
    "IF run = ? AND id = ? AND time = ?"
)


@dataclass(frozen=True, slots=True)
class PreparedTable:
    """A table that takes the rows, and the statements for it.

    Attributes:
        columns: How rows fill the table.
        upsert: Writes a row.
        delete: Deletes a row.
        progress: The table of the progress, as CQL names it.
        read: Reads the progress of a shard.
        begin: Makes it, if there is none.
        advance: Raises it, if it is as expected.
        level: The consistency of writes.
        send_seconds: How long after its beginning a write still sends rows.
    """

    columns: TableColumns
    upsert: PreparedStatement
    delete: PreparedStatement
    progress: str
    read: PreparedStatement
    begin: PreparedStatement
    advance: PreparedStatement
    level: int
    send_seconds: float


def prepare_table(
    spec: TableSpec[Any], access: CassandraAccess, cluster: Cluster, driver: DriverSession
) -> PreparedTable:
    """Check the table, make the table of the progress if there is none, and prepare the statements.

    Raises:
        CassandraError: The table does not take the rows, or a right is missing.
    """
    columns = TableColumns(spec.kind, _layout(spec, driver))
    progress = f"{protect_name(spec.keyspace)}.{PROGRESS}"
    _see_to_progress(spec.keyspace, progress, driver)

    def prepare(text: str, *, conditional: bool = False) -> PreparedStatement:
        statement = driver.prepare(text.format(table=progress) if "{table}" in text else text)
        statement.consistency_level = access.level
        if conditional:
            statement.serial_consistency_level = access.serial
        return statement

    def all_of_them() -> PreparedTable:
        read = prepare(_READ)
        read.consistency_level = access.serial
        return PreparedTable(
            columns=columns,
            upsert=prepare(columns.upsert(spec.ttl)),
            delete=prepare(columns.delete()),
            progress=progress,
            read=read,
            begin=prepare(_BEGIN, conditional=True),
            advance=prepare(_ADVANCE, conditional=True),
            level=access.level,
            send_seconds=access.send_seconds,
        )

    return until_known(all_of_them, access.cluster.timeout_seconds)


def _layout(spec: TableSpec[Any], driver: DriverSession) -> TableLayout:
    """The table as the cluster describes it."""
    where, name = (spec.keyspace, spec.table), f"{protect_name(spec.keyspace)}.{protect_name(spec.table)}"
    tables = driver.execute(
        "SELECT gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s", where
    )
    grace = [seconds for (seconds,) in tables]
    if not grace:
        raise CassandraError(
            f"there is no table {name}: make it before the topology writes to it. A materialized view is none, and "
            "names are written as Cassandra stores them, which is in small letters unless they were made in quotes"
        )
    rows = driver.execute(
        "SELECT column_name, kind, position, type FROM system_schema.columns "
        "WHERE keyspace_name = %s AND table_name = %s",
        where,
    )
    return TableLayout(name, {column: (kind, place, text) for column, kind, place, text in rows}, grace[0])


def _see_to_progress(keyspace: str, progress: str, driver: DriverSession) -> None:
    """Make the table of the progress. It is looked for first: a role that may write to it need not be able to make it.

    Its id depends on its name. So two nodes that make it at one moment make the same one.
    """
    found = driver.execute(
        "SELECT column_name FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s",
        (keyspace, PROGRESS),
    )
    columns = {column for (column,) in found}
    if columns and not columns >= _PROGRESS_COLUMNS:
        raise CassandraError(
            f"the table {progress} has not the columns {', '.join(sorted(_PROGRESS_COLUMNS))}: another program made "
            "it. Write to a table in another keyspace"
        )
    if columns:
        return
    create = _CREATE.format(table=progress)
    try:
        driver.execute(f"{create} WITH ID = {table_id(keyspace, create)}")
    except RequestValidationException as error:
        raise CassandraError(
            f"the table {progress} is missing, and cannot be made ({error}): let an administrator run {create}, and "
            "GRANT SELECT, MODIFY on it"
        ) from error
