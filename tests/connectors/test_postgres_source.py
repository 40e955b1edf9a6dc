"""The changes of a table of a real PostgreSQL: each once and in the order of commits, through all failures (G1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest

import millwheel as mw
from millwheel.connectors import BadRecord, Source
from millwheel.connectors.postgres import ChangedRow, Position, PostgresError, peeking
from millwheel.testing.connectors import SourceContract
from tests.connectors.given import running
from tests.connectors.postgres_changes import Sale, begun, caught_up, changes_of, in_short, sales, slot_of
from tests.connectors.postgres_tables import Database
from tests.patience import until


@pytest.fixture
def shop() -> Iterator[Database]:
    made = Database()
    made.run("CREATE TABLE sales (item text PRIMARY KEY, cents int)")
    made.run("CREATE PUBLICATION shop FOR TABLE sales")
    yield made
    made.remove()


@pytest.mark.guarantee("G1", "G13")
class TestChanges(SourceContract[ChangedRow[Sale], Position]):
    """All records are in one table, whose slot is the only split."""

    record_type = ChangedRow[Sale]
    splits_come = False
    keeps_records = False

    @pytest.fixture(autouse=True)
    def _shop(self, shop: Database) -> None:
        self.shop = shop
        begun(shop)

    def make_source(self) -> Source[ChangedRow[Sale], Position]:
        return sales(self.shop)

    def empty(self) -> None:
        """With a new slot, because a slot forgets what was committed, and may have a part of it."""
        self.shop.run("TRUNCATE sales")
        end_sessions = (
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = current_database()"
        )
        self.shop.run(f"{end_sessions} AND pid != pg_backend_pid()")
        self.shop.run("SELECT pg_drop_replication_slot(%s)", slot_of(self.shop))
        begun(self.shop)

    def write(self, split: int, numbers: Sequence[int]) -> None:
        self.shop.run("INSERT INTO sales SELECT one, one FROM unnest(%s::int[]) AS one", list(numbers))

    def number_of(self, value: ChangedRow[Sale]) -> int:
        return value.row.cents

    def write_bad(self, split: int) -> None:
        self.shop.run("TRUNCATE sales")

    @contextmanager
    def away(self) -> Iterator[None]:
        self.shop.server.stop()
        yield
        self.shop.server.start()


def test_operations_have_the_rows_before_and_after(shop: Database) -> None:
    found = changes_of(
        shop,
        "INSERT INTO sales VALUES ('tea', 1), ('milk', 2)",
        "UPDATE sales SET cents = 3 WHERE item = 'tea'",
        "UPDATE sales SET item = 'chai' WHERE item = 'tea'",
        "DELETE FROM sales WHERE item = 'chai'",
        "ALTER TABLE sales REPLICA IDENTITY FULL",
        "UPDATE sales SET cents = 4",
        "DELETE FROM sales",
    )
    assert all(isinstance(one, ChangedRow) for one in found)
    assert [(one.operation, one.before, one.after) for one in found if isinstance(one, ChangedRow)] == [
        ("insert", None, Sale("tea", 1)),
        ("insert", None, Sale("milk", 2)),
        ("update", None, Sale("tea", 3)),
        ("update", Sale("tea"), Sale("chai", 3)),
        ("delete", Sale("chai"), None),
        ("update", Sale("milk", 2), Sale("milk", 4)),
        ("delete", Sale("milk", 4), None),
    ]


@pytest.mark.guarantee("G15")
def test_transactions_come_in_the_order_of_their_commits(shop: Database) -> None:
    def interleaved() -> None:
        with shop.session(autocommit=False) as first, shop.session(autocommit=False) as second:
            first.execute("INSERT INTO sales VALUES ('a', 1)")
            second.execute("INSERT INTO sales VALUES ('b', 2)")
            first.execute("INSERT INTO sales VALUES ('c', 3)")
            second.commit()
            first.commit()
            second.execute("INSERT INTO sales VALUES ('d', 4)")
            second.rollback()

    found = changes_of(shop, interleaved)
    assert [in_short(one) for one in found] == [("insert", "b", 2), ("insert", "a", 1), ("insert", "c", 3)]
    places = [(one.lsn, one.index) for one in found if isinstance(one, ChangedRow)]
    assert places == sorted(places)
    assert [index for _, index in places] == [1, 1, 2]


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("messages", [10, 700, 20_000])
def test_a_position_has_the_same_records_whenever_it_is_read(
    shop: Database, messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reader reads on, and another one is opened for each position, also within a large transaction."""
    monkeypatch.setattr(peeking, "PEEK_MESSAGES", messages)
    position = begun(shop)
    begun(shop, "beside")
    shop.run("INSERT INTO sales SELECT 'x' || number, number FROM generate_series(1, 2500) AS number")
    for number in range(9):
        shop.run("INSERT INTO sales VALUES (%s, %s)", f"y{number}", number)
    shop.run("UPDATE sales SET cents = cents + 1 WHERE cents <= 1100")

    async def run() -> tuple[list[Any], list[Any]]:
        at: Position = position
        found: list[Any] = []
        while len(found) < 2500 + 9 + 1109:
            one = await sales(shop).open_reader(slot_of(shop), at)
            read = await until(one.read, holds=lambda read: read.records or read.behind == 0)
            assert read.records
            at = read.position
            found += read.records
            await one.close()
        whole: list[Any] = []
        kept = await sales(shop, slot="beside").open_reader("beside", None)
        while len(whole) < len(found):
            whole += (await kept.read()).records
        await kept.close()
        return found, whole

    found, whole = asyncio.run(run())
    assert found == whole
    expected = [f"x{one}" for one in range(1, 2501)] + [f"y{one}" for one in range(9)]
    assert [value.after.item for value, _ in found[: len(expected)]] == expected
    assert [value.index for value, _ in found[:2500]] == list(range(1, 2501))


