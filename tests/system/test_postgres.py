"""A server copies the changes of a table by itself. The server and PostgreSQL are killed meanwhile (G1, G15)."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event

import psycopg
import pytest

from tests.connectors.postgres_tables import Database
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system import sold
from tests.system.server import Server, run_cli

WRITERS = 3
MORE = 60
"""So many changes come between two disturbances, at least."""
_LINE = re.compile(r"table public\.sales: (\w+):(?: item\[text\]:'(\w+)')?(?: cents\[integer\]:(\d+))?")


@pytest.fixture
def shop() -> Iterator[Database]:
    made = Database()
    made.run("CREATE TABLE sales (item text PRIMARY KEY, cents int)")
    made.run("CREATE TABLE seen (number bigserial, operation text, item text, cents int)")
    made.run("CREATE PUBLICATION sold FOR TABLE sales")
    made.run("SELECT pg_create_logical_replication_slot('as_decoded', 'test_decoding')")
    made.run("SELECT pg_create_logical_replication_slot('sold', 'pgoutput')")
    yield made
    made.remove()


def write(shop: Database, writer: int, enough: Event) -> None:
    """Work in transactions of several rows, some of which are taken back, and some of which a crash ends."""
    chance, items = random.Random(writer), [f"w{writer}x{number}" for number in range(20)]
    while not enough.is_set():
        with suppress(psycopg.OperationalError), shop.session(autocommit=False) as session:
            while not enough.is_set():
                for item in sorted(chance.sample(items, chance.randint(1, 5))):
                    if chance.random() < 0.2:
                        session.execute("DELETE FROM sales WHERE item = %s", [item])
                    else:
                        upsert = (
                            "INSERT INTO sales VALUES (%s, %s) ON CONFLICT (item) DO UPDATE SET cents = excluded.cents"
                        )
                        session.execute(upsert, [item, chance.randint(1, 999)])
                session.execute("SELECT pg_sleep(0.03)")
                session.rollback() if chance.random() < 0.1 else session.commit()


def decoded(shop: Database) -> list[tuple[str, str, int]]:
    """All changes in the order of their commits, as another plugin and slot have them."""
    lines = shop.run("SELECT data FROM pg_logical_slot_peek_changes('as_decoded', NULL, NULL)")
    found = [_LINE.match(line) for (line,) in lines]
    return [(one[1].lower(), one[2], int(one[3] or 0)) for one in found if one is not None]


@pytest.mark.timeout(300)
@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.guarantee("G15")
async def test_each_change_is_copied_once_and_in_order(
    shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOLD_CONNINFO", shop.conninfo)

    def seen() -> list[tuple[str, str, int]]:
        rows = shop.run("SELECT operation, item, cents FROM seen ORDER BY number")
        return [(operation, item, cents) for operation, item, cents in rows]

    enough, before = Event(), 0
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit_copy(server.address, sold.__file__, "sold", tmp_path)
        writing = [asyncio.create_task(asyncio.to_thread(write, shop, one, enough)) for one in range(WRITERS)]
        try:
            for number in range(4):
                await until(lambda: len(seen()), patience(20), every=0.1, holds=(before + MORE).__lt__)
                if number % 2:
                    await asyncio.to_thread(shop.server.crash)
                    await asyncio.to_thread(shop.server.start)
                else:
                    await server.kill()
                    await server.start()
                before = len(seen())
            await until(lambda: len(seen()), patience(20), every=0.1, holds=(before + MORE).__lt__)
        finally:
            enough.set()
            await asyncio.gather(*writing)
        expected = decoded(shop)
        await until(lambda: len(seen()) >= len(expected), patience(60), every=0.1)
        assert seen() == expected
        shown = await run_cli(server.address, "key", "inspect", "sold/changes-reader", "sold")
        assert f'"records":{len(expected)}' in shown.out, shown.out
    left = dict(shop.run("SELECT item, cents FROM sales"))
    copied: dict[str, int] = {}
    for operation, item, cents in seen():
        if operation == "delete":
            del copied[item]
        else:
            copied[item] = cents
    assert copied == left
