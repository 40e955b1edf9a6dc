"""A server copies a topic to another one, while it and the broker are killed (G1, G15)."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer

from deploy.local.kafka import KafkaBroker
from tests.connectors.kafka.given import committed, new_topic
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system import relayed
from tests.system.server import Server, run_cli

KEYS = 5
PARTITIONS = 3
SHORT = ("server", "broker", "server")
LONG = tuple(random.Random(7).choices(("server", "broker", "pause"), k=18))


async def produce(broker: str, topic: str, written: list[int], stop: asyncio.Event) -> None:
    """Write numbers until it is stopped. Each is in the topic once, also if the broker is killed."""
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True, "linger.ms": 5})
    while not stop.is_set():
        for number in range(len(written), len(written) + 10):
            key = str(number % KEYS)
            value = msgspec.json.encode(relayed.Number(key, number))
            producer.produce(topic, value, key=key, partition=number % KEYS % PARTITIONS)
            written.append(number)
        await asyncio.sleep(0.02)
    left = await asyncio.to_thread(producer.flush, patience(30))
    assert left == 0


async def disturb(what: str, server: Server, broker: KafkaBroker) -> None:
    if what == "server":
        await server.kill()
        await server.start()
    elif what == "broker":
        broker.kill()
        await asyncio.to_thread(broker.start)
    else:
        broker.pause()
        await asyncio.sleep(3)
        broker.resume()


def by_key(topic: str, broker: str) -> dict[str, list[int]]:
    found = defaultdict(list)
    for message in committed(topic, broker=broker):
        copy = msgspec.json.decode(message.value() or b"", type=relayed.Number)
        assert message.key() == copy.key.encode()
        found[copy.key].append(copy.number)
    return found


@pytest.mark.parametrize(
    "disturbances",
    [
        pytest.param(SHORT, marks=pytest.mark.timeout(300), id="short"),
        pytest.param(LONG, marks=(pytest.mark.long, pytest.mark.timeout(1_200)), id="long"),
    ],
)
@pytest.mark.guarantee("G1", section="6.1")
@pytest.mark.guarantee("G15")
async def test_each_record_is_copied_once_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disturbances: tuple[str, ...]
) -> None:
    with KafkaBroker(tmp_path / "kafka") as broker:
        source, target = (new_topic(partitions, broker=broker.address) for partitions in (PARTITIONS, 2))
        for name, value in (("BROKERS", broker.address), ("FROM", source), ("TO", target)):
            monkeypatch.setenv(f"RELAYED_{name}", value)
        written: list[int] = []
        stop = asyncio.Event()
        async with Server(tmp_path / "db", tmp_path / "server.log") as server, asyncio.TaskGroup() as tasks:
            await submit_copy(server.address, relayed.__file__, "relayed", tmp_path)
            tasks.create_task(produce(broker.address, source, written, stop))
            for one in disturbances:
                await asyncio.sleep(2)
                await disturb(one, server, broker)
            await asyncio.sleep(1)
            stop.set()

            async def copied() -> dict[str, list[int]]:
                return await asyncio.to_thread(by_key, target, broker.address)

            found = await until(
                copied, patience(60), every=0.5, holds=lambda found: sum(map(len, found.values())) >= len(written)
            )
            assert found == {str(key): list(range(key, len(written), KEYS)) for key in range(KEYS)}
            shown = await run_cli(server.address, "key", "inspect", "relayed/numbers-reader", "1")
            assert '"behind":0' in shown.out, shown.out