@pytest.mark.guarantee("G1")
def test_the_slot_keeps_what_may_not_be_committed(shop: Database) -> None:
    """At a read, the position where the former one began is committed, and no later one for certain."""

    async def run() -> None:
        reader = await sales(shop).open_reader(slot_of(shop), None)
        _, position = await caught_up(reader)
        first = former = position
        for number in range(100):
            shop.run("INSERT INTO sales VALUES (%s, 1)", f"i{number}")
            read = await reader.read()
            ((confirmed,),) = shop.run("SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots")
            assert confirmed <= former.lsn  # where the read before began
            former, position = position, read.position
        assert confirmed > first.lsn
        await reader.close()

    shop_slots = shop.run("SELECT count(*) FROM pg_replication_slots")
    assert shop_slots == [(0,)]
    asyncio.run(run())


class Color(Enum):
    RED = "red"


class Everything(msgspec.Struct):
    small: int
    flag: bool
    real: float
    exact: Decimal
    rounded: float
    digits: str
    text: str
    day: date
    moment: datetime
    stamp: mw.Timestamp
    span: timedelta
    raw: bytes
    id: UUID
    numbers: list[int]
    words: tuple[str, ...]
    document: dict[str, Any]
    document_text: str
    color: Color
    nothing: str | None


def test_values_have_the_types_of_the_fields(shop: Database) -> None:
    shop.run("CREATE TYPE color AS ENUM ('red', 'blue')")
    shop.run(
        "CREATE TABLE everything (small int2, flag bool, real float8, exact numeric, rounded numeric, digits numeric, "
        "text text, day date, moment timestamptz, stamp timestamptz, span interval, raw bytea, id uuid PRIMARY KEY, "
        "numbers int[], words text[], document jsonb, document_text jsonb, color color, nothing text, left_out inet)"
    )
    shop.run("ALTER PUBLICATION shop ADD TABLE everything")
    shop.run(f"ALTER DATABASE {shop.name} SET timezone = 'Asia/Tokyo'")
    shop.run(f"ALTER DATABASE {shop.name} SET datestyle = 'German'")
    shop.run(f"ALTER DATABASE {shop.name} SET intervalstyle = 'iso_8601'")
    (found,) = changes_of(
        shop,
        "INSERT INTO everything VALUES (7, true, 1.5, 2.50, 2.5, 2.50, 'ü''\"\\n', '2026-02-03', '2026-02-03 12:00Z', "
        "'2026-02-03 12:00Z', '1 day 2 s', '\\x00ff', '12345678-1234-5678-1234-567812345678', '{1,2}', "
        "'{\"a,b\",c}', '{\"a\": [1]}', '{\"a\": [1]}', 'red', NULL, '10.0.0.1')",
        kind=Everything,
        table="everything",
    )
    noon = datetime(2026, 2, 3, 12, tzinfo=UTC)
    assert isinstance(found, ChangedRow)
    assert found.after == Everything(
        7,
        True,
        1.5,
        Decimal("2.50"),
        2.5,
        "2.50",
        "ü'\"\\n",
        date(2026, 2, 3),
        noon,
        mw.Timestamp(1_770_120_000_000_000),
        timedelta(days=1, seconds=2),
        b"\x00\xff",
        UUID("12345678-1234-5678-1234-567812345678"),
        [1, 2],
        ("a,b", "c"),
        {"a": [1]},
        '{"a": [1]}',
        Color.RED,
        None,
    )


