"""Records that a source could not read are read again by a later version of the topology, each once (G1)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from millwheel.client.subscription import From, Subscription
from millwheel.server.dev_server import DevSettings, running
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


async def newest(address: str, wanted: dict[str, int]) -> None:
    """Return when the totals are these. They only grow, so none is more."""
    found: dict[str, int] = {}
    async with (
        asyncio.timeout(patience(60)),
        Subscription("shop/totals", start=From.OLDEST, address=address) as results,
    ):
        async for batch in results:
            for one in map(msgspec.msgpack.decode, batch.values):
                found[one["item"]] = one["cents"]
                assert one["cents"] <= wanted[one["item"]], one
            if found == wanted:
                return


@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.timeout(240)
async def test_what_could_not_be_read_is_read_after_an_update(tmp_path: Path) -> None:
    folder, program = tmp_path / "in", tmp_path / "shop.py"
    folder.mkdir()
    lines = ['{"item": "tea", "cents": 1}', '{"item": "tea", "cents": "20"}', '{"item": "cup", "cents": 300}']
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    async with running(DevSettings(tmp_path / "db", port=0)) as server:
        program.write_text(PROGRAM.replace("FOLDER", str(folder)).replace("ADDRESS", server.address))
        done = await run_cli(server.address, "topology", "submit", f"{program}:first")
        assert done.code == 0, done.err
        await newest(server.address, {"tea": 1, "cup": 300})
        done = await run_cli(server.address, "topology", "update", f"{program}:second")
        assert done.code == 0, done.err
        await newest(server.address, {"tea": 21, "cup": 300})
        with (folder / "a.jsonl").open("a") as more:
            more.write('{"item": "cup", "cents": "4000"}\n')
        await newest(server.address, {"tea": 21, "cup": 4_300})
