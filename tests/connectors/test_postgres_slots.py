"""What the changes of a table need of the server, and errors that say what to do (G1)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from deploy.local.postgres import PostgresServer
from millwheel.connectors import postgres
from millwheel.connectors.postgres import Position, PostgresError
from millwheel.connectors.postgres.slots import Slot
from millwheel.connectors.postgres.transactions import Copy
from millwheel.sdk.errors import UsageError
from tests.connectors.postgres_changes import Sale, begun, caught_up, changes_of, error_of, slot_of
from tests.connectors.postgres_tables import Database


@pytest.fixture
def shop() -> Iterator[Database]:
    made = Database()
    made.run("CREATE TABLE sales (item text PRIMARY KEY, cents int)")
    made.run("CREATE PUBLICATION shop FOR TABLE sales")
    yield made
    made.remove()


@dataclass(frozen=True)
class Refused:
    work: str
    part: str


@pytest.mark.parametrize(
    "refused",
    [
        Refused("DROP TABLE sales", "has no table"),
        Refused("DROP PUBLICATION shop", 'CREATE PUBLICATION "shop" FOR TABLE "public"."sales"'),
        Refused("ALTER PUBLICATION shop DROP TABLE sales", 'ALTER PUBLICATION "shop" ADD TABLE "public"."sales"'),
        Refused("ALTER TABLE sales DROP CONSTRAINT sales_pkey", 'ALTER TABLE "public"."sales" REPLICA IDENTITY FULL'),
    ],
    ids=lambda refused: refused.work,
)
def test_what_a_table_needs_is_said(shop: Database, refused: Refused) -> None:
    shop.run(refused.work)
    assert refused.part in error_of(shop, None)
    assert shop.run("SELECT count(*) FROM pg_replication_slots") == [(0,)]


def test_inserts_alone_need_no_replica_identity(shop: Database) -> None:
    shop.run("ALTER TABLE sales DROP CONSTRAINT sales_pkey")
    shop.run("ALTER PUBLICATION shop SET (publish = 'insert')")
    assert len(changes_of(shop, "INSERT INTO sales VALUES ('tea', 1)", "UPDATE sales SET cents = 2")) == 1


def test_a_role_without_replication_is_named(shop: Database) -> None:
    shop.run(f"CREATE ROLE reader_{shop.name} LOGIN")
    try:
        reader = shop.conninfo.replace("user=postgres", f"user=reader_{shop.name}")
        assert f'ALTER ROLE "reader_{shop.name}" REPLICATION' in error_of(shop, None, conninfo=reader)
        shop.run(f"ALTER ROLE reader_{shop.name} REPLICATION")
        assert changes_of(shop, "INSERT INTO sales VALUES ('tea', 1)", conninfo=reader)
    finally:
        shop.run(f"DROP ROLE reader_{shop.name}")


def test_a_server_that_logs_too_little_is_named() -> None:
    with PostgresServer(wal_level="replica") as server:
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute("CREATE TABLE sales (item text PRIMARY KEY)")
            connection.execute("CREATE PUBLICATION shop FOR TABLE sales")
        source = postgres.changes(Sale, table="sales", slot="s", publication="shop", conninfo=server.conninfo)

        async def run() -> None:
            reader = await source.open_reader("s", None)
            try:
                await caught_up(reader)
            finally:
                await reader.close()

        with pytest.raises(PostgresError, match="ALTER SYSTEM SET wal_level = 'logical'"):
            asyncio.run(run())


def test_a_slot_from_before_its_publication_is_named(shop: Database) -> None:
    shop.run("DROP PUBLICATION shop")
    shop.run(f"SELECT pg_create_logical_replication_slot('{slot_of(shop)}', 'pgoutput')")
    shop.run("INSERT INTO sales VALUES ('tea', 1)")
    shop.run("CREATE PUBLICATION shop FOR TABLE sales")
    assert "Make the publication first" in error_of(shop, None)


@pytest.mark.guarantee("G1")
def test_a_dropped_slot_is_no_empty_one(shop: Database) -> None:
    position = begun(shop)
    shop.run(f"SELECT pg_drop_replication_slot('{slot_of(shop)}')")
    assert "does not exist: it was dropped" in error_of(shop, position)
    begun(shop)  # another one of its name
    shop.run("INSERT INTO sales VALUES ('tea', 1)")
    shop.run(f"SELECT pg_replication_slot_advance('{slot_of(shop)}', pg_current_wal_flush_lsn())")
    assert "another reader uses the slot, or the topology was restored" in error_of(shop, position)


@pytest.mark.guarantee("G1")
def test_a_slot_that_moves_while_it_is_read_is_noticed(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another reader takes changes between the look at the slot and what the server decodes."""
    position = begun(shop)
    shop.run("INSERT INTO sales VALUES ('tea', 1)")
    advance = f"SELECT pg_replication_slot_advance('{slot_of(shop)}', pg_current_wal_flush_lsn())"
    original = Slot.checked
    looks = 0

    def checked(slot: Slot, position: Position | None) -> Any:
        nonlocal looks
        state, looks = original(slot, position), looks + 1
        if looks == 2:  # the first is of the opening
            shop.run(advance)
        return state

    monkeypatch.setattr(Slot, "checked", checked)
    assert "another reader uses the slot" in error_of(shop, position)