def test_texts_of_another_encoding() -> None:
    shop = Database("LATIN1")
    try:
        shop.run("CREATE TABLE sales (item text PRIMARY KEY, cents int)")
        shop.run("CREATE PUBLICATION shop FOR TABLE sales")
        (found,) = changes_of(shop, "INSERT INTO sales VALUES ('Käse', 1)")
        assert in_short(found) == ("insert", "Käse", 1)
    finally:
        shop.remove()


@pytest.mark.guarantee("G13")
def test_a_read_of_large_rows_is_bounded(shop: Database) -> None:
    shop.run("ALTER TABLE sales ALTER COLUMN item SET STORAGE EXTERNAL")
    shop.run("ALTER TABLE sales DROP CONSTRAINT sales_pkey, REPLICA IDENTITY FULL")
    position = begun(shop)
    shop.run("INSERT INTO sales SELECT repeat('x', 300000), number FROM generate_series(1, 45) AS number")

    async def run() -> list[int]:
        reader = await sales(shop).open_reader(slot_of(shop), position)
        counts: list[int] = []
        while sum(counts) < 45:
            counts.append(len((await reader.read()).records))
        await reader.close()
        return counts

    counts = asyncio.run(run())
    assert max(counts) == 14  # 4 MiB, and one row more


def test_a_table_may_get_columns_and_lose_some(shop: Database) -> None:
    found = changes_of(
        shop,
        "INSERT INTO sales VALUES ('tea', 1)",
        "ALTER TABLE sales ADD COLUMN vat int DEFAULT 19",
        "INSERT INTO sales VALUES ('milk', 2)",
        "ALTER TABLE sales DROP COLUMN cents",
        "INSERT INTO sales VALUES ('water')",
        "ALTER TABLE sales RENAME COLUMN item TO name",
        "INSERT INTO sales VALUES ('juice')",
    )
    assert [in_short(one) for one in found[:3]] == [("insert", "tea", 1), ("insert", "milk", 2), ("insert", "water", 0)]
    (last,) = found[3:]
    assert isinstance(last, BadRecord)
    assert last.error == "ValidationError: Object missing required field `item`"
    assert last.raw == b"juice\t19"
    assert "change 1" in last.place


