"""The sink into a database: each batch in one transaction with its number, exactly once (6.1)."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.connectors import DatabaseError, Sink, SinkBatch, SinkShard, SinkWriter, database
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


@pytest.mark.guarantee("G1")
def test_a_batch_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    connect = made(tmp_path / "shop.db")

    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 10, 20))
        await writer.write(batch(1, 10, 20))
        await writer.write(batch(2, 30))

    with_writers(database(connect, INSERT), place(), do=do)
    assert rows(connect) == [("tea", 10), ("tea", 20), ("tea", 30)]


@pytest.mark.guarantee("G3")
def test_a_former_process_that_wakes_up_changes_nothing(tmp_path: Path) -> None:
    connect = made(tmp_path / "shop.db")

    async def do(former: SinkWriter[Sale], present: SinkWriter[Sale]) -> None:
        await former.write(batch(1, 10))
        await present.write(batch(2, 20))
        await former.write(batch(2, 20))
        await present.write(batch(3, 30))

    with_writers(database(connect, INSERT), place(), place(), do=do)
    assert [cents for _, cents in rows(connect)] == [10, 20, 30]


@pytest.mark.guarantee("G2")
def test_a_record_that_the_database_refuses_leaves_no_trace(tmp_path: Path) -> None:
    connect = made(tmp_path / "shop.db")

    async def do(writer: SinkWriter[Sale]) -> None:
        with pytest.raises(sqlite3.IntegrityError):
            await writer.write(batch(1, 10, -1))
        await writer.write(batch(1, 10, 1))

    with_writers(database(connect, INSERT), place(), do=do)
    assert [cents for _, cents in rows(connect)] == [10, 1]


def test_shards_have_numbers_of_their_own(tmp_path: Path) -> None:
    connect = made(tmp_path / "shop.db")

    async def do(first: SinkWriter[Sale], second: SinkWriter[Sale]) -> None:
        await first.write(batch(1, 10))
        await second.write(batch(1, 20))

    with_writers(database(connect, INSERT), place(), place(shard=1), do=do)
    assert [cents for _, cents in rows(connect)] == [10, 20]


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
        pytest.param("INSERT INTO sales VALUES (?, ?)", lambda sale: (sale.item, sale.cents), id="by a function"),
    ],
)
def test_parameters(tmp_path: Path, statement: str, parameters: Any) -> None:
    connect = made(tmp_path / "shop.db")

    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 10))

    with_writers(database(connect, statement, parameters), place(), do=do)
    assert rows(connect) == [("tea", 10)]


def test_an_unknown_style_of_parameters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ModuleType("odd_driver")
    driver.paramstyle = "numeric"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "odd_driver", driver)
    connection = type("Connection", (), {"close": lambda self: None, "__module__": "odd_driver"})
    sink: Sink[Sale] = database(connection, INSERT)

    async def never(writer: SinkWriter[Sale]) -> None:
        raise AssertionError

    with pytest.raises(DatabaseError, match="'numeric'"):
        with_writers(sink, place(), do=never)
