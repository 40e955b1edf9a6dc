"""Which tables can be copied, in which order, and errors that say what to do (G1, G13)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import psycopg
import pytest

from millwheel.connectors import postgres
from millwheel.connectors.postgres import ChangedRow, PostgresError, peeking, tables
from millwheel.sdk.errors import UsageError
from tests.connectors.postgres_changes import slot_of
from tests.connectors.postgres_copies import Copying, Stock, applied, rows_of, stock, stocked
from tests.connectors.postgres_tables import Database


@pytest.fixture
def shop() -> Iterator[Database]:
    made = stocked(10)
    yield made
    made.remove()


@pytest.fixture
def two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read has two rows, in a transaction of its own."""
    monkeypatch.setattr(peeking, "READ_RECORDS", 2)
    monkeypatch.setattr(tables, "COPY_SECONDS", 0.0)


def error_of(shop: Database, **others: Any) -> str:
    with Copying(shop, **others) as copying, pytest.raises(PostgresError) as refused:
        copying.until_end()
    return str(refused.value)


@dataclass(frozen=True)
class Refused:
    work: str
    part: str


@pytest.mark.parametrize(
    "refused",
    [
        Refused("ALTER TABLE stock DROP CONSTRAINT stock_pkey, REPLICA IDENTITY FULL", "by initial='none'"),
        Refused(
            "ALTER TABLE stock ALTER day SET NOT NULL, ADD CONSTRAINT days UNIQUE (day), "
            "REPLICA IDENTITY USING INDEX days",
            'ALTER TABLE "public"."stock" REPLICA IDENTITY DEFAULT, or FULL',
        ),
    ],
    ids=["no key", "another index"],
)
def test_a_table_that_cannot_be_copied_is_refused(shop: Database, refused: Refused) -> None:
    shop.run("DELETE FROM stock")
    for work in refused.work.split(", REPLICA "):
        shop.run(work if work.startswith("ALTER") else f"ALTER TABLE stock REPLICA {work}")
    assert refused.part in error_of(shop)
    assert shop.run("SELECT count(*) FROM pg_replication_slots") == [(0,)]


