"""Records that a source could not read are read again by a later version of the topology, each once (G1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from millwheel.client.subscription import From, Subscription
from millwheel.server.dev_server import DevServer, DevSettings, running
from millwheel.snapshots.tables import read_snapshot_state
from tests.patience import patience
from tests.system.server import run_cli

PROGRAM = """
import msgspec

import millwheel as mw
from millwheel import agg, connectors
from millwheel.connectors import BadRecord


class Sale(msgspec.Struct):
    item: str
    cents: int


def mend(bad: BadRecord) -> Sale:
    return msgspec.json.decode(bad.raw, type=Sale, strict=False)  # takes numbers in quotes, too


def made(again: bool) -> mw.Topology:
    shop = mw.Topology("shop")
    lines = connectors.read_files("FOLDER/*.jsonl", Sale, follow=mw.days(1))
    sales = shop.source("sales", Sale, lines, bad="unreadable")
    shop.stream("unreadable", BadRecord, retention=mw.Retention(age=mw.days(30)))
    if again:
        unread = connectors.read_log("shop/unreadable", BadRecord, address="ADDRESS")
        sales = sales.union(shop.source("unread", BadRecord, unread).map(mend))
    sales.key_by("item").aggregate("totals", cents=agg.sum("cents"))
    return shop


first, second = made(False), made(True)
"""


async def newest(address: str, wanted: dict[str, int], topology: str = "shop") -> None:
    """Return when the totals are these. They only grow, so none is more."""
    found: dict[str, int] = {}
    async with (
        asyncio.timeout(patience(60)),
        Subscription(f"{topology}/totals", start=From.OLDEST, address=address) as results,
    ):
        async for batch in results:
            for one in map(msgspec.msgpack.decode, batch.values):
                found[one["item"]] = one["cents"]
                assert one["cents"] <= wanted[one["item"]], one
            if found == wanted:
                return


class Shop:
    """A server whose topology reads a file again after it is mended."""

    def __init__(self, server: DevServer, place: Path) -> None:
        self.address = server.address
        self.folder = place / "in"
        self.folder.mkdir()
        self.program = place / "shop.py"
        text = PROGRAM.replace("FOLDER", str(self.folder)).replace("ADDRESS", self.address)
        self.program.write_text(text)

    def sell(self, *lines: str) -> None:
        with (self.folder / "a.jsonl").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    async def run(self, *words: str) -> str:
        done = await run_cli(self.address, *words, timeout=patience(60))
        assert done.code == 0, done.err
        return done.out

    async def mended(self) -> None:
        """Submit the first version, update it, and return when all is read."""
        self.sell('{"item": "tea", "cents": 1}', '{"item": "tea", "cents": "20"}', '{"item": "cup", "cents": 300}')
        await self.run("topology", "submit", f"{self.program}:first")
        await newest(self.address, {"tea": 1, "cup": 300})
        await self.run("topology", "update", f"{self.program}:second")
        await newest(self.address, {"tea": 21, "cup": 300})


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    async with running(DevSettings(tmp_path / "db", port=0)) as server:
        yield Shop(server, tmp_path)


@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.timeout(240)
async def test_what_could_not_be_read_is_read_after_an_update(shop: Shop) -> None:
    await shop.mended()
    shop.sell('{"item": "cup", "cents": "4000"}')
    await newest(shop.address, {"tea": 21, "cup": 4_300})


@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.timeout(240)
async def test_a_log_is_read_on_after_a_restore(shop: Shop, tmp_path: Path) -> None:
    """A fork reads the log of the original. What is restored under its own name reads on in its own."""
    place = str(tmp_path / "backups")
    await shop.mended()
    await shop.run("snapshot", "create", "shop", "--to", place, "--name", "s")
    await shop.run("snapshot", "restore", place, "s", "--as", "shop-next")
    shop.sell('{"item": "cup", "cents": "4000"}')
    for topology in ("shop", "shop-next"):
        await newest(shop.address, {"tea": 21, "cup": 4_300}, topology)
    for topology in ("shop", "shop-next"):
        await shop.run("topology", "cancel", topology, "--yes")
    await shop.run("snapshot", "restore", place, "s")
    shop.sell('{"item": "tea", "cents": "50000"}')
    await newest(shop.address, {"tea": 50_021, "cup": 4_300})


@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.timeout(240)
async def test_a_fork_reads_its_own_log_on(shop: Shop, tmp_path: Path) -> None:
    """The snapshot says how far both logs were read. Behind that, they have records of their own."""
    place = str(tmp_path / "backups")
    await shop.mended()
    await shop.run("snapshot", "create", "shop", "--to", place, "--name", "s")
    shop.sell('{"item": "cup", "cents": "4000"}')
    await newest(shop.address, {"tea": 21, "cup": 4_300})
    await shop.run("snapshot", "restore", place, "s", "--as", "shop-next", "--paused")
    states = await asyncio.to_thread(read_snapshot_state, place, "s", "shop/unread-reader")
    offset = states.column("state")[0].as_py()["position"]["offset"]
    start = f'read_log("shop-next/unreadable", BadRecord, start={{"shop-next/unreadable": {offset}}}'
    text = shop.program.read_text().replace('read_log("shop/unreadable", BadRecord', start)
    own = shop.program.with_name("next.py")
    own.write_text(text.replace('"unread"', '"unread-next"'))
    await shop.run("topology", "update", f"{own}:second", "--as", "shop-next", "--yes")
    await shop.run("topology", "resume", "shop-next")
    await shop.run("topology", "cancel", "shop", "--yes")
    shop.sell('{"item": "tea", "cents": "50000"}')
    await newest(shop.address, {"tea": 50_021, "cup": 4_300}, "shop-next")
