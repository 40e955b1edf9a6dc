"""A server reads from Redis and writes to Redis, and both are killed meanwhile (G1, G15)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import redis as library

from deploy.local.redis import RedisServer
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system import redis_chain
from tests.system.server import Server

STREAMS = 3
SALES = 300
ITEMS = ("tea", "pot", "cup", "jug")


def add(client: Any, first: int, last: int) -> None:
    """Add the sales with these numbers to each stream. An item has its own stream."""
    with client.pipeline(transaction=False) as pipeline:
        for number in range(first, last):
            for stream in range(STREAMS):
                fields = {"item": f"{ITEMS[number % 4]}-{stream}", "number": number, "cents": number % 7}
                pipeline.xadd(f"sales:{stream}", fields)
        pipeline.execute()


@pytest.mark.timeout(240)
@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.guarantee("G15")
async def test_each_sale_goes_through_redis_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer(tmp_path / "redis", appendfsync="always") as redis:
        monkeypatch.setenv("CHAIN_REDIS", redis.url)
        client: Any = library.Redis.from_url(redis.url, decode_responses=True)
        add(client, 0, 50)
        async with Server(tmp_path / "db", tmp_path / "server.log") as server:
            await submit_copy(server.address, redis_chain.__file__, "chain", tmp_path)
            await until(lambda: client.xlen("sold") > 0, patience(60), every=0.1)
            for turn in range(4):
                add(client, 50 + 50 * turn, 100 + 50 * turn)
                await asyncio.sleep(0.3)
                if turn == 1:
                    redis.kill()
                    await asyncio.sleep(0.3)
                    redis.start()
                else:
                    await server.kill()
                    await server.start()
            add(client, 250, SALES)
            await until(lambda: client.xlen("sold") >= STREAMS * SALES, patience(60), every=0.1)
            expected = {
                f"{item}-{stream}": [number for number in range(SALES) if ITEMS[number % 4] == item]
                for item in ITEMS
                for stream in range(STREAMS)
            }
            cents = {item: sum(number % 7 for number in numbers) for item, numbers in expected.items()}
            await until(lambda: best(client) == cents, patience(60), every=0.1)
            await until(lambda: totals(client, cents) == cents, patience(60), every=0.1)
        sold: dict[str, list[int]] = {}
        for _, fields in client.xrange("sold"):
            sold.setdefault(fields["item"], []).append(int(fields["number"]))
        assert sold == expected
        client.close()


def best(client: Any) -> dict[str, int]:
    return {item: int(score) for item, score in client.zrange("best", 0, -1, withscores=True)}


def totals(client: Any, items: dict[str, int]) -> dict[str, int]:
    found = {item: client.get(f"total:{item}") for item in items}
    return {item: json.loads(text)["cents"] for item, text in found.items() if text is not None}