def test_what_cannot_be_read_is_a_bad_record(shop: Database) -> None:
    shop.run("CREATE TABLE notes (id int PRIMARY KEY, text text, day date)")
    shop.run("ALTER TABLE notes ALTER COLUMN text SET STORAGE EXTERNAL")
    shop.run("ALTER PUBLICATION shop ADD TABLE notes")

    class Note(msgspec.Struct):
        id: int
        text: str
        day: date | None

    found = changes_of(
        shop,
        "INSERT INTO notes SELECT 1, repeat('x', 9000), NULL",
        "UPDATE notes SET id = 2",
        "DELETE FROM notes",
        "INSERT INTO notes VALUES (3, '', 'infinity')",
        "TRUNCATE notes",
        "ALTER TABLE notes REPLICA IDENTITY FULL",
        "INSERT INTO notes SELECT 4, repeat('y', 9000), NULL",
        "UPDATE notes SET id = 5",
        kind=Note,
        table="notes",
    )
    assert [one for one in found if isinstance(one, ChangedRow)] == [found[0], found[5], found[6]]
    update = found[6]
    assert isinstance(update, ChangedRow)
    assert update.after == Note(5, "y" * 9000, None)
    errors = [one.error for one in found if isinstance(one, BadRecord)]
    for error, part in zip(
        errors,
        (
            "the replica identity of public.notes has only id, and ",
            "the replica identity of public.notes has only id, and ",
            "DataError: date too large",
            "TRUNCATE removed all rows of public.notes",
        ),
        strict=True,
    ):
        assert part in error
    assert "ALTER TABLE public.notes REPLICA IDENTITY FULL" in errors[0]


def test_a_large_value_that_an_update_leaves_is_asked_for(shop: Database) -> None:
    shop.run("ALTER TABLE sales ADD COLUMN text text")
    shop.run("ALTER TABLE sales ALTER COLUMN text SET STORAGE EXTERNAL")

    class Described(msgspec.Struct):
        item: str
        text: str = ""

    work = ("INSERT INTO sales SELECT 'tea', 1, repeat('x', 9000)", "UPDATE sales SET cents = 2")
    found = changes_of(shop, *work, kind=Described)
    (bad,) = (one for one in found if isinstance(one, BadRecord))
    assert "the update did not change the large value of text" in bad.error
    assert "ALTER TABLE public.sales REPLICA IDENTITY FULL" in bad.error
    shop.run("DELETE FROM sales")
    assert len(changes_of(shop, *work)) == 2  # a type without that field needs nothing


