"""One hook call may produce as much as memory takes, and all of it arrives, through kills too (G1, G2, G9; 6.1.2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from tests.patience import patience
from tests.system.server import Server
from tests.system.speaking import submit_source

SOURCE = '''
import msgspec
import millwheel as mw

class Order(msgspec.Struct):
    rows: int

class Row(msgspec.Struct):
    number: int
    text: str

class Backlog(mw.Computation[Order, list[int]]):
    """Keeps what comes until the watermark passes; then produces all of it at once."""

    def process_record(self, ctx, record):
        ctx.state.append(record.value.rows)
        ctx.set_timer(mw.Timestamp(1_000))

    def process_timer(self, ctx, timer):
        for number in range(sum(ctx.state)):
            ctx.produce("rows", Row(number, "x" * 250_000))
        del ctx.state

class Sum(mw.Computation[Row, int]):
    """Says how many rows have come to one of four keys."""

    def process_record(self, ctx, record):
        ctx.state += 1
        ctx.produce("sums", (record.value.number, ctx.state))

backlog = mw.Topology("backlog")
backlog.source("orders", Order)
backlog.add(Backlog, inputs={"orders": mw.key(lambda order: "all")}, outputs={"rows": Row})
backlog.add(Sum, inputs={"rows": mw.key(lambda row: str(row.number % 4))}, outputs={"sums": tuple[int, int]})
'''


class Order(msgspec.Struct):
    rows: int


async def sums(server: Server, count: int) -> list[tuple[int, int]]:
    """The first ``count`` records of stream "sums", and what else has come soon after."""
    found: list[Any] = []
    kind: Any = tuple[int, int]
    async with Subscription(
        "sums", cursor="t", record_type=kind, address=server.address, patience=patience(60)
    ) as subscription:
        async with asyncio.timeout(patience(60)):
            async for batch in subscription:
                found += batch.values
                if len(found) >= count:
                    break
    return found


async def order(server: Server, rows: int) -> None:
    """Have one firing produce so many rows."""
    async with Injector("orders", address=server.address, process="p") as injector:
        await injector.send_many([Order(rows)], [1], keys={"backlog": ["all"]})
        await injector.finish()


@pytest.mark.guarantee("G2", section="6.1.2")
async def test_one_firing_produces_20_mib_and_all_of_it_arrives(server: Server) -> None:
    await submit_source(server, "backlog", SOURCE, "backlog")
    await order(server, 84)
    found = await sums(server, 84)
    assert Counter(number for number, _ in found) == Counter(range(84))
    assert "attempt" not in server.log.read_text(), "no hook has failed"


@pytest.mark.guarantee("G1", section="6.1")
async def test_a_firing_of_20_mib_counts_once_through_kills(server: Server) -> None:
    await submit_source(server, "backlog", SOURCE, "backlog")
    await order(server, 84)
    for pause in (0.05, 0.2, 0.5):
        await asyncio.sleep(pause)
        await server.kill()
        await server.start()
    found = await sums(server, 84)
    assert Counter(number for number, _ in found) == Counter(range(84))
    for key in range(4):
        assert [times for number, times in found if number % 4 == key] == list(range(1, 22))