def test_a_slot_of_something_else_is_refused(shop: Database) -> None:
    shop.run(f"SELECT pg_create_logical_replication_slot('{slot_of(shop)}', 'test_decoding')")
    assert "is of the plugin 'test_decoding'" in error_of(shop, None)
    shop.run(f"SELECT pg_drop_replication_slot('{slot_of(shop)}')")
    with psycopg.connect(shop.server.conninfo, autocommit=True) as other:
        other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot_of(shop)])
        assert "of the database 'postgres'" in error_of(shop, None)
        other.execute("SELECT pg_drop_replication_slot(%s)", [slot_of(shop)])


@pytest.mark.guarantee("G1")
def test_a_slot_that_the_server_gave_up_is_named(shop: Database) -> None:
    position = begun(shop)
    shop.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    try:
        shop.run("SELECT pg_reload_conf()")
        for number in range(4):
            shop.run("INSERT INTO sales VALUES (%s, 1)", f"i{number}")
            shop.run("SELECT pg_switch_wal()")
        shop.run("CHECKPOINT")
        assert "more than max_slot_wal_keep_size" in error_of(shop, position)
    finally:
        shop.run("ALTER SYSTEM RESET max_slot_wal_keep_size")
        shop.run("SELECT pg_reload_conf()")


@pytest.mark.guarantee("G1")
def test_a_database_that_was_set_back_is_noticed(shop: Database) -> None:
    """Behind what was read of its log, and behind what the snapshot of copied rows sees."""
    lsn = begun(shop).lsn
    copy = Copy(("item",), copied=("tea",), snapshot="9:9:", until=lsn + (1 << 40))
    for later in (Position(lsn + (1 << 40)), Position(lsn, copy=copy)):
        assert "the database was set back, or is another one" in error_of(shop, later)


def test_arguments_that_cannot_be_used_are_refused() -> None:
    good: Any = {"table": "sales", "slot": "shop", "publication": "shop"}
    with pytest.raises(UsageError, match="a to z, 0 to 9 and _, not 'Shop'"):
        postgres.changes(Sale, **{**good, "slot": "Shop"})
    with pytest.raises(UsageError, match="a row is a Struct or a dataclass"):
        postgres.changes(int, **good)
    with pytest.raises(UsageError, match="would be stored with the program"):
        postgres.changes(Sale, **good, conninfo="password=secret")


def test_another_address_is_the_same_source() -> None:
    good: Any = {"table": "sales", "slot": "shop", "publication": "shop"}
    identities = {postgres.changes(Sale, **good, conninfo=f"service={name}").identity() for name in "ab"}
    assert identities == {"changes of public.sales from the slot shop"}


def test_a_missing_driver_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError, match=r"of the extra 'postgres': where the workers run, pip install"):
        postgres.connecting("service=shop")()


def test_the_driver_is_loaded_when_it_is_used() -> None:
    code = "import sys; from millwheel.connectors import postgres; sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
