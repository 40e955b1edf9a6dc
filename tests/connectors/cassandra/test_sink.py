"""The sink into a table of Cassandra, with a real node: rows, errors and what to do about them (6.1)."""

from __future__ import annotations

import re
import sys
import types
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec
import pytest

import millwheel as mw
from millwheel.connectors import SinkBatch, SinkShard, cassandra
from millwheel.connectors.cassandra import CassandraError
from millwheel.connectors.cassandra.writer import TableWriter
from tests.connectors.cassandra.given import KEYSPACE, Shop, with_writers, written
from tests.connectors.given import at, running
from tests.documents.blocks import blocks_of
from tests.house.tree import ROOT

PLACE = SinkShard("shop/sales-table", 0, 1, 1)


def fails(shop: Shop, sink: Any, match: str, *sales: Any) -> None:
    """The writer does not open, or does not write a batch of these records, with this error."""

    async def do(writer: TableWriter[Any]) -> None:
        await writer.write(shop.batch(1, *sales))

    with pytest.raises(CassandraError, match=match):
        with_writers(sink, shop.place(), do=do)


def test_a_topology_keeps_the_newest_row_of_each_key(shop: Shop) -> None:
    topology = mw.Topology(shop.name)
    topology.source("sales", type(shop.sale("a"))).to("sales-table", shop.sink(), batch_records=2)
    with running(topology) as harness:
        for second, (item, cents) in enumerate([("tea", 1), ("pot", 2), ("tea", 3), ("tea", 4), ("cup", 5)]):
            harness.send("sales", shop.sale(item, cents), at(second))
        harness.send("sales", shop.sale("pot", gone=True), at(9))
        harness.advance_clock(mw.seconds(60))
    assert shop.rows("cents") == {"tea": 4, "cup": 5}


def test_none_empties_a_column_and_unset_leaves_it(shop: Shop) -> None:
    shop.run(f"INSERT INTO {KEYSPACE}.sales (test, shelf, item, made_by) VALUES (%s, 3, 'tea', 'other')", shop.name)
    written(
        shop,
        shop.sink(),
        [shop.sale("tea", 1, note="new"), shop.sale("tea", note="newer")],
        [shop.sale("tea", None)],
    )
    assert shop.rows("cents, note, made_by") == {"tea": (None, "newer", "other")}


def test_a_row_that_is_written_behind_its_deletion_is_new(shop: Shop) -> None:
    written(shop, shop.sink(), [shop.sale("tea", 1, note="old")], [shop.sale("tea", gone=True), shop.sale("tea", 2)])
    assert shop.rows() == {"tea": (2, None)}


def test_many_rows_of_a_partition_are_written(shop: Shop) -> None:
    written(shop, shop.sink(), [shop.sale(f"{number:03}", number) for number in range(250)])
    assert shop.rows("cents") == {f"{number:03}": number for number in range(250)}


def test_rows_live_as_long_as_the_program_says(shop: Shop) -> None:
    written(shop, shop.sink(ttl=mw.hours(1)), [shop.sale("tea", 1)])
    assert 0 < shop.rows("ttl(cents)")["tea"] <= 3_600


class Kind(Enum):
    NEW = "new"


class Kinds(msgspec.Struct, rename="camel"):
    test_name: str
    number: int
    price: Decimal
    seen_at: datetime
    moment: mw.Timestamp
    micros: mw.Timestamp
    day: date
    hour: time
    share: float
    sure: bool
    raw: bytes
    kind: Kind
    size: Literal["s", "l"]
    owner: uuid.UUID
    tags: set[str]
    counts: dict[str, int]
    steps: list[int]
    pair: tuple[int, str]
    nested: dict[str, list[int]]
    address: str
    note: str | None = None