def test_a_role_that_may_not_see_all_rows_is_refused(shop: Database) -> None:
    role = f"reader_{shop.name}"
    shop.run(f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        conninfo = shop.conninfo.replace("user=postgres", f"user={role}")
        assert f'GRANT SELECT ON "public"."stock" TO "{role}"' in error_of(shop, conninfo=conninfo)
        shop.run(f"GRANT SELECT ON stock TO {role}")
        shop.run("ALTER TABLE stock ENABLE ROW LEVEL SECURITY")
        assert "also needs BYPASSRLS" in error_of(shop, conninfo=conninfo)
        shop.run("ALTER TABLE stock DISABLE ROW LEVEL SECURITY")
        with Copying(shop, conninfo=conninfo) as copying:
            copying.until_end()
        assert copying.copied == 10
    finally:
        shop.run(f"DROP OWNED BY {role}")
        shop.run(f"DROP ROLE {role}")


@pytest.mark.usefixtures("two_rows")
def test_columns_may_come_and_go_during_a_copy(shop: Database) -> None:
    with Copying(shop) as copying:
        copying.until_rows(4)
        shop.run("ALTER TABLE stock ADD COLUMN vat int DEFAULT 19, DROP COLUMN day")
        copying.until_rows(6)
        shop.run('ALTER TABLE stock DROP COLUMN "left"')
        shop.run("INSERT INTO stock VALUES (11)")
        copying.until_end()
    assert applied(copying.found) == {**{one: 10 * one for one in range(1, 7)}, **dict.fromkeys(range(7, 12), 0)}


@pytest.mark.guarantee("G1")
@pytest.mark.usefixtures("two_rows")
@pytest.mark.parametrize("again", [False, True], ids=["the same process", "another one"])
def test_another_key_during_a_copy_is_an_error(shop: Database, again: bool) -> None:
    with Copying(shop) as copying:
        copying.until_rows(4)
        shop.run("ALTER TABLE stock ALTER COLUMN id TYPE text")
        shop.run("INSERT INTO stock VALUES ('11')")
        if not again:
            with pytest.raises(PostgresError, match="was changed while its rows were copied"):
                copying.until_end()
            return
    with Copying(shop, copying.at) as later, pytest.raises(PostgresError, match=r"it was \(id pg_catalog.int4\)"):
        later.until_end()


@pytest.mark.guarantee("G1")
@pytest.mark.usefixtures("two_rows")
def test_a_key_of_another_name_is_no_bad_record(shop: Database) -> None:
    """Its changes have the new name. What is left out as bad would be passed for ever."""
    with Copying(shop) as copying:
        copying.until_rows(4)
        shop.run("ALTER TABLE stock RENAME COLUMN id TO number")
        shop.run("INSERT INTO stock VALUES (-1, 1)")
        with pytest.raises(PostgresError, match="was changed while its rows were copied"):
            copying.until_end()
    assert copying.errors == []


@pytest.mark.usefixtures("two_rows")
def test_old_rows_without_their_key_are_bad(shop: Database) -> None:
    with Copying(shop) as copying:
        copying.until_rows(4)
        shop.run("UPDATE stock SET day = '2026-01-01'::date + id")
        shop.run("ALTER TABLE stock ALTER day SET NOT NULL, ADD CONSTRAINT days UNIQUE (day)")
        shop.run("ALTER TABLE stock REPLICA IDENTITY USING INDEX days")
        shop.run("DELETE FROM stock WHERE id = 3")
        shop.run("ALTER TABLE stock REPLICA IDENTITY DEFAULT")
        copying.until_end()
    (error,) = copying.errors
    assert "the old row has no primary key" in error


class Named(msgspec.Struct):
    group: str
    part: int = msgspec.field(name="50% part")
    text: str = ""


@pytest.mark.guarantee("G1")
@pytest.mark.usefixtures("two_rows")
@pytest.mark.parametrize("collation", ["C", "und-x-icu"])
def test_the_database_knows_the_order_of_keys(shop: Database, collation: str) -> None:
    """Keys of several columns, in another order than that of the columns, with odd names and any collation."""
    if not shop.run("SELECT 1 FROM pg_collation WHERE collname = %s", collation):
        pytest.skip(f"this server has no collation {collation}")
    shop.run('CREATE TABLE parts (text text, "50% part" int, "group" text COLLATE "' + collation + '")')
    shop.run('ALTER TABLE parts ADD PRIMARY KEY ("group", "50% part")')
    shop.run("ALTER PUBLICATION shop ADD TABLE parts")
    names = ["a", "B", "ä", "Z", "%s", "it's", "\\", "_"]
    for name in names:
        shop.run("INSERT INTO parts VALUES ('before', 1, %s), ('before', 10, %s)", name, name)
    with Copying(shop, kind=Named, table="parts") as copying:
        for count in range(2, 16, 2):
            copying.until_rows(count)
            shop.run("UPDATE parts SET text = %s", str(count))
        copying.until_end()
    rows: dict[tuple[str, int], str] = {}
    for one in copying.found:
        assert isinstance(one, ChangedRow)
        key = one.row.group, one.row.part
        assert (key in rows) == (one.operation == "update")
        rows[key] = one.row.text
    assert rows == {(name, part): "14" for name in names for part in (1, 10)}
    order = [(one.row.group, one.row.part) for one in copying.found if one.operation == "read"]
    assert order == shop.run('SELECT "group", "50% part" FROM parts ORDER BY 1, 2')


@pytest.mark.guarantee("G1")
@pytest.mark.usefixtures("two_rows")
def test_an_order_of_another_schema_is_that_of_the_key(shop: Database) -> None:
    """The operators of the key's type are not on the role's path. Those of texts have another order."""
    if not shop.run("SELECT 1 FROM pg_available_extensions WHERE name = 'citext'"):
        pytest.skip("this server has no citext")
    shop.run("CREATE SCHEMA elsewhere")
    shop.run("CREATE EXTENSION citext SCHEMA elsewhere")
    shop.run('CREATE TABLE words ("group" elsewhere.citext PRIMARY KEY, text text)')
    shop.run("INSERT INTO words VALUES ('a'), ('B'), ('c'), ('D')")
    shop.run("ALTER PUBLICATION shop ADD TABLE words")

    class Word(msgspec.Struct):
        group: str
        text: str | None = None

    with Copying(shop, kind=Word, table="words") as copying:
        copying.until_rows(2)
    for text in "xyz":
        shop.run("UPDATE words SET text = %s WHERE \"group\" = 'a'", text)
    with Copying(shop, copying.at, kind=Word, table="words") as later:
        later.until_end()
    assert [(one.operation, one.row.group, one.row.text) for one in copying.found + later.found] == [
        ("read", "a", None), ("read", "B", None), ("update", "a", "x"), ("update", "a", "y"), ("update", "a", "z"),
        ("read", "c", None), ("read", "D", None),
    ]  # fmt: skip


@pytest.mark.usefixtures("two_rows")
def test_what_a_publication_no_longer_has_is_not_copied(shop: Database) -> None:
    """The rows that it left out least of all."""
    if shop.run("SHOW server_version_num") < [("150000",)]:
        pytest.skip("publications of this server have whole tables")
    shop.run("ALTER PUBLICATION shop SET TABLE stock WHERE (id < 5)")
    with Copying(shop) as copying:
        copying.until_rows(2)
        shop.run("ALTER PUBLICATION shop DROP TABLE stock")
        with pytest.raises(PostgresError, match=r'ALTER PUBLICATION "shop" ADD TABLE "public"\."stock"'):
            copying.until_end()
    assert copying.copied == 2


@pytest.mark.usefixtures("two_rows")
def test_a_copy_has_what_the_publication_has(shop: Database) -> None:
    if shop.run("SHOW server_version_num") < [("150000",)]:
        pytest.skip("publications of this server have whole tables")
    shop.run("ALTER PUBLICATION shop SET TABLE stock (id) WHERE (id % 3 != 0)")
    with Copying(shop) as copying:
        copying.until_rows(2)
        shop.run("INSERT INTO stock VALUES (11, 11), (12, 12)")
        copying.until_end()
    assert applied(copying.found) == dict.fromkeys([1, 2, 4, 5, 7, 8, 10, 11], 0)


@pytest.mark.usefixtures("two_rows")
def test_parts_of_a_table_are_copied_as_one(shop: Database) -> None:
    shop.run('CREATE TABLE parted (id int PRIMARY KEY, "left" int) PARTITION BY HASH (id)')
    for number in range(3):
        shop.run(f"CREATE TABLE part{number} PARTITION OF parted FOR VALUES WITH (MODULUS 3, REMAINDER {number})")
    shop.run("INSERT INTO parted SELECT one, 1 FROM generate_series(1, 9) AS one")
    shop.run("CREATE PUBLICATION parts FOR TABLE parted WITH (publish_via_partition_root = true)")
    with Copying(shop, table="parted", publication="parts") as copying:
        copying.until_rows(4)
        shop.run('UPDATE parted SET "left" = 2')
        copying.until_end()
    assert applied(copying.found) == dict.fromkeys(range(1, 10), 2)


@pytest.mark.guarantee("G13")
def test_a_read_of_large_rows_is_bounded(shop: Database) -> None:
    shop.run("ALTER TABLE stock ADD COLUMN text text")
    shop.run("ALTER TABLE stock ALTER COLUMN text SET STORAGE EXTERNAL")
    shop.run("INSERT INTO stock SELECT one, one, NULL, repeat('x', 300000) FROM generate_series(11, 45) AS one")

    class Large(msgspec.Struct):
        id: int
        text: str | None

    counts = []
    with Copying(shop, kind=Large) as copying:
        while copying.behind:
            before = copying.copied
            copying.read()
            counts.append(copying.copied - before)
    assert sum(counts) == 45
    assert max(counts) == 24  # ten small rows, 4 MiB, and one row more


def test_a_database_that_is_read_only_can_be_copied(shop: Database) -> None:
    shop.run(f"ALTER DATABASE {shop.name} SET default_transaction_isolation = 'serializable'")
    shop.run(f"ALTER DATABASE {shop.name} SET default_transaction_read_only = on")
    with Copying(shop) as copying:
        copying.until_end()
    assert applied(copying.found) == rows_of(shop)


def test_how_a_source_begins_is_a_part_of_it(shop: Database) -> None:
    assert stock(shop).identity() == f"rows and changes of public.stock from the slot {slot_of(shop)}"
    with pytest.raises(UsageError, match="initial is 'copy' or 'none', not 'all'"):
        postgres.changes(Stock, table="stock", slot="s", publication="p", initial="all")  # type: ignore[arg-type]


def test_a_slot_alone_copies_nothing(shop: Database) -> None:
    with psycopg.connect(shop.conninfo, autocommit=True) as session:
        session.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot_of(shop)])
    shop.run("INSERT INTO stock VALUES (11, 11)")
    with Copying(shop) as copying:  # what came between the slot and the copy is in the copy alone
        copying.until_end()
    assert [one.operation for one in copying.found] == ["read"] * 11
