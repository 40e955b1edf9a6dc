"""The sink into a database with a real PostgreSQL, whose sessions, locks and processes fail (6.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

import millwheel as mw
from millwheel.connectors import DatabaseError, Sink, SinkBatch, SinkWriter, database, postgres
from millwheel.sdk.errors import UsageError
from millwheel.testing.connectors import SinkContract
from tests.connectors.given import at, running
from tests.connectors.postgres_tables import Database
from tests.connectors.test_database import Sale, batch, place, with_writers
from tests.patience import until

APPEND = "INSERT INTO sales (item, cents) VALUES (%(item)s, %(cents)s)"
UPSERT = "INSERT INTO totals VALUES (%(item)s, %(cents)s) ON CONFLICT (item) DO UPDATE SET cents = excluded.cents"
UPDATE = "UPDATE totals SET cents = cents + %(cents)s WHERE item = %(item)s"


@pytest.fixture
def shop() -> Iterator[Database]:
    made = Database()
    made.run("CREATE TABLE sales (number serial, item text, cents int CHECK (cents >= 0))")
    made.run("CREATE TABLE totals (item text PRIMARY KEY, cents int)")
    made.run("INSERT INTO totals VALUES ('tea', 0)")
    yield made
    made.remove()


def sink(shop: Database, statement: str = APPEND) -> Sink[Any]:
    return database(postgres.connecting(shop.conninfo), statement)


def cents(shop: Database) -> list[int]:
    return [one for (one,) in shop.run("SELECT cents FROM sales ORDER BY number")]


@dataclass(frozen=True)
class Slow:
    """Connects with shorter limits than a minute."""

    conninfo: str
    limits: str

    def __call__(self) -> psycopg.Connection[Any]:
        return postgres.connecting(f"{self.conninfo} options='{self.limits}'")()


@pytest.mark.guarantee("G1", "G3", "G15")
class TestPostgres(SinkContract[Sale]):
    record_type = Sale

    @pytest.fixture(autouse=True)
    def _shop(self, shop: Database) -> None:
        self.shop = shop

    def make_sink(self) -> Sink[Sale]:
        return sink(self.shop)

    def stored(self) -> Sequence[int]:
        return cents(self.shop)

    def value(self, number: int) -> Sale:
        return Sale("tea", number)

    def number_of(self, value: Sale) -> int:
        return value.cents

    @contextmanager
    def away(self) -> Iterator[None]:
        self.shop.server.stop()
        yield
        self.shop.server.start()


def test_append_upsert_and_update(shop: Database) -> None:
    async def do(append: SinkWriter[Sale]) -> None:
        for statement, number in ((APPEND, 0), (UPSERT, 1), (UPDATE, 2)):
            writer = await sink(shop, statement).open_writer(place(shard=number + 1))
            await writer.write(batch(1, 10, 20))
            await writer.write(batch(1, 10, 20))
            await writer.write(batch(2, 5))
            await writer.close()

    with_writers(sink(shop), place(), do=do)
    assert cents(shop) == [10, 20, 5]
    assert shop.run("SELECT cents FROM totals") == [(5 + 10 + 20 + 5,)]


def test_shards_that_begin_at_once_make_one_table(shop: Database) -> None:
    async def do(*writers: SinkWriter[Sale]) -> None:
        opened = await asyncio.gather(*(sink(shop).open_writer(place(shard=number)) for number in range(1, 9)))
        for writer in opened:
            await writer.write(batch(1, 10))
            await writer.close()

    with_writers(sink(shop), do=do)
    assert cents(shop) == [10] * 8


def test_a_role_that_may_make_no_table_uses_one(shop: Database) -> None:
    async def do(*writers: SinkWriter[Sale]) -> None:
        await writers[0].write(batch(1, 10))

    with_writers(sink(shop), place(), do=do)
    shop.run(f"CREATE ROLE writes_{shop.name} LOGIN")
    shop.run(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO writes_{shop.name}")
    shop.run(f"GRANT USAGE ON SEQUENCE sales_number_seq TO writes_{shop.name}")
    restricted = shop.conninfo.replace("user=postgres", f"user=writes_{shop.name}")
    with_writers(database(postgres.connecting(restricted), APPEND), place(shard=1), do=do)
    shop.run("DROP TABLE millwheel_progress")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for schema public"):
        with_writers(database(postgres.connecting(restricted), APPEND), place(shard=2), do=do)
    shop.run(f"DROP OWNED BY writes_{shop.name}")
    shop.run(f"DROP ROLE writes_{shop.name}")
    assert cents(shop) == [10, 10]


@pytest.mark.guarantee("G3")
def test_a_paused_transaction_ends_and_changes_nothing(shop: Database) -> None:
    """A process stands still with the row locked. Its successor waits in vain. Then the server ends that session."""

    async def do(*writers: SinkWriter[Sale]) -> None:
        with shop.session(autocommit=False) as paused:
            paused.execute("SET idle_in_transaction_session_timeout = '1s'")
            paused.execute("UPDATE millwheel_progress SET batch = 1, id = '1', run = 1")
            paused.execute("INSERT INTO sales (item, cents) VALUES ('paused', 1)")
            fast: Sink[Sale] = database(Slow(shop.conninfo, "-c lock_timeout=100"), APPEND)
            present = await fast.open_writer(place())
            with pytest.raises(psycopg.errors.LockNotAvailable):
                await present.write(batch(1, 10))

            async def written() -> bool:
                with suppress(psycopg.errors.LockNotAvailable):
                    await present.write(batch(1, 10))
                    return True
                return False

            await until(written)
            await present.close()
            with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
                paused.commit()
            paused.close()

    with_writers(sink(shop), place(), do=do)
    assert cents(shop) == [10]


def test_limits_are_set_where_none_are(shop: Database) -> None:
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    with postgres.connecting(f"{shop.conninfo} options='-c statement_timeout=7s'")() as connection:
        assert [connection.execute(f"SHOW {name}").fetchone() for name in names] == [("20s",), ("7s",), ("1min",)]


def ends_session(shop: Database) -> None:
    shop.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid() AND datname IS NOT NULL"
    )


def crashes(shop: Database) -> None:
    shop.server.crash()
    shop.server.start()


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("fails", [ends_session, crashes])
def test_a_lost_connection_loses_and_repeats_nothing(shop: Database, fails: Callable[[Database], None]) -> None:
    topology = mw.Topology("shop")
    topology.source("sales", Sale).to("table", sink(shop), batch_records=3)
    with running(topology) as harness:
        for number in range(40):
            if number % 7 == 3:
                fails(shop)
            with suppress(psycopg.OperationalError):
                harness.send("sales", Sale("tea", number), at(number))
        for _ in range(3):
            with suppress(psycopg.OperationalError):
                harness.advance_clock(mw.seconds(60))
    assert cents(shop) == list(range(40))


@pytest.mark.guarantee("G1")
def test_a_commit_whose_answer_is_lost_counts_once(shop: Database) -> None:
    class CutConnection(psycopg.Connection[Any]):
        """It loses the answer of one commit."""

        cut = False

        def commit(self) -> None:
            super().commit()
            if CutConnection.cut:
                CutConnection.cut = False
                self.close()
                raise psycopg.OperationalError("the connection is lost")

    async def do(*writers: SinkWriter[Sale]) -> None:
        again: Sink[Sale] = database(lambda: CutConnection.connect(shop.conninfo), APPEND)
        writer = await again.open_writer(place())
        CutConnection.cut = True
        with pytest.raises(psycopg.OperationalError):
            await writer.write(batch(1, 10))
        await writer.close()
        writer = await again.open_writer(place())
        await writer.write(batch(1, 10))
        await writer.write(batch(2, 20))
        await writer.close()

    with_writers(sink(shop), do=do)
    assert cents(shop) == [10, 20]


async def never(*writers: SinkWriter[Any]) -> None:
    raise AssertionError


def test_a_wrong_password_is_named(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "wrong")
    with (
        shop.guest("right") as conninfo,
        pytest.raises(psycopg.OperationalError, match="password authentication failed"),
    ):
        with_writers(database(postgres.connecting(conninfo), APPEND), place(), do=never)


@pytest.mark.parametrize(
    "conninfo", ["host=db password=secret", "postgresql://me:secret@db/shop", "PASSWORD = 'secret'", "sslpassword=s"]
)
def test_a_password_in_the_program_is_refused(conninfo: str) -> None:
    with pytest.raises(UsageError, match="would be stored with the program") as refused:
        postgres.connecting(conninfo)
    assert "secret" not in str(refused.value)


def test_a_missing_table_is_named(shop: Database) -> None:
    async def do(writer: SinkWriter[Sale]) -> None:
        with pytest.raises(psycopg.errors.UndefinedTable, match='relation "gone" does not exist'):
            await writer.write(batch(1, 10))

    with_writers(sink(shop, "INSERT INTO gone VALUES (%(cents)s)"), place(), do=do)


@pytest.mark.guarantee("G1")
def test_a_renamed_column_stops_its_sink_until_it_is_back(shop: Database) -> None:
    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 10))
        shop.run("ALTER TABLE sales RENAME COLUMN cents TO price")
        for _ in range(2):
            with pytest.raises(psycopg.errors.UndefinedColumn, match='column "cents" of relation "sales" does not'):
                await writer.write(batch(2, 20))
        shop.run("ALTER TABLE sales ADD COLUMN cents int")
        shop.run("UPDATE sales SET cents = price")
        shop.run("ALTER TABLE sales ADD COLUMN vat int DEFAULT 19")
        await writer.write(batch(2, 20))

    with_writers(sink(shop), place(), do=do)
    assert cents(shop) == [10, 20]


def test_a_poison_record_is_named(shop: Database) -> None:
    async def do(writer: SinkWriter[Sale]) -> None:
        with pytest.raises(DatabaseError) as refused:
            await writer.write(batch(1, 10, -3, 20))
        assert "refuses record 2 of 3 in batch 1 of shop/sales-table, shard 0: CheckViolation" in str(refused.value)
        assert "Sale(item='tea', cents=-3)" in str(refused.value)
        assert cents(shop) == []
        with pytest.raises(DatabaseError, match=r"record 1 of 1 .* NumericValueOutOfRange"):
            await writer.write(SinkBatch(1, [(Sale("tea", 1 << 40), at(1))], "1", ""))
        await writer.write(batch(1, 10, 20))

    with_writers(sink(shop), place(), do=do)
    assert cents(shop) == [10, 20]


def test_what_only_the_commit_refuses_has_its_own_error(shop: Database) -> None:
    shop.run("CREATE TABLE once (cents int UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    async def do(writer: SinkWriter[Sale]) -> None:
        with pytest.raises(psycopg.errors.UniqueViolation, match=r"Key .cents.=.10. already exists"):
            await writer.write(batch(1, 10, 10))

    with_writers(sink(shop, "INSERT INTO once VALUES (%(cents)s)"), place(), do=do)
    assert shop.run("SELECT batch FROM millwheel_progress") == [(0,)]


@pytest.mark.guarantee("G1")
def test_a_database_that_was_set_back_is_noticed(shop: Database) -> None:
    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 10))
        shop.run("CREATE TABLE backup AS SELECT * FROM millwheel_progress")
        await writer.write(batch(2, 20))
        shop.run("DELETE FROM millwheel_progress")
        shop.run("INSERT INTO millwheel_progress SELECT * FROM backup")
        with pytest.raises(DatabaseError, match="has batch 1 of shop/sales-table, shard 0, and batch 3 comes next"):
            await writer.write(batch(3, 30))

    with_writers(sink(shop), place(), do=do)


def test_autocommit_is_refused(shop: Database) -> None:
    with pytest.raises(DatabaseError, match="without autocommit"):
        with_writers(database(lambda: psycopg.connect(shop.conninfo, autocommit=True), APPEND), place(), do=never)


def test_a_deleted_fork_can_be_made_again(shop: Database) -> None:
    """Both forks begin with a batch that was in flight, whose run is that of the original."""

    async def do(first: SinkWriter[Sale]) -> None:
        await first.write(batch(7, 70, after=""))
        own = await sink(shop).open_writer(place(run=2))
        await own.write(batch(1, 10))
        await own.close()
        again = await sink(shop).open_writer(place(run=1))
        with pytest.raises(
            DatabaseError, match=r"this one is over\. If that one was deleted, such as a fork"
        ) as refused:
            await again.write(batch(7, 70, after=""))
        await again.close()
        statement = str(refused.value).partition("go on: ")[2].partition(". What")[0]
        shop.run(statement)
        again = await sink(shop).open_writer(place(run=1))
        await again.write(batch(7, 70, after=""))
        await again.close()

    with_writers(sink(shop), place(run=1), do=do)
    assert cents(shop) == [70, 10, 70]