def test_fields_of_all_kinds_become_columns(shop: Shop) -> None:
    shop.run(
        f"CREATE TABLE IF NOT EXISTS {KEYSPACE}.kinds ("
        '"testName" text, number varint, price decimal, "seenAt" timestamp, moment timestamp, micros bigint, day date, '
        "hour time, share double, sure boolean, raw blob, kind text, size ascii, owner uuid, tags set<text>, "
        "counts map<text, int>, steps frozen<list<int>>, pair tuple<int, text>, nested text, address inet, note text, "
        'PRIMARY KEY ("testName", price))'
    )
    owner, day = uuid.uuid4(), datetime(2026, 1, 1, 12, 0, 0, 123_000, UTC)
    row = Kinds(
        shop.name, 10**30, Decimal("1.50"), day, at(1), at(2), day.date(), time(1, 2, 3), 0.5, True, b"\x00", Kind.NEW,
        "s", owner, {"a", "b"}, {"a": 1}, [3, 1], (1, "x"), {"b": [2]}, "127.0.0.1",
    )  # fmt: skip
    sink = cassandra.sink(f"{KEYSPACE}.kinds", Kinds, settings=shop.settings())

    async def do(writer: TableWriter[Any]) -> None:
        # Equal keys, with another scale: one row.
        both = [(row, at(1)), (msgspec.structs.replace(row, price=Decimal("1.5"), number=7), at(2))]
        await writer.write(SinkBatch(1, both, "1", ""))

    with_writers(sink, shop.place(), do=do)
    names = 'number, price, "seenAt", moment, micros, day, hour, share, sure, raw, kind, size, owner, tags, counts'
    ((*found,),) = shop.run(
        f'SELECT {names}, steps, pair, nested, address, note FROM {KEYSPACE}.kinds WHERE "testName" = %s', shop.name
    )
    assert found[:5] == [7, Decimal("1.5"), day.replace(tzinfo=None), datetime(2026, 1, 1, 12, 0, 1), at(2)]
    assert (found[5].date(), found[6].time()) == (day.date(), time(1, 2, 3))
    assert found[7:13] == [0.5, True, b"\x00", "new", "s", owner]
    assert (set(found[13]), dict(found[14]), list(found[15]), found[16]) == ({"a", "b"}, {"a": 1}, [3, 1], (1, "x"))
    assert found[17:] == ['{"b":[2]}', "127.0.0.1", None]


class Total(TypedDict):
    test: str
    shelf: int
    item: str
    cents: int


def test_a_typed_dict_is_a_row(shop: Shop) -> None:
    sink = cassandra.sink(f"{KEYSPACE}.sales", Total, settings=shop.settings())
    written(shop, sink, [Total(test=shop.name, shelf=1, item="tea", cents=3)])  # type: ignore[list-item]
    assert shop.rows("cents") == {"tea": 3}


@pytest.mark.guarantee("G1")
def test_a_record_that_makes_no_row_is_named(shop: Shop) -> None:
    sale = shop.sale
    fails(shop, shop.sink(), r"record 2 of 2, Sale\(.*cents.*invalid type.*nothing", sale("a", 1), sale("b", 1 << 40))
    wrong = shop.sale("c", 1)
    wrong.item = None  # type: ignore[assignment]
    fails(shop, shop.sink(), r"record 1 of 1.*item is a part of the primary key, and is None", wrong)
    assert shop.rows() == {}
    with pytest.raises(ValueError, match="not enough values"):
        shop.progress()


@pytest.mark.guarantee("G1")
def test_a_row_that_cassandra_refuses_is_named(shop: Shop) -> None:
    """The limit of a key is the server's."""
    large = shop.sale("x" * 70_000, 1)
    large.shelf = 1
    match = r"refuses record 2 of 3, Sale.*of batch 1 of .*sales-table, shard 0: .*65535.*Let the table"
    fails(shop, shop.sink(), match, shop.sale("a", 1), large, shop.sale("b", 2))
    assert "a" in shop.rows("cents")


@pytest.mark.guarantee("G1", "G3")
def test_a_topology_that_was_set_back_is_told_how_to_go_on(shop: Shop) -> None:
    async def do(writer: TableWriter[Any]) -> None:
        for number in (1, 2, 3):
            await writer.write(shop.batch(number, shop.sale("tea", number)))
        before = shop.progress()[3]
        other = shop.batch(2, shop.sale("tea", 20), id="2b")
        with pytest.raises(CassandraError, match=r"has batch 3 .*another batch 2 comes next: the topology was") as no:
            await writer.write(other)
        shop.run(_statement_in(no))
        await writer.write(other)
        assert shop.progress()[3] > before

    with_writers(shop.sink(), shop.place(), do=do)
    assert shop.rows("cents") == {"tea": 20}


