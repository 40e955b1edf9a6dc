"""The keyspace: the first process creates it, a foreign or newer one stays untouched, and few rights suffice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cassandra import InvalidRequest

from millwheel.model.incarnation import IncarnationId
from millwheel.store.cassandra import CassandraSettings, CassandraStore, StoreSettingsError
from millwheel.store.cassandra.failures import is_unknown
from millwheel.store.cassandra.schema import MIGRATIONS, prepare_keyspace, until_known
from millwheel.store.contract import Append, StoreUnavailableError
from tests.patience import patience
from tests.store.cassandra.conftest import OpenStore


async def test_many_that_open_a_new_keyspace_at_once_share_it(settings: CassandraSettings, name: str) -> None:
    fresh = replace(settings, keyspace=name)
    stores = await asyncio.gather(*(CassandraStore.open(fresh) for _ in range(4)))
    await stores[0].create_journal("j", 7)
    assert [(await store.read_head("j")).commit for store in stores] == [7] * 4
    await asyncio.gather(*(store.close() for store in stores))


class _Overtaken:
    """The driver's session of one that is overtaken: between two of its requests, another makes the whole keyspace."""

    def __init__(self, driver: Any, other: Callable[[], object], after: int) -> None:
        self._driver = driver
        self._other = other
        self._left = after

    def execute(self, statement: Any, values: Any = None) -> Any:
        if self._left == 0:
            self._other()
        self._left -= 1
        return self._driver.execute(statement, values)


@pytest.mark.parametrize("after", range(6))
def test_one_that_loses_the_race_for_a_keyspace_uses_the_others(
    settings: CassandraSettings, driver: Any, name: str, after: int
) -> None:
    """Regression: the store took the other one's version table for a table of another program, and refused to start."""
    fresh = replace(settings, keyspace=name)
    buckets: list[int] = []

    def overtake() -> None:
        buckets.append(prepare_keyspace(replace(fresh, state_buckets=3), driver.cluster, driver))

    overtaken: Any = _Overtaken(driver, overtake, after)
    assert [prepare_keyspace(replace(fresh, state_buckets=9), driver.cluster, overtaken)] == buckets


def test_a_node_that_lags_behind_another_is_asked_again() -> None:
    """Regression: one of three new nodes refused an existing table.

    The store reported a wrong setting, and did not open.
    """
    answers = iter([InvalidRequest('message="table schema_version does not exist"')] * 2)

    def work() -> str:
        for error in answers:
            raise error
        return "known"

    assert until_known(work, 10.0) == "known"


def test_a_nodes_refusal_for_another_reason_is_reported_at_once() -> None:
    asked = []

    def work() -> None:
        asked.append(1)
        raise InvalidRequest("Undefined column name version in table schema_version")

    with pytest.raises(InvalidRequest, match="Undefined column"):
        until_known(work, 10.0)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "asked",
    ["SELECT * FROM {}.t", "CREATE TABLE {}.t (k int PRIMARY KEY)", "INSERT INTO store_tests.{} (k) VALUES (1)"],
)
def test_what_a_node_does_not_know_yet_differs_from_a_refusal(
    settings: CassandraSettings, driver: Any, name: str, asked: str
) -> None:
    """For a table in an unknown keyspace, the node's error has other words than for anything else unknown."""
    prepare_keyspace(settings, driver.cluster, driver)
    with pytest.raises(InvalidRequest) as refused:
        driver.execute(asked.format(name))
    assert is_unknown(refused.value)


def test_tables_of_ours_without_their_version_are_waited_for(
    settings: CassandraSettings, driver: Any, name: str
) -> None:
    """Several nodes create tables, and another node learns of them in any order.

    It must not take them for foreign ones. It must not create the keyspace again, with another number of buckets.
    """
    fresh = replace(settings, keyspace=name)
    prepare_keyspace(fresh, driver.cluster, driver)
    driver.execute(f"DROP TABLE {name}.schema_version")
    driver.execute(f"CREATE TABLE {name}.export (id int PRIMARY KEY)")
    attempts = []

    def attempt() -> int:
        attempts.append(1)
        return prepare_keyspace(fresh, driver.cluster, driver)

    with pytest.raises(
        StoreUnavailableError, match=rf"tables of keyspace {name} \(export, journals, parts, states\), and not"
    ):
        until_known(attempt, 0.5)
    assert len(attempts) > 1


