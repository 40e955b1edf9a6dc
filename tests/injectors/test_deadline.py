"""The driver's timer beside those of the program, in virtual time (section 5.2)."""

from __future__ import annotations

import asyncio
from contextlib import closing
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.driver import InjectorDriver, SenderIdentity
from millwheel.client.injector.errors import InjectorClosedError
from millwheel.client.injector.membership import Membership
from millwheel.client.injector.messages import ConnectionOpened, KeyedRecords, Limits, RoutingArrived, SendBatch
from simulation.loop import SimulatedLoop
from tests.injectors.test_core import SCOPE, routing

LINGER = Limits().linger


class ListingDriver(InjectorDriver):
    """Lists what it sends, and when, in microseconds. It has no connections."""

    membership = cast("Membership", SimpleNamespace(reports=None))

    def __init__(self, core: InjectorCore) -> None:
        super().__init__(core, SenderIdentity("s", "p", 1, publishes=False))
        self.sent: list[tuple[int, list[int]]] = []
        self.first_unwritten: SendBatch | None = None
        self._loop = asyncio.get_running_loop()
        self.is_open = True

    def send(self, batch: SendBatch) -> None:
        """Send a batch. No answer comes."""
        self.sent.append((round(self._loop.time() * 1e6), list(batch.ids)))

    def _connect(self, address: str) -> None:
        self._links[address] = cast("Any", self)

    def _disconnect(self, address: str) -> None:
        raise AssertionError(address)

    def _not_open(self) -> InjectorClosedError:
        raise AssertionError

    def _waits_long(self, seconds: float, newest: int | None) -> None:
        raise AssertionError(seconds)


async def play() -> list[tuple[int, list[int]]]:
    core = InjectorCore("s", "p", limits=Limits())
    driver = ListingDriver(core)
    driver.step(RoutingArrived(routing()))
    driver.step(ConnectionOpened("a"))

    def record(number: int) -> None:
        (name,) = routing().consumers
        driver.step(KeyedRecords([b"v"], [50], {name: [b"k"]}, SCOPE, [number]))

    async def later(number: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        asyncio.get_running_loop().call_soon(record, number)  # as the intake does

    record(0)
    record(1)
    deadline = core.next_deadline()
    assert deadline is not None
    await later(2, deadline / 1e6)
    await later(3, 0.1 * LINGER / 1e6)
    await asyncio.sleep(1)
    return driver.sent


def test_records_that_come_with_the_deadline_go_along() -> None:
    """A program that sends by a timer has its records just after the driver's timer rings. They would wait twice."""
    with closing(SimulatedLoop(Random(1))) as loop:
        sent = loop.run_until_complete(play())
    assert [ids for _, ids in sent] == [[0], [1, 2], [3]]
    assert [at - sent[0][0] for at, _ in sent] == [0, LINGER + 1, 2 * (LINGER + 1)]