@pytest.mark.guarantee("G1", "G3")
def test_a_keyspace_that_lost_its_progress_is_noticed(shop: Shop) -> None:
    async def do(writer: TableWriter[Any]) -> None:
        with pytest.raises(CassandraError, match=r"has no batch .* batch 4 comes next: the keyspace was set") as no:
            await writer.write(shop.batch(4, shop.sale("tea", 4)))
        shop.run(_statement_in(no))
        await writer.write(shop.batch(4, shop.sale("tea", 4)))

    with_writers(shop.sink(), shop.place(), do=do)
    assert shop.rows("cents") == {"tea": 4}


@pytest.mark.guarantee("G1", "G3")
def test_a_later_topology_shuts_the_former_one_out(shop: Shop) -> None:
    async def do(former: TableWriter[Any], later: TableWriter[Any]) -> None:
        await former.write(shop.batch(1, shop.sale("tea", 1)))
        await later.write(shop.batch(1, shop.sale("tea", 2), id="x"))
        with pytest.raises(CassandraError, match=r"this one is over.*let this one go on") as no:
            await former.write(shop.batch(2, shop.sale("tea", 3)))
        with pytest.raises(CassandraError, match="another batch 1 comes next: the topology was set back") as again:
            await later.write(shop.batch(1, shop.sale("tea", 4), id="y"))
        for _ in range(2):  # the second time, and that of the error before, a batch has come since
            shop.run(_statement_in(again))
            await later.write(shop.batch(1, shop.sale("tea", 4), id="y"))
        shop.run(_statement_in(no))
        assert (shop.rows("cents"), shop.progress()[:3]) == ({"tea": 4}, (2, 1, "y"))
        with pytest.raises(CassandraError, match=r"this one is over") as no:
            await former.write(shop.batch(2, shop.sale("tea", 5)))
        shop.run(_statement_in(no))
        await former.write(shop.batch(2, shop.sale("tea", 5)))

    with_writers(shop.sink(), shop.place(), shop.place(run=2), do=do)
    assert shop.rows("cents") == {"tea": 5}


def _statement_in(error: pytest.ExceptionInfo[CassandraError]) -> str:
    """The statement that an error proposes."""
    found = re.search(r"(UPDATE .* IF run = \d+ AND id = '.*?'|INSERT .* IF NOT EXISTS)", str(error.value))
    assert found is not None
    return found[0]


def test_a_table_that_does_not_fit_is_refused(shop: Shop) -> None:
    class Wrong(msgspec.Struct):
        test: str
        item: bytes
        weight: float

    sink = cassandra.sink(f"{KEYSPACE}.sales", Wrong, settings=shop.settings())
    fails(
        shop,
        sink,
        r"do not fit into the table sink_tests\.sales: its primary key has shelf, and the rows do not; column item is "
        r"text, and the field is of bytes; column weight is not there: the table has .*\. Change the table",
    )
    missing = cassandra.sink(f"{KEYSPACE}.Sales", Wrong, settings=shop.settings())
    fails(shop, missing, r'there is no table sink_tests\."Sales": make it')


def test_a_table_may_have_a_reserved_word_as_its_name(shop: Shop) -> None:
    shop.run(f'CREATE TABLE IF NOT EXISTS {KEYSPACE}."order" (item text PRIMARY KEY, cents int)')
    sink = cassandra.sink(f"{KEYSPACE}.order", Item, settings=shop.settings())
    written(shop, sink, [Item(shop.name, 3)])  # type: ignore[list-item]
    assert shop.run(f'SELECT cents FROM {KEYSPACE}."order" WHERE item = %s', shop.name) == [(3,)]


