"""The sink into a database: each batch in one transaction with its number, exactly once (6.1)."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.connectors import DatabaseError, Sink, SinkBatch, SinkShard, SinkWriter, database, databases
from millwheel.testing.connectors import SinkContract
from tests.connectors.given import at, running


class Sale(msgspec.Struct):
    item: str
    cents: int


INSERT = "INSERT INTO sales (item, cents) VALUES (:item, :cents)"


def made(path: Path) -> Callable[[], sqlite3.Connection]:
    """A database with an empty table. Returns how to connect."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS sales (item TEXT, cents INTEGER CHECK (cents >= 0))")
        connection.execute("DELETE FROM sales")
        connection.execute("DROP TABLE IF EXISTS millwheel_progress")
        connection.commit()
    return partial(sqlite3.connect, path, timeout=0.2)


def rows(connect: Callable[[], sqlite3.Connection]) -> list[tuple[str, int]]:
    with closing(connect()) as connection:
        return connection.execute("SELECT item, cents FROM sales ORDER BY rowid").fetchall()


def place(run: int = 1, shard: int = 0) -> SinkShard:
    return SinkShard("shop/sales-table", shard, 4, run)


def batch(number: int, *cents: int, id: str = "", after: str | None = None) -> SinkBatch[Sale]:
    """A batch whose id is its number, and that comes after the one with the number before."""
    former = str(number - 1) if number > 1 else ""
    records = [(Sale("tea", one), at(one)) for one in cents]
    return SinkBatch(number, records, id or str(number), former if after is None else after)


