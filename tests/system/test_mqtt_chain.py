"""A server reads from MQTT, and is killed meanwhile, as the broker is stopped (G1, G15)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
import redis as library
from paho.mqtt import publish

from deploy.local.mosquitto import MosquittoBroker
from deploy.local.redis import RedisServer
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system import mqtt_chain
from tests.system.server import Server, run_cli

NUMBERS = 400


def send(broker: MosquittoBroker, first: int, last: int) -> None:
    """Publish these numbers. Those of a digit have one topic."""
    publish.multiple(
        [(f"{'ab'[one % 2]}/{one % 10}", str(one), 2, False) for one in range(first, last)],
        hostname="127.0.0.1",
        port=broker.port,
        protocol=paho.MQTTv5,
    )


@pytest.mark.timeout(240)
@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.guarantee("G15")
async def test_each_number_comes_from_mqtt_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redis = RedisServer(tmp_path / "redis")
    broker = MosquittoBroker(tmp_path / "mosquitto", "max_queued_messages 0")
    with redis, broker:
        monkeypatch.setenv("CHAIN_REDIS", redis.url)
        monkeypatch.setenv("CHAIN_MQTT", broker.url)
        client: Any = library.Redis.from_url(redis.url, decode_responses=True)
        lists = [f"last-digit:{digit}" for digit in range(10)]
        async with Server(tmp_path / "db", tmp_path / "server.log") as server:
            await submit_copy(server.address, mqtt_chain.__file__, "chain", tmp_path)

            async def begun() -> bool:
                shown = [
                    await run_cli(server.address, "key", "inspect", "chain/numbers-reader", one)
                    for one in ("a/#", "b/#")
                ]
                return all('"count":0' in one.out for one in shown)

            await until(begun, patience(60), every=0.2)
            for turn in range(4):
                await asyncio.to_thread(send, broker, 100 * turn, 100 * turn + 100)
                await asyncio.sleep(0.1 * turn)
                if turn == 1:
                    broker.process.stop()
                    broker.start()
                else:
                    await server.kill()
                    await server.start()
            await until(lambda: sum(map(client.llen, lists)) >= NUMBERS, patience(60), every=0.2)
        for digit, name in enumerate(lists):
            assert client.lrange(name, 0, -1) == [str(one) for one in range(digit, NUMBERS, 10)]
        client.close()