def test_a_role_without_rights_is_told_what_it_needs(shop: Shop) -> None:
    keyspace, role = f"k{uuid.uuid4().hex[:20]}", shop.name
    shop.run(f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    shop.run(f"CREATE TABLE {keyspace}.totals (item text PRIMARY KEY, cents int)")
    shop.run(f"CREATE ROLE {role} WITH PASSWORD = 'p' AND LOGIN = true")
    try:
        shop.run(f"GRANT SELECT ON KEYSPACE {keyspace} TO {role}")
        shop.run(f"GRANT MODIFY ON KEYSPACE {keyspace} TO {role}")
        sink = cassandra.sink(f"{keyspace}.totals", Item, settings=shop.settings(username=role, password="p"))
        with pytest.raises(CassandraError, match=r"cannot be made.*let an administrator run CREATE TABLE") as no:
            written(shop, sink, [Item("tea", 1)])  # type: ignore[list-item]
        create = re.search(r"CREATE TABLE .*\)\)\)", str(no.value))
        assert create is not None
        shop.run(create[0])
        written(shop, sink, [Item("tea", 1)])  # type: ignore[list-item]
        assert shop.run(f"SELECT item, cents FROM {keyspace}.totals") == [("tea", 1)]
    finally:
        shop.run(f"DROP KEYSPACE {keyspace}")
        shop.run(f"DROP ROLE {role}")


class Item(msgspec.Struct):
    item: str
    cents: int


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "contact_points"),
        ("contact_points = 3", "contact_points"),
        ("contact_points = []", "contact_points is empty"),
        ("contact_points = ['a']", "not host:port"),
        ("contact_points = ['a:1']\npasword = 'p'", "pasword is unknown .did you mean 'password'"),
        ("contact_points = ['a:1']\nconsistency = 'one'", "consistency"),
        ("contact_points = ['a:1']\nconsistency = 'local_quorum'", "needs local_dc, the same one"),
        ("contact_points = ['a:1']\ntimeout_seconds = 60", "0.1 to 20"),
        ("contact_points = ['a:1']\ntls_ca = 'missing.pem'", "tls_ca, tls_cert and tls_key"),
        ("contact_points =", "no TOML"),
    ],
)
def test_a_file_of_settings_is_checked(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "cassandra.toml"
    path.write_text(text)
    with pytest.raises(CassandraError, match=match) as no:
        with_writers(cassandra.sink("a.b", Item, settings=path), PLACE, do=_nothing)
    assert str(path) in str(no.value)


def test_a_file_of_settings_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CassandraError, match=r"missing\.toml cannot be read.*each worker needs the file"):
        with_writers(cassandra.sink("a.b", Item, settings=tmp_path / "missing.toml"), PLACE, do=_nothing)


def test_a_refused_login_names_the_file(shop: Shop) -> None:
    sink = shop.sink(changed={"password": "wrong"})
    with pytest.raises(CassandraError, match=r"cassandra\.toml: .* set username and password"):
        with_writers(sink, shop.place(), do=_nothing)


def test_a_quorum_of_one_data_centre_suffices_if_stated(shop: Shop) -> None:
    sink = shop.sink(changed={"consistency": "local_quorum", "local_dc": "datacenter1"})
    written(shop, sink, [shop.sale("tea", 1)], [shop.sale("tea", 2), shop.sale("cup", 3)])
    assert shop.rows("cents") == {"tea": 2, "cup": 3}


async def _nothing(_: TableWriter[Any]) -> None:
    """The writer is not opened."""


def _named(**options: Any) -> Callable[[], Any]:
    table, kind = options.pop("table", "shop.totals"), options.pop("kind", Item)
    return lambda: cassandra.sink(table, kind, **{"settings": "/a", **options})


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (_named(table="totals"), "takes a keyspace and a table"),
        (_named(table='shop."totals"'), "takes a keyspace and a table"),
        (_named(kind=int), "a row of a table has fields, and int has none"),
        (_named(row="item"), "row= is a function"),
        (_named(delete=True), "delete= is a function"),
        (_named(ttl=mw.seconds(0.5)), "ttl= is a duration of whole seconds"),
        (_named(ttl=mw.days(10_000)), "ttl= is a duration of whole seconds"),
        (_named(settings=3), "settings= is the path"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(make: Callable[[], Any], match: str) -> None:
    with pytest.raises(mw.UsageError, match=match):
        make()


def test_the_program_of_the_page_works(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    page: Any = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)  # types of a program are looked up in its module
    shop.run("CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    settings = shop.settings()
    try:
        for block in blocks_of(ROOT / "docs" / "cassandra.md"):
            if block.language == "text" and block.code.startswith("CREATE TABLE"):
                for statement in block.code.split(";"):
                    if statement.strip():
                        shop.run(statement)
            if block.language == "python":
                code = block.code.replace("/etc/millwheel/shop-cassandra.toml", str(settings))
                exec(compile(code, block.page, "exec"), vars(page))
        with running(page.selling) as harness:
            for item, cents in (("tea", 300), ("milk", 120), ("tea", 10)):
                harness.send("sold", page.Sale("NO", item, cents), at(1))
            harness.advance_clock(mw.seconds(60))
        assert sorted(shop.run("SELECT country, item, cents FROM shop.totals")) == [
            ("NO", "milk", 120),
            ("NO", "tea", 310),
        ]
    finally:
        shop.run("DROP KEYSPACE shop")
