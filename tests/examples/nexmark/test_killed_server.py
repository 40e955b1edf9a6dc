"""Nexmark's queries on a real server that is killed, with shuffled events and splits, against DuckDB (G1, G2, G11)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

import millwheel as mw
from examples.nexmark.events import generate
from examples.nexmark.queries import QUERIES, nexmark
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector, InjectorSettings
from millwheel.client.subscription import Subscription
from millwheel.rpc.v1.interval_pb2 import IntervalName
from tests.examples.nexmark.answers import SIDE, answer, database_of, rows_of
from tests.patience import patience
from tests.system.server import Server, run_cli

EVENTS = 2_000
PART = 100
KILLS = (500, 1_200)
"""Before which events the server is killed."""
SPLIT = 900
"""Before which event each computation has one interval more."""
MIDDLE = b"1050"
"""Among the ids of auctions and people, where these are keys."""


async def read(stream: str, address: str) -> list[tuple[Any, int]]:
    """All values of a stream, with their timestamps."""
    kind, found = nexmark.plan().streams[stream].type, list[tuple[Any, int]]()
    async with Subscription(
        stream, cursor="test", record_type=kind, address=address, until_end=True, auto_ack=True, patience=patience(60)
    ) as subscription:
        async for batch in subscription:
            found += zip(batch.values, batch.timestamps, strict=True)
    return found


async def split(address: str) -> None:
    """Divide the intervals of all computations, while records flow."""
    async with ControlClient(address) as client:
        for computation in nexmark.plan().computations:
            await client.split_interval(IntervalName(topology="nexmark", computation=computation, key=MIDDLE), MIDDLE)


async def inject(server: Server, chance: Random, events: list[Any]) -> None:
    """Inject the side input, and then the events, shuffled within each part.

    On the way the server is killed, and intervals are split.
    """
    settings = InjectorSettings(patience=patience(60))
    async with Injector("side", address=server.address, process="p", topology=nexmark, settings=settings) as injector:
        await injector.send_many(SIDE, [events[0].at] * len(SIDE))
        await injector.finish()
    async with Injector("events", address=server.address, process="p", topology=nexmark, settings=settings) as injector:
        for begin in range(0, EVENTS, PART):
            part = chance.sample(events[begin : begin + PART], PART)
            await injector.send_many(part, [event.at for event in part])
            if begin == SPLIT:
                await split(server.address)
            if begin in KILLS:
                await server.kill()
                await server.start()
            await injector.advance(events[begin + PART - 1].at)
        await injector.finish()


@pytest.mark.guarantee("G1", section="6.1")
@pytest.mark.timeout(400)
async def test_a_killed_server_answers_each_query(tmp_path: Path) -> None:
    """All but Q12, whose answer depends on the clock."""
    events = list(generate(EVENTS, 7, mw.milliseconds(25)))
    names = [name for name in QUERIES if name != "q12"]
    async with Server(tmp_path / "db", tmp_path / "server.log", intervals=2) as server:
        submitted = await run_cli(server.address, "topology", "submit", "examples.nexmark.queries:nexmark")
        assert submitted.code == 0, submitted.err
        readers = [asyncio.create_task(read(name, server.address)) for name in names]
        await inject(server, Random(7), events)
        async with asyncio.timeout(patience(60)):
            found = dict(zip(names, await asyncio.gather(*readers), strict=True))
    with database_of(events) as database:
        for name in names:
            assert rows_of(name, found[name]) == answer(database, name), name
