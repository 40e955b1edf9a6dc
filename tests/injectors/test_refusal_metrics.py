"""A real worker's page shows whom it has refused (5.2; G13)."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.local.child import free_ports
from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from millwheel.model.deliveries import Delivery, PositionIds, Sender
from millwheel.model.limits import MAX_KEY_BYTES
from millwheel.rpc.channel import open_channel
from millwheel.rpc.deliveries import encode_delivery
from millwheel.rpc.v1.delivery_pb2 import DeliverRequest, DeliveryOutcome
from millwheel.rpc.v1.delivery_pb2_grpc import DeliveryServiceStub
from millwheel.server.dev_server import DevSettings, running
from tests.injectors import injected_shop as sample
from tests.injectors.conftest import submit_to
from tests.injectors.inside import session_of
from tests.patience import patience

INVALID = DeliveryOutcome.DELIVERY_OUTCOME_INVALID


async def refusals(port: int) -> dict[tuple[str, ...], float]:
    """The counter of refusals, by its labels."""

    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patience(10)) as response:
            text: str = response.read().decode()
            return text

    names = ("topology", "computation", "stream", "injector", "reason")
    families = text_string_to_metric_families(await asyncio.to_thread(read))
    return {
        tuple(sample.labels[name] for name in names): sample.value
        for family in families
        for sample in family.samples
        if sample.name == "millwheel_refused_deliveries_total"
    }


async def test_refused_deliveries_show_the_injector_and_the_reason(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with running(DevSettings(db=tmp_path / "db", port=0, metrics_port=port)) as server:
        await submit_to(server.address, "shop", tmp_path)
        injector = Injector("shop/orders", process="web-1", address=server.address, topology=sample.shop)
        async with Subscription("shop/orders", cursor="c", address=server.address), injector:
            await injector.send(sample.Order("a", 1), timestamp=1_000_000)
            await injector.flush()
            assert await refusals(port) == {}
            group = "injector/shop/orders"
            sender = Sender(f"{group}/web-1", injector.sequencer, None, group)
            expected = {}
            for consumer in session_of(injector).routing.consumers.values():
                (route, *_) = consumer.routes
                ids, long = PositionIds("s", 0, [1]), b"k" * (MAX_KEY_BYTES + 1)
                wrong = Delivery(consumer.incarnation, route.journal, "shop/orders", sender, ids, [long], [b"v"], [1])
                assert await answer(route.address, wrong) == INVALID
                place = ("", "") if consumer.log else ("shop", consumer.computation)
                expected[*place, "shop/orders", "web-1", "invalid"] = 1
            assert len(expected) > 1, "a computation and a log"
            assert await refusals(port) == expected


async def answer(address: str, delivery: Delivery) -> DeliveryOutcome.ValueType:
    """What a worker answers."""

    async def requests() -> AsyncIterator[DeliverRequest]:
        yield encode_delivery(delivery, 1)

    async with open_channel(address) as channel:
        call = DeliveryServiceStub(channel).Deliver(requests())
        response: Any = await call.read()
        outcome: DeliveryOutcome.ValueType = response.outcome
        return outcome


pytestmark = pytest.mark.timeout(120)
