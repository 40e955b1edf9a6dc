"""Creates and migrates the tables. Tables of other software, or of a newer schema version, are never changed."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.cluster import Cluster
from cassandra.cluster import Session as DriverSession
from cassandra.protocol import ServerError
from cassandra.query import SimpleStatement

from millwheel.store.cassandra.failures import StoreSettingsError, is_unknown
from millwheel.store.cassandra.settings import CassandraSettings
from millwheel.store.contract import StoreUnavailableError

__all__ = ["HEAD_ROW", "MIGRATIONS", "prepare_keyspace", "table_id", "until_known"]

HEAD_ROW: Final = -1
"""The clustering value of a row that every journal has, before its entries.

For a condition on static columns Cassandra reads the first live row of the partition. This row is always live, so the
read never scans the tombstones of deleted entries behind it.
"""

_OWNER: Final = "openmillwheel"

_VERSION_TABLE: Final = """CREATE TABLE IF NOT EXISTS {keyspace}.schema_version (
    owner text PRIMARY KEY, version int, state_buckets int
) WITH ID = {id}"""

# gc_grace_seconds: three hours, as long as Cassandra keeps hints. Data that returns with a node after a longer absence
# is never read: it is below a truncation point, or no head names it. Emptied state rows have ten more days before that
# (EMPTY_SECONDS).
_FIRST: Final = (
    """CREATE TABLE IF NOT EXISTS {keyspace}.journals (
    journal text, entry bigint, value blob,
    sequencer bigint static, commit bigint static, truncation_point bigint static, parts blob static,
    creator uuid static,
    PRIMARY KEY (journal, entry)
) WITH ID = {id} AND gc_grace_seconds = 10800
  AND compaction = {{'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'T4'}}""",
    """CREATE TABLE IF NOT EXISTS {keyspace}.parts (
    journal text, name text, sequencer bigint, commit bigint, chunk int, value blob,
    PRIMARY KEY (journal, name, sequencer, commit, chunk)
) WITH ID = {id} AND gc_grace_seconds = 10800
  AND compaction = {{'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'T4'}}""",
    """CREATE TABLE IF NOT EXISTS {keyspace}.states (
    incarnation text, bucket int, key blob, value blob,
    PRIMARY KEY ((incarnation, bucket), key)
) WITH ID = {id} AND gc_grace_seconds = 10800
  AND compaction = {{'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'L4'}}""",
)

MIGRATIONS: Final[Sequence[Sequence[str]]] = (_FIRST,)
"""Step n migrates version n to n + 1. A step may be repeated after an interruption, and run in several processes."""

_PAUSE_SECONDS: Final = 0.2

Run = Callable[..., list[tuple[Any, ...]]]
Result = TypeVar("Result")


def until_known(work: Callable[[], Result], patience: float) -> Result:
    """Call ``work``, which blocks, and repeat it for ``patience`` seconds while the queried node does not know a table.

    A table that one node has made is known to the other nodes a moment later. A node that is starting may take longer.
    """
    until = time.monotonic() + patience
    while True:
        try:
            return work()
        except (InvalidRequest, StoreUnavailableError) as error:
            passes = isinstance(error, StoreUnavailableError) or is_unknown(error)
            if not passes or time.monotonic() > until:
                raise
        time.sleep(_PAUSE_SECONDS)


def prepare_keyspace(settings: CassandraSettings, cluster: Cluster, session: DriverSession) -> int:
    """Check or make the keyspace and its tables, and migrate them to this version. Blocks.

    Several processes may do this at once. A table's id is derived from its name. So two nodes that make the same table
    at the same moment make it with the same id.

    Returns:
        The number of state buckets that the keyspace was made with.

    Raises:
        StoreSettingsError: the keyspace belongs to other software, or has a newer version, or is of version 0.1.0.
    """

    def run(text: str, *values: object) -> list[tuple[Any, ...]]:
        return list(session.execute(SimpleStatement(text, consistency_level=ConsistencyLevel.QUORUM), values or None))

    if not _is_ours(settings, run) or not _has_begun(settings, run):
        _begin(settings, cluster, run)
    version, buckets = _read_version(settings, run)
    _check_states(settings, run)
    for step in range(version, len(MIGRATIONS)):
        for statement in MIGRATIONS[step]:
            run(statement.format(keyspace=settings.keyspace, id=table_id(settings.keyspace, statement)))
        run(
            f"UPDATE {settings.keyspace}.schema_version SET version = %s WHERE owner = %s IF version = %s",
            step + 1,
            _OWNER,
            step,
        )
    return buckets


def _is_ours(settings: CassandraSettings, run: Run) -> bool:
    """Return whether the keyspace has MillWheel's version table.

    This must be one query for all tables. Between two queries another process could make the version table, and its
    tables would look foreign.

    Raises:
        StoreSettingsError: all tables of the keyspace belong to other software.
        StoreUnavailableError: other processes are making the tables, and the queried node does not have all of them.
    """
    tables: defaultdict[str, set[str]] = defaultdict(set)
    for table, column in run(
        "SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = %s", settings.keyspace
    ):
        tables[table].add(column)
    if tables.get("schema_version", set()) >= {"owner", "version", "state_buckets"}:
        return True
    if not tables:
        return False
    ours = {table_id(settings.keyspace, statement) for statement in (_VERSION_TABLE, *chain(*MIGRATIONS))}
    rows = run("SELECT id FROM system_schema.tables WHERE keyspace_name = %s", settings.keyspace)
    if rows and ours.isdisjoint(number for (number,) in rows):
        raise StoreSettingsError(
            f"keyspace {settings.keyspace} holds tables of something else ({', '.join(sorted(tables))}); "
            "nothing was changed: set store.keyspace to a name of its own"
        )
    # Tables reach the other nodes in any order. The version table is made first, so another process has made it.
    raise StoreUnavailableError(
        f"a Cassandra node knows tables of keyspace {settings.keyspace} ({', '.join(sorted(tables))}), and not "
        "schema_version yet. It is tried again until it does; if that was dropped, restore it from a snapshot"
    )


def _has_begun(settings: CassandraSettings, run: Run) -> bool:
    """Return whether the version row exists. A table that is being made is listed before it can be read.

    A repeated :func:`_begin` does no harm. If there is another problem, :func:`_begin` reports it.
    """
    try:
        return bool(run(f"SELECT owner FROM {settings.keyspace}.schema_version"))
    except (InvalidRequest, ServerError):
        return False


def _begin(settings: CassandraSettings, cluster: Cluster, run: Run) -> None:
    """Make the keyspace and the version table, at version 0. From then on the keyspace counts as MillWheel's."""
    _make_keyspace(settings, cluster, run)
    run(_VERSION_TABLE.format(keyspace=settings.keyspace, id=table_id(settings.keyspace, _VERSION_TABLE)))
    run(
        f"INSERT INTO {settings.keyspace}.schema_version (owner, version, state_buckets) "
        "VALUES (%s, 0, %s) IF NOT EXISTS",
        _OWNER,
        settings.state_buckets,
    )


def _make_keyspace(settings: CassandraSettings, cluster: Cluster, run: Run) -> None:
    if run("SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s", settings.keyspace):
        return
    control = cluster.get_control_connection_host()
    local_dc = settings.local_dc or (control.datacenter if control else "") or "datacenter1"
    replicas = settings.replicas(local_dc)
    known = {host.datacenter for host in cluster.metadata.all_hosts()}
    if unknown := sorted(replicas.keys() - known):
        raise StoreSettingsError(
            f"store.replication names the data centre {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        )
    places = "".join(f", '{name}': {count}" for name, count in replicas.items())
    run(
        f"CREATE KEYSPACE IF NOT EXISTS {settings.keyspace} "
        f"WITH replication = {{'class': 'NetworkTopologyStrategy'{places}}}"
    )


def _read_version(settings: CassandraSettings, run: Run) -> tuple[int, int]:
    rows = run(f"SELECT owner, version, state_buckets FROM {settings.keyspace}.schema_version")
    others = sorted(row[0] for row in rows if row[0] != _OWNER)
    if others:
        raise StoreSettingsError(
            f"keyspace {settings.keyspace} belongs to {', '.join(others)}; set store.keyspace to a name of its own"
        )
    ((_, version, buckets),) = rows
    if version > len(MIGRATIONS):
        raise StoreSettingsError(
            f"keyspace {settings.keyspace} has schema version {version}, and this software knows versions up to "
            f"{len(MIGRATIONS)}: install a newer openmillwheel, or set store.keyspace to another name"
        )
    return version, buckets


def _check_states(settings: CassandraSettings, run: Run) -> None:
    """Refuse the tables that version 0.1.0 made. They have the version number of today's, and another column."""
    rows = run(
        "SELECT column_name FROM system_schema.columns WHERE keyspace_name = %s AND table_name = 'states'",
        settings.keyspace,
    )
    if rows and ("incarnation",) not in map(tuple, rows):
        raise StoreSettingsError(
            f"keyspace {settings.keyspace} has the tables of version 0.1.0, which this version does not read: "
            "go on with that version, or set store.keyspace to another name"
        )


def table_id(keyspace: str, statement: str) -> uuid.UUID:
    """Return the table's id, which is the same in every process that makes this table in this keyspace."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"openmillwheel:{keyspace}:{statement}")
