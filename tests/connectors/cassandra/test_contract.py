"""The contract of sinks, for a table of Cassandra on a real node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from deploy.local.child import free_ports
from millwheel.connectors import Sink
from millwheel.testing.connectors import SinkContract
from tests.connectors.cassandra.given import Sale, Shop


@pytest.mark.guarantee("G1", "G3", "G15")
class TestTable(SinkContract[Sale]):
    record_type = Sale
    keeps_order = False  # each record has a row of its own, and rows have the order of their keys

    @pytest.fixture(autouse=True)
    def _shop(self, shop: Shop) -> None:
        self.shop = shop
        self.topology = shop.name

    def make_sink(self) -> Sink[Sale]:
        return self.shop.sink()

    def stored(self) -> Sequence[int]:
        return list(self.shop.rows("cents").values())

    def value(self, number: int) -> Sale:
        return self.shop.sale(str(number), number)

    def number_of(self, value: Sale) -> int:
        assert isinstance(value.cents, int)
        return value.cents

    @contextmanager
    def away(self) -> Iterator[None]:
        sink = self.shop.sink
        point = f"127.0.0.1:{free_ports(1)[0]}"
        self.shop.sink = lambda **_: sink(changed={"contact_points": [point]})  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.shop.sink = sink  # type: ignore[method-assign]
