"""The contract of sources, for topics of MQTT at a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from millwheel.connectors import Source, mqtt
from millwheel.connectors.mqtt.deliveries import SessionPosition
from millwheel.testing.connectors import SourceContract
from tests import components
from tests.connectors.test_mqtt import Measured, Plant


@pytest.mark.guarantee("G1", "G13")
class TestSession(SourceContract[Measured, SessionPosition]):
    """All messages are of one filter, whose session is the only split. The broker forgets what was acknowledged."""

    record_type = Measured
    splits_come = False
    keeps_records = False
    most_records = 600  # more than the broker sends without an acknowledgement

    @pytest.fixture(autouse=True)
    def _plant(self) -> None:
        self.empty()

    def empty(self) -> None:
        """With another session, because the broker may still have messages for the former one."""
        self.plant = Plant(components.mosquitto())
        asyncio.run(self._begin())

    async def _begin(self) -> None:
        """Open the session: the broker keeps messages for it from now on."""
        source = self.make_source()
        for split in (await source.splits()).names:
            await (await source.open_reader(split, None)).close()

    def make_source(self) -> Source[Measured, SessionPosition]:
        plant = self.plant
        return mqtt.source(f"{plant.name}/#", Measured, server=plant.broker.url, client=plant.name)

    def write(self, split: int, numbers: Sequence[int]) -> None:
        self.plant.send(*numbers)

    def number_of(self, value: Measured) -> int:
        return value.number

    def write_bad(self, split: int) -> None:
        self.plant.send('"no number"')

    @contextmanager
    def away(self) -> Iterator[None]:
        """It writes its sessions down when it stops."""
        self.plant.broker.process.stop()
        try:
            yield
        finally:
            self.plant.broker.start()