def with_writers(sink: Sink[Any], *places: SinkShard, do: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Run ``do`` with a writer of each place."""

    async def run() -> None:
        writers: list[SinkWriter[Any]] = []
        try:
            for one in places:
                writers.append(await sink.open_writer(one))
            await do(*writers)
        finally:
            for writer in writers:
                await writer.close()

    asyncio.run(run())


@pytest.mark.guarantee("G1", "G3", "G15")
class TestDatabase(SinkContract[Sale]):
    record_type = Sale

    @pytest.fixture(autouse=True)
    def _shop(self, tmp_path: Path) -> None:
        self.connect = made(tmp_path / "shop.db")

    def make_sink(self) -> Sink[Sale]:
        return database(self.connect, INSERT)

    def stored(self) -> Sequence[int]:
        return [cents for _, cents in rows(self.connect)]

    def value(self, number: int) -> Sale:
        return Sale("tea", number)

    def number_of(self, value: Sale) -> int:
        return value.cents

    @contextmanager
    def away(self) -> Iterator[None]:
        with closing(self.connect()) as other:
            other.execute("BEGIN IMMEDIATE")
            yield


@pytest.mark.guarantee("G1")
@given(
    sales=st.lists(st.integers(0, 99), max_size=20),
    crash_at=st.sets(st.integers(0, 20)),
    locked=st.sets(st.integers(0, 20)),
)
def test_each_record_is_in_the_table_once(
    tmp_path_factory: pytest.TempPathFactory, sales: list[int], crash_at: set[int], locked: set[int]
) -> None:
    connect = made(tmp_path_factory.getbasetemp() / "once.db")
    topology = mw.Topology("shop")
    topology.source("sales", Sale).to("table", database(connect, INSERT), batch_records=3)
    with running(topology) as harness:
        for number, cents in enumerate(sales):
            with closing(connect()) as other:
                if number in locked:
                    other.execute("BEGIN IMMEDIATE")  # another program has the database
                with suppress(sqlite3.OperationalError):
                    if number in crash_at:
                        harness.crash()
                with suppress(sqlite3.OperationalError):
                    harness.send("sales", Sale("tea", cents), at(number))
        for _ in range(3):
            with suppress(sqlite3.OperationalError):
                harness.advance_clock(mw.seconds(60))
        assert [cents for _, cents in rows(connect)] == sales


@pytest.mark.guarantee("G2")
def test_a_record_that_the_database_refuses_leaves_no_trace(tmp_path: Path) -> None:
    connect = made(tmp_path / "shop.db")

    async def do(writer: SinkWriter[Sale]) -> None:
        with pytest.raises(DatabaseError, match=r"refuses record 2 of 2 in batch 1 of .* IntegrityError: CHECK"):
            await writer.write(batch(1, 10, -1))
        await writer.write(batch(1, 10, 1))

    with_writers(database(connect, INSERT), place(), do=do)
    assert [cents for _, cents in rows(connect)] == [10, 1]


def test_a_search_that_takes_long_leaves_the_first_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, the records of a batch may take longer than a write has, and its time limit would be the error."""
    connect = made(tmp_path / "shop.db")
    monkeypatch.setattr(databases, "SEARCH_SECONDS", 0.0)

    async def do(writer: SinkWriter[Sale]) -> None:
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            await writer.write(batch(1, 10, -1))

    with_writers(database(connect, INSERT), place(), do=do)
    assert rows(connect) == []


def test_a_later_topology_counts_from_one_again(tmp_path: Path) -> None:
    connect = made(tmp_path / "shop.db")

    async def do(former: SinkWriter[Sale]) -> None:
        await former.write(batch(1, 10))
        sink: Sink[Sale] = database(connect, INSERT)
        later = await sink.open_writer(place(run=2))
        await later.write(batch(1, 20))
        await later.close()
        with pytest.raises(DatabaseError, match="this one is over"):
            await former.write(batch(2, 30))
        again = await sink.open_writer(place(run=1))
        with pytest.raises(DatabaseError, match="this one is over"):
            await again.write(batch(2, 30))
        await again.close()

    with_writers(database(connect, INSERT), place(run=1), do=do)
    assert [cents for _, cents in rows(connect)] == [10, 20]


@pytest.mark.guarantee("G1")
def test_another_batch_of_a_number_is_no_repetition(tmp_path: Path) -> None:
    """After a restore of the topology, the batches behind the snapshot may be others."""
    connect = made(tmp_path / "shop.db")

    async def do(writer: SinkWriter[Sale]) -> None:
        for number in (1, 2, 3):
            await writer.write(batch(number, number))
        for other in (batch(2, 20, id="2b"), batch(3, 30, id="3b"), batch(4, 40, id="4b", after="3b")):
            with pytest.raises(DatabaseError, match=f"has batch 3 .* batch {other.number} comes next"):
                await writer.write(other)
        with pytest.raises(DatabaseError) as no:
            await writer.write(batch(2, 20, id="2b"))
        follow(connect, no)
        await writer.write(batch(2, 20, id="2b"))

    with_writers(database(connect, INSERT), place(), do=do)
    assert [cents for _, cents in rows(connect)] == [1, 2, 3, 20]


def test_a_fork_begins_in_a_row_of_its_own(tmp_path: Path) -> None:
    connect = made(tmp_path / "shop.db")

    async def do(original: SinkWriter[Sale]) -> None:
        await original.write(batch(1, 10))
        sink: Sink[Sale] = database(connect, INSERT)
        fork = await sink.open_writer(SinkShard("fork/sales-table", 0, 4, 1))
        for one in (batch(2, 20, after=""), batch(2, 20, after=""), batch(3, 30)):
            await fork.write(one)
        await original.write(batch(2, 21, id="2b"))
        await fork.close()

    with_writers(database(connect, INSERT), place(), do=do)
    assert [cents for _, cents in rows(connect)] == [10, 20, 30, 21]
    with closing(connect()) as connection:
        found = connection.execute("SELECT sink, batch, id FROM millwheel_progress ORDER BY sink").fetchall()
    assert found == [("fork/sales-table", 3, "3"), ("shop/sales-table", 2, "2b")]


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("run", [1, 2], ids=["of a former fork", "after a restore"])
def test_another_first_batch_can_go_on(tmp_path: Path, run: int) -> None:
    connect = made(tmp_path / "shop.db")

    async def do(there: SinkWriter[Sale], other: SinkWriter[Sale]) -> None:
        await there.write(batch(1, 10))
        await there.write(batch(2, 20))
        with pytest.raises(DatabaseError, match=r"this one is over|batch 1 comes next") as no:
            await other.write(batch(1, 11, id="1b"))
        follow(connect, no)
        await other.write(batch(1, 11, id="1b"))
        await other.write(batch(1, 11, id="1b"))

    with_writers(database(connect, INSERT), place(run=2), place(run=run), do=do)
    assert [cents for _, cents in rows(connect)] == [10, 20, 11]


def follow(connect: Callable[[], sqlite3.Connection], error: pytest.ExceptionInfo[DatabaseError]) -> None:
    """Run the statement that an error proposes."""
    found = re.search(r"UPDATE .* shard = \d+", str(error.value))
    assert found is not None
    with closing(connect()) as connection:
        connection.execute(found[0])
        connection.commit()


async def never(*writers: SinkWriter[Any]) -> None:
    raise AssertionError


@pytest.mark.guarantee("G2")
def test_a_driver_without_transactions_is_refused(tmp_path: Path) -> None:
    connect = made(tmp_path / "shop.db")
    without = partial(sqlite3.connect, tmp_path / "shop.db", isolation_level=None)
    with pytest.raises(DatabaseError, match="without autocommit"):
        with_writers(database(without, INSERT), place(), do=never)

    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 10))

    with_writers(database(connect, INSERT), place(), do=do)
    with closing(connect()) as connection:
        assert connection.execute("SELECT shard, batch FROM millwheel_progress").fetchall() == [(0, 1)]


def test_a_database_that_was_set_back_is_noticed(tmp_path: Path) -> None:
    connect = made(tmp_path / "shop.db")

    async def do(writer: SinkWriter[Sale]) -> None:
        with pytest.raises(DatabaseError, match=r"has batch 0 of shop/sales-table, shard 0, and batch 7 comes next"):
            await writer.write(batch(7, 10))

    with_writers(database(connect, INSERT), place(), do=do)
    assert rows(connect) == []