@pytest.mark.guarantee("G1")
def test_a_wrong_password_is_named_and_loses_nothing(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    position = begun(shop)
    shop.run("INSERT INTO sales VALUES ('tea', 7)")

    async def read(conninfo: str) -> list[Any]:
        reader = await sales(shop, conninfo=conninfo).open_reader(slot_of(shop), position)
        try:
            return (await caught_up(reader))[0]
        finally:
            await reader.close()

    with shop.guest("right") as conninfo:
        monkeypatch.setenv("PGPASSWORD", "guess")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed") as refused:
            asyncio.run(read(conninfo))
        assert "guess" not in str(refused.value)
        monkeypatch.setenv("PGPASSWORD", "right")
        assert [one.after for one in asyncio.run(read(conninfo))] == [Sale("tea", 7)]


def test_tables_beside_it_are_left_out(shop: Database) -> None:
    shop.run("CREATE SCHEMA other")
    shop.run("CREATE TABLE other.sales (item text PRIMARY KEY)")
    shop.run("ALTER PUBLICATION shop ADD TABLE other.sales")
    work = ("INSERT INTO sales VALUES ('tea', 1)", "INSERT INTO other.sales VALUES ('milk')", "TRUNCATE other.sales")
    assert [in_short(one) for one in changes_of(shop, *work)] == [("insert", "tea", 1)]
    assert len(changes_of(shop, table="other.sales", slot=f"{slot_of(shop)}_b")) == 0


@pytest.mark.guarantee("G3")
def test_a_slot_in_use_is_waited_for(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    position = begun(shop)
    shop.run("INSERT INTO sales VALUES ('tea', 1)")

    async def run() -> None:
        reader = await sales(shop).open_reader(slot_of(shop), position)
        with closing(psycopg.connect(f"{shop.conninfo} replication=database", autocommit=True)) as other:
            start = f"START_REPLICATION SLOT {slot_of(shop)} LOGICAL 0/0 (proto_version '1', publication_names 'shop')"
            other.pgconn.exec_(start.encode())
            for _ in range(5):
                read = await reader.read()
                assert (read.records, read.position, read.behind) == ([], position, 1)
            monkeypatch.setattr(peeking, "BUSY_SECONDS", 0.0)
            with pytest.raises(PostgresError, match="is in use by the process"):
                await until(reader.read, holds=lambda read: read.records)
            await reader.close()
        monkeypatch.setattr(peeking, "BUSY_SECONDS", 60.0)
        reader = await sales(shop).open_reader(slot_of(shop), position)
        assert [in_short(value) for value in (await caught_up(reader))[0]] == [("insert", "tea", 1)]
        await reader.close()

    asyncio.run(run())


def test_reads_do_not_wait_for_the_server(shop: Database) -> None:
    """A slot begins when the open transactions have ended. Reads find nothing before, and a closed reader lets go."""

    working = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_create%' AND state = 'active'"

    async def run() -> None:
        with shop.session(autocommit=False) as long:
            long.execute("INSERT INTO sales VALUES ('early', 1)")
            for _ in range(2):
                reader = await sales(shop).open_reader(slot_of(shop), None)
                for _ in range(3):
                    read = await reader.read()
                    assert (len(read.records), read.behind) == (0, 1)
                await reader.close()
                await until(lambda: shop.run(working), holds=lambda found: found == [(0,)])
            reader = await sales(shop).open_reader(slot_of(shop), None)
            await reader.read()
            long.commit()
        await until(lambda: shop.run(working), holds=lambda found: found == [(0,)])
        assert (await reader.read()).behind == 1  # what was found out before says nothing of now
        assert (await caught_up(reader))[0] == []
        shop.run("INSERT INTO sales VALUES ('tea', 1)")
        assert [in_short(value) for value in (await caught_up(reader))[0]] == [("insert", "tea", 1)]
        await reader.close()

    asyncio.run(run())


def cents_of(change: ChangedRow[Sale]) -> int:
    return change.row.cents


def test_a_change_whose_time_fails_has_its_lsn(shop: Database) -> None:
    topology = mw.Topology("shop")
    topology.source(
        "sales", ChangedRow[Sale], sales(shop), timestamp=lambda one: mw.Timestamp(one.row.cents), bad="unreadable"
    )
    begun(shop)
    with running(topology) as harness:
        shop.run("INSERT INTO sales VALUES ('tea', 1), ('milk', 2)")
        while not harness.values("unreadable"):  # the database takes real time
            harness.advance_clock(mw.seconds(1))
        places = [bad.place for bad in harness.values("unreadable")]
    assert [place.partition(", ")[2] for place in places] == ["change 1", "change 2"]
    assert all(place.startswith("LSN 0/") for place in places)


def ends_sessions(shop: Database) -> None:
    shop.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid() AND datname IS NOT NULL"
    )


def crashes(shop: Database) -> None:
    shop.server.crash()
    shop.server.start()


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("fails", [ends_sessions, crashes])
def test_a_topology_gets_each_change_once(shop: Database, fails: Callable[[Database], None]) -> None:
    """Sessions end, the server crashes, and processes of the topology too, which lose what was not committed."""
    topology = mw.Topology("shop")
    changes = topology.source("sales", ChangedRow[Sale], sales(shop), bad="unreadable")
    changes.map(cents_of).named("cents")
    begun(shop)
    with running(topology) as harness:
        for number in range(40):
            shop.run("INSERT INTO sales VALUES (%s, %s)", f"i{number}", number)
            if number == 20:
                shop.run("TRUNCATE sales")
            if number % 9 == 4:
                fails(shop)
            with suppress(psycopg.OperationalError):
                if number % 13 == 7:
                    harness.crash()
                else:
                    harness.advance_clock(mw.seconds(1))
        while len(harness.values("cents")) < 40:  # the database takes real time
            with suppress(psycopg.OperationalError):
                harness.advance_clock(mw.seconds(1))
        assert harness.values("cents") == list(range(40))
        assert [bad.error.partition(" ")[0] for bad in harness.values("unreadable")] == ["TRUNCATE"]
        assert harness.state("sales-reader", slot_of(shop)).records == 41
