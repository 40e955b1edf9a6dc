"""The rows of a table that has some come first, and then the changes: each once, through all failures (G1)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import psycopg
import pytest

import millwheel as mw
from deploy.local.postgres import PostgresServer
from millwheel.connectors import Source
from millwheel.connectors.postgres import ChangedRow, Position, PostgresError, peeking, tables
from millwheel.connectors.postgres.transactions import Copy
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.testing.connectors import SourceContract
from tests.connectors.given import running
from tests.connectors.postgres_changes import slot_of
from tests.connectors.postgres_copies import Copying, Dated, Stock, applied, rows_of, stock, stocked
from tests.connectors.postgres_tables import Database

_MESSAGE = "SELECT pg_logical_emit_message(true, 'waits', '')"
_WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
def shop() -> Iterator[Database]:
    made = stocked(10)
    yield made
    made.remove()


@pytest.fixture(params=[0.0, 60.0], ids=["short transactions", "one transaction"])
def two_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read has two rows."""
    monkeypatch.setattr(peeking, "READ_RECORDS", 2)
    monkeypatch.setattr(tables, "COPY_SECONDS", request.param)


def calls_of(name: str, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a method of the copier returns from now on: it says how far a reader is."""
    original, returned = getattr(tables.RowCopier, name), list[object]()

    def call(copier: tables.RowCopier, *arguments: object) -> object:
        returned.append(original(copier, *arguments))
        return returned[-1]

    monkeypatch.setattr(tables.RowCopier, name, call)
    return returned


@pytest.mark.guarantee("G1", "G13")
class TestCopies(SourceContract[ChangedRow[Dated], Position]):
    """All records are in one table. Those that are there at the beginning are copied."""

    record_type = ChangedRow[Dated]
    splits_come = False
    keeps_records = False

    @pytest.fixture(autouse=True)
    def _shop(self, shop: Database) -> None:
        self.shop = shop
        shop.run("TRUNCATE stock")

    def make_source(self) -> Source[ChangedRow[Dated], Position]:
        return stock(self.shop, Dated)

    def empty(self) -> None:
        """With a new slot, because a slot forgets what was committed, and may have a part of it."""
        self.shop.run("TRUNCATE stock")
        self.shop.run(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid != pg_backend_pid()"
        )
        self.shop.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")

    def write(self, split: int, numbers: Sequence[int]) -> None:
        self.shop.run("INSERT INTO stock SELECT one FROM unnest(%s::int[]) AS one", list(numbers))

    def number_of(self, value: ChangedRow[Dated]) -> int:
        return value.row.id

    def write_bad(self, split: int) -> None:
        self.shop.run("INSERT INTO stock VALUES (-1, 0, 'infinity')")

    @contextmanager
    def away(self) -> Iterator[None]:
        self.shop.server.stop()
        yield
        self.shop.server.start()


@pytest.mark.guarantee("G1")
@pytest.mark.usefixtures("two_rows")
def test_changes_during_a_copy_count_once(shop: Database) -> None:
    """Rows are changed before they are copied, after that, and in a transaction that is open all the time."""
    with Copying(shop) as copying, shop.session(autocommit=False) as open_one:
        copying.until_rows(1)  # the transactions that are open at the beginning must end
        open_one.execute('UPDATE stock SET "left" = 1')
        copying.until_rows(4)
        open_one.execute("DELETE FROM stock WHERE id IN (2, 10)")
        open_one.execute("INSERT INTO stock VALUES (-1, 1), (11, 1)")
        copying.until_rows(6)
        open_one.commit()
        shop.run("UPDATE stock SET id = 20 WHERE id = 1")  # to those that are not yet copied
        shop.run("UPDATE stock SET id = -9 WHERE id = 9")  # and back
        shop.run("UPDATE stock SET id = -3 WHERE id = 3")
        shop.run("UPDATE stock SET id = 30 WHERE id = 8")
        shop.run('UPDATE stock SET "left" = 2 WHERE id = 5')
        shop.run("DELETE FROM stock WHERE id = 7")
        copying.until_rows(7)
        shop.run("DELETE FROM stock WHERE id = 20")
        shop.run('UPDATE stock SET "left" = 3')
        copying.until_end()
    assert applied(copying.found) == rows_of(shop)
    assert len(rows_of(shop)) == 8


@pytest.mark.guarantee("G1")
@pytest.mark.usefixtures("two_rows")
def test_rows_come_before_their_changes(shop: Database) -> None:
    with Copying(shop) as copying:
        copying.until_end()
        assert [(one.operation, one.row, one.index) for one in copying.found] == [
            ("read", Stock(one, 10 * one), 0) for one in range(1, 11)
        ]
        shop.run("DELETE FROM stock WHERE id = 3")
        copying.until_end()
        assert [one.operation for one in copying.found[10:]] == ["delete"]
        later = copying.at
    with Copying(shop, later) as again:
        again.until_end()
        assert again.found == []


@pytest.mark.guarantee("G1")
@pytest.mark.usefixtures("two_rows")
def test_a_copy_goes_on_where_it_was(shop: Database) -> None:
    """Another process takes over after some reads. The last two of them may not be committed."""
    chance, at, found = random.Random(1), None, list[ChangedRow[Stock]]()
    for number in range(25):
        with Copying(shop, at) as copying:
            places: list[tuple[Position | None, int]] = [(at, 0)]
            for _ in range(chance.randint(1, 4)):
                if chance.random() < 0.5:
                    shop.run('UPDATE stock SET "left" = %s WHERE id = %s', number, chance.randint(1, 10))
                copying.read()
                places.append((copying.at, len(copying.found)))
            at, count = places[max(-len(places), -chance.choice((1, 1, 2, 3)))]
            found += copying.found[:count]
    with Copying(shop, at) as last:
        last.until_end()
    assert applied(found + last.found) == rows_of(shop)


@pytest.mark.guarantee("G1")
def test_a_commit_that_is_not_visible_is_waited_for(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit waits for a standby. The log has it, and a snapshot does not. Its row is not copied meanwhile."""
    monkeypatch.setattr(peeking, "READ_RECORDS", 2)
    monkeypatch.setattr(tables, "COPY_SECONDS", 0.0)
    with Copying(shop) as copying, ThreadPoolExecutor() as threads:
        copying.until_rows(2)
        shop.run("ALTER SYSTEM SET synchronous_standby_names = 'away'")
        try:
            shop.run("SELECT pg_reload_conf()")
            first = threads.submit(shop.run, _MESSAGE)
            while not shop.run(_WAITING):  # the server takes the setting up at some time
                if first.done():
                    first = threads.submit(shop.run, _MESSAGE)
            waits = threads.submit(shop.run, 'UPDATE stock SET "left" = 5 WHERE id IN (1, 9)')
            while len(shop.run(_WAITING)) < 2:
                assert not waits.done()
            looks = calls_of("visible", monkeypatch)
            while len(looks) < 3 and copying.behind:
                copying.read()
            assert [one.operation for one in copying.found] in (["read"] * 2, ["read"] * 4)
            monkeypatch.setattr(peeking, "BUSY_SECONDS", 0.0)
            with pytest.raises(PostgresError, match=r"synchronous_standby_names .* WHERE backend_xid = '\d+'"):
                copying.until_end()
        finally:
            shop.run("ALTER SYSTEM RESET synchronous_standby_names")
            shop.run("SELECT pg_reload_conf()")
        first.result()
        waits.result()
    with Copying(shop, copying.at) as later:
        later.until_end()
    assert applied(copying.found + later.found) == rows_of(shop)
    assert rows_of(shop)[9] == 5


@pytest.fixture(scope="module")
def slow_server() -> Iterator[PostgresServer]:
    """Its log may stay in memory for ten seconds. It takes prepared transactions."""
    settings = {"wal_writer_delay": "10s", "wal_writer_flush_after": "0", "max_prepared_transactions": "2"}
    with PostgresServer(**settings) as server:
        yield server


@pytest.mark.guarantee("G1")
def test_a_copied_row_outlives_a_crash(slow_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that does not wait is visible before it is durable. A crash of the server takes it back."""
    monkeypatch.setattr(peeking, "READ_RECORDS", 2)
    monkeypatch.setattr(tables, "COPY_SECONDS", 0.0)
    monkeypatch.setattr(tables, "DURABLE_SECONDS", 0.1)
    shop, begin = stocked(6, slow_server), tables.RowCopier.begin
    with Copying(shop) as copying:
        with shop.session() as hasty:
            hasty.execute("SET synchronous_commit = off")
            hasty.execute("PREPARE adding AS INSERT INTO stock SELECT min(id) - 1, 0 FROM stock")

            def behind_a_commit(copier: tables.RowCopier, copy: Copy) -> Copy | None:
                monkeypatch.setattr(tables.RowCopier, "begin", begin)
                hasty.execute("EXECUTE adding")
                return begin(copier, copy)

            monkeypatch.setattr(tables.RowCopier, "begin", behind_a_commit)
            copying.until_rows(2)
        assert copying.at is not None
        assert copying.at.copy is not None
        ((durable,),) = shop.run("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8")
        assert durable >= copying.at.copy.until
    slow_server.crash()
    slow_server.start()
    with Copying(shop, copying.at) as later:
        later.until_end()
    assert applied(copying.found + later.found) == rows_of(shop)


def test_what_a_copy_waits_for_is_said(
    slow_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A transaction of another database that was prepared and forgotten."""
    monkeypatch.setattr(tables, "OPEN_SECONDS", 0.0)
    shop = stocked(1, slow_server)
    shop.run("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot_of(shop))
    with psycopg.connect(slow_server.conninfo) as other:
        other.execute("SELECT pg_current_xact_id()")
        other.execute("PREPARE TRANSACTION 'forgotten'")
    with Copying(shop) as copying:
        while not caplog.messages:
            copying.read()
        assert copying.at is None
        assert "the prepared transaction 'forgotten' of the database postgres" in caplog.messages[0]
        with psycopg.connect(slow_server.conninfo, autocommit=True) as other:
            other.execute("ROLLBACK PREPARED 'forgotten'")
        copying.until_end()
    assert copying.copied == 1


@pytest.mark.guarantee("G1")
def test_a_copy_waits_for_what_ran_before_it(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that committed before the slot began may be invisible. So all of them have ended first."""
    with shop.session(autocommit=False) as open_one:
        shop.run("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot_of(shop))
        open_one.execute('UPDATE stock SET "left" = 1 WHERE id = 5')
        asked = calls_of("first", monkeypatch)
        with Copying(shop) as copying:
            while len(asked) < 3 and not any(asked):
                copying.read()
            assert asked == [None] * 3
            assert (copying.found, copying.at, copying.behind) == ([], None, 1)
            open_one.commit()
            copying.until_end()
    assert applied(copying.found) == rows_of(shop)


@pytest.mark.guarantee("G1")
def test_a_table_that_is_being_rewritten_is_no_empty_one(shop: Database) -> None:
    with Copying(shop) as copying:
        while copying.at is None:
            copying.read()
        with shop.session(autocommit=False) as altering:
            altering.execute('ALTER TABLE stock ALTER COLUMN "left" TYPE bigint')
            copying.read()
            waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessShareLock'"
            while not shop.run(waiting):
                copying.read()
            altering.commit()
        copying.until_end()
    assert applied(copying.found) == rows_of(shop)


@pytest.mark.guarantee("G7")
@pytest.mark.usefixtures("two_rows")
def test_no_row_of_a_copy_is_late(shop: Database) -> None:
    """Rows have the time of the beginning. The low watermark waits for the last of them."""
    topology = mw.Topology("shop")
    source = stock(shop)
    topology.source("stock", ChangedRow[Stock], source, idle_after=mw.seconds(1), records_per_second=2)
    with running(topology) as harness:
        while len(harness.values("stock")) < 4:
            harness.advance_clock(mw.seconds(1))
        shop.run("INSERT INTO stock VALUES (-1, 0)")
        held = []
        while len(harness.values("stock")) < 11:
            held.append(harness.watermark("stock-reader"))
            harness.advance_clock(mw.seconds(1))
        while harness.watermark("stock-reader") == MIN_TIMESTAMP:
            harness.advance_clock(mw.seconds(1))
        records = harness.produced("stock")
    assert set(held) == {MIN_TIMESTAMP}
    rows = [one for one in records if one.value.operation == "read"]
    began = rows[0].timestamp
    assert {(one.timestamp, one.value.committed) for one in rows} == {(began, began)}
    assert all(one.timestamp >= began for one in records)


@pytest.mark.guarantee("G1")
@pytest.mark.usefixtures("two_rows")
def test_two_tables_are_copied_while_processes_die(shop: Database) -> None:
    """The server crashes, too, and rows change all the time."""
    shop.run('CREATE TABLE sold (id int PRIMARY KEY, "left" int)')
    shop.run("INSERT INTO sold SELECT 100 + id, id FROM stock")
    shop.run("ALTER PUBLICATION shop ADD TABLE sold")
    topology, chance = mw.Topology("shop"), random.Random(2)
    topology.source("stock", ChangedRow[Stock], stock(shop), records_per_second=8)
    others = stock(shop, table="sold", slot=f"{slot_of(shop)}_b")
    topology.source("sold", ChangedRow[Stock], others, records_per_second=8)
    with running(topology) as harness:

        def step() -> None:
            with suppress(psycopg.OperationalError):
                harness.crash() if chance.random() < 0.2 else harness.advance_clock(mw.milliseconds(200))

        for number in range(40):
            shop.run('UPDATE stock SET "left" = %s WHERE id = %s', number, chance.randint(1, 10))
            shop.run("DELETE FROM sold WHERE id = %s", chance.randint(1, 10))
            shop.run("UPDATE sold SET id = id - 100 WHERE id = %s", chance.randint(101, 110))
            step()
            if number == 15:
                shop.server.crash()
                shop.server.start()
        for table in ("stock", "sold"):
            shop.run(f"INSERT INTO {table} VALUES (999, 0)")
            while 999 not in {one.row.id for one in harness.values(table)}:
                with suppress(psycopg.OperationalError):
                    harness.advance_clock(mw.seconds(1))
        found = {table: harness.values(table) for table in ("stock", "sold")}
    for table, changes in found.items():
        assert applied(changes) == dict(shop.run(f'SELECT id, coalesce("left", 0) FROM {table}'))
        assert [one.operation for one in changes].count("read") >= 2