@pytest.mark.parametrize(
    ("statement", "parameters"),
    [
        pytest.param(INSERT, None, id="by name"),
        pytest.param("INSERT INTO sales VALUES (?, ?)", None, id="in order"),
        pytest.param("INSERT INTO sales VALUES (?, iif('a :b' = \":c\", 0, ?)) -- :d", None, id="colons in texts"),
        pytest.param("INSERT INTO sales VALUES (?, ?)", lambda sale: (sale.item, sale.cents), id="by a function"),
    ],
)
def test_parameters(tmp_path: Path, statement: str, parameters: Any) -> None:
    connect = made(tmp_path / "shop.db")

    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 10))

    with_writers(database(connect, statement, parameters), place(), do=do)
    assert rows(connect) == [("tea", 10)]


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("INSERT INTO sales VALUES (%(item)s, %(cents)s)", ""),
        ("INSERT INTO sales VALUES (%(itm)s, to_timestamp(%(cents)s / 1e6)::timestamptz)", "itm"),
        ("INSERT INTO sales VALUES (:item, :cent)", "cent"),
        ("INSERT INTO sales VALUES (?, ?)", ""),
        ("INSERT INTO sales VALUES (':no', %s, '12:30'::time)", ""),
        ("UPDATE sales SET cents = array[1:n] WHERE item = %(item)s AND a = :b", ""),
    ],
)
def test_a_name_that_a_record_has_not_is_an_error_of_the_program(statement: str, wrong: str) -> None:
    """Regression: a misspelled parameter failed at the first batch, and not when the program was checked."""
    topology = mw.Topology("shop")
    sales = topology.source("sales", Sale)
    sink: Sink[Sale] = database(connect_nowhere, statement)
    if wrong:
        with pytest.raises(mw.UsageError, match=rf"to\('table'\): the statement names '{wrong}' \(did you mean "):
            sales.to("table", sink)
    else:
        sales.to("table", sink)
    sales.to("other", database(connect_nowhere, statement, lambda sale: {wrong: sale.cents}))


def connect_nowhere() -> Any:
    raise ConnectionError("a program is checked without its database")


def test_the_items_of_a_tuple_are_parameters(tmp_path: Path) -> None:
    connect = made(tmp_path / "shop.db")
    sink: Sink[tuple[str, int]] = database(connect, "INSERT INTO sales VALUES (?, ?)")

    async def do(writer: SinkWriter[tuple[str, int]]) -> None:
        await writer.write(SinkBatch(1, [(("tea", 10), at(1))], "1", ""))

    with_writers(sink, place(), do=do)
    assert rows(connect) == [("tea", 10)]


def test_the_driver_is_found_by_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a class in a part of the driver, or in the user's program."""
    connect = made(tmp_path / "shop.db")
    odd = {"odd.driver.native": None, "odd.driver": "qmark"}
    for name, style in odd.items():
        module = ModuleType(name)
        if style is not None:
            module.paramstyle = style  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    native = type("Native", (sqlite3.Connection,), {"__module__": "odd.driver.native"})
    own = type("Own", (sqlite3.Connection,), {"__module__": "shop"})

    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 10))

    for run, kind in enumerate((native, own), 1):
        sink: Sink[Sale] = database(partial(sqlite3.connect, tmp_path / "shop.db", factory=kind), INSERT)
        with_writers(sink, place(run), do=do)
    assert len(rows(connect)) == 2


def test_what_is_no_connection_of_a_driver_is_refused() -> None:
    connection = type("Pooled", (), {"close": lambda self: None, "__module__": "shop.pool"})
    with pytest.raises(DatabaseError, match=r"shop\.pool\.Pooled is no connection of a driver"):
        with_writers(database(connection, INSERT), place(), do=never)


def test_an_unknown_style_of_parameters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ModuleType("odd_driver")
    driver.paramstyle = "numeric"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "odd_driver", driver)
    connection = type("Connection", (), {"close": lambda self: None, "__module__": "odd_driver"})
    with pytest.raises(DatabaseError, match="'numeric'"):
        with_writers(database(connection, INSERT), place(), do=never)


def test_a_stuck_connection_is_left_behind() -> None:
    """The end of a process, or the next attempt, does not wait for a call that never returns."""
    stuck, began, before = Event(), Event(), set(enumerate_threads())

    def connect() -> sqlite3.Connection:
        began.set()
        stuck.wait()
        raise ConnectionError

    async def run() -> None:
        sink: Sink[Sale] = database(connect, INSERT)
        opening = asyncio.ensure_future(sink.open_writer(place()))
        await asyncio.to_thread(began.wait)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        (thread,) = (one for one in enumerate_threads() if one.name == "millwheel-database" and one not in before)
        assert thread.daemon

    try:
        asyncio.run(run())
    finally:
        stuck.set()