async def test_a_keyspace_of_something_else_is_left_as_it_is(
    settings: CassandraSettings, driver: Any, name: str
) -> None:
    driver.execute(f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    driver.execute(f"CREATE TABLE {name}.users (id int PRIMARY KEY)")
    with pytest.raises(StoreSettingsError, match=rf"keyspace {name} holds tables of something else \(users\)"):
        await CassandraStore.open(replace(settings, keyspace=name))
    tables = driver.execute("SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (name,))
    assert [row[0] for row in tables] == ["users"]


async def test_a_newer_schema_and_another_owner_are_refused_by_name(
    settings: CassandraSettings, driver: Any, name: str
) -> None:
    fresh = replace(settings, keyspace=name)
    await (await CassandraStore.open(fresh)).close()
    newer = len(MIGRATIONS) + 1
    driver.execute(f"UPDATE {name}.schema_version SET version = {newer} WHERE owner = 'openmillwheel'")
    with pytest.raises(StoreSettingsError, match=rf"keyspace {name} has schema version {newer}.*up to {newer - 1}"):
        await CassandraStore.open(fresh)
    driver.execute(f"INSERT INTO {name}.schema_version (owner, version) VALUES ('watermill', 1)")
    with pytest.raises(StoreSettingsError, match=rf"keyspace {name} belongs to watermill"):
        await CassandraStore.open(fresh)


async def test_tables_of_the_first_release_are_refused_by_name(
    settings: CassandraSettings, driver: Any, name: str
) -> None:
    """Their version number is that of today's tables. Without the check every request failed, and was repeated."""
    fresh = replace(settings, keyspace=name)
    await (await CassandraStore.open(fresh)).close()
    driver.execute(f"ALTER TABLE {name}.states RENAME incarnation TO computation")
    with pytest.raises(StoreSettingsError, match=rf"keyspace {name} has the tables of version 0\.1\.0"):
        await CassandraStore.open(fresh)


async def test_a_migration_that_was_cut_short_is_finished(
    settings: CassandraSettings, driver: Any, name: str, open_store: OpenStore
) -> None:
    fresh = replace(settings, keyspace=name)
    await (await CassandraStore.open(fresh)).close()
    driver.execute(f"UPDATE {name}.schema_version SET version = 0 WHERE owner = 'openmillwheel'")
    driver.execute(f"DROP TABLE {name}.states")
    store = await open_store(fresh)
    assert await store.read_states(IncarnationId("c"), [b"k"]) == [None]


async def test_the_number_of_buckets_stays_that_of_the_keyspace(
    settings: CassandraSettings, driver: Any, name: str
) -> None:
    await (await CassandraStore.open(replace(settings, keyspace=name, state_buckets=3))).close()
    await (await CassandraStore.open(replace(settings, keyspace=name, state_buckets=9))).close()
    assert [row[0] for row in driver.execute(f"SELECT state_buckets FROM {name}.schema_version")] == [3]


async def test_a_read_only_role_learns_what_it_needs_and_goes_on(
    settings: CassandraSettings, driver: Any, store: CassandraStore, name: str, open_store: OpenStore
) -> None:
    driver.execute(f"CREATE ROLE {name} WITH PASSWORD = 'p' AND LOGIN = true")
    driver.execute(f"GRANT SELECT ON KEYSPACE {settings.keyspace} TO {name}")
    await store.create_journal(name)
    await store.fence(name, 1)
    reader = await open_store(replace(settings, username=name, password="p", timeout_seconds=patience(0.25)))
    assert (await reader.read_head(name)).sequencer == 1
    append = Append(1, 1, 0, (), b"entry")
    with pytest.raises(StoreUnavailableError, match=rf"GRANT SELECT, MODIFY ON KEYSPACE {settings.keyspace}"):
        await reader.append(name, append)
    driver.execute(f"GRANT MODIFY ON KEYSPACE {settings.keyspace} TO {name}")
    await asyncio.sleep(0.5)
    await reader.append(name, append)
    assert await store.read_entries(name, 1, 1) == [b"entry"]
