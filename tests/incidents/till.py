"""The till: a program that writes orders to a file, and an injector process that follows the file.

The injector process is ``millwheel inject file --tail``. A test can pause it, kill it, and start it again.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Final

import msgspec

from deploy.local.child import ChildProcess, free_ports
from tests.incidents.shop import Order
from tests.system.server import MAIN, ROOT

STREAM: Final = "shop/orders"
PROCESS: Final = "till"
_TURN_SECONDS: Final = 0.1


ITEMS: Final = ("Apples", "Bread", "Cheese", "kale", "leek", "éclairs", "île flottante")
"""Three intervals of equal size have some of them each, by the first byte of their names."""


def item_of(number: int) -> str:
    """The item of a usual order."""
    return ITEMS[number % len(ITEMS)]


@dataclass
class Till:
    """Orders at a steady rate. A test changes the rate, the items and the cost of the coming orders at any time."""

    place: Path
    """A folder of its own."""
    address: str
    """The masters' addresses."""
    rate: float = 10.0
    """Orders in a second."""
    item: Callable[[int], str] = item_of
    seconds: float = 0.0
    """What an order costs at ``count``."""
    special: list[tuple[str, int]] = field(default_factory=list)
    """Items and amounts of orders that come next."""
    sent: list[Order] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.place / "orders").mkdir(parents=True)
        self.page = f"127.0.0.1:{free_ports(1)[0]}"
        """The metrics page of the injector process."""
        command = [
            *(sys.executable, "-c", MAIN, "inject", "file", STREAM, str(self.place / "orders"), "--tail"),
            *("--timestamp", "at", "--unit", "us", "--process", PROCESS),
            *("--checkpoint", str(self.place / "checkpoint"), "--metrics-port", self.page.rpartition(":")[2]),
        ]
        environment = {"MILLWHEEL_ADDRESS": self.address, "PYTHONPATH": str(ROOT)}
        self.process = ChildProcess(command, self.place / "log", environment)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Till]:
        """Sell during the block."""
        with (self.place / "orders" / "orders.jsonl").open("a") as file:
            selling = asyncio.create_task(self._sell(file))
            self.process.start()
            try:
                yield self
            finally:
                selling.cancel()
                await asyncio.gather(selling, return_exceptions=True)
                await asyncio.to_thread(self.process.stop)

    async def _sell(self, file: IO[str]) -> None:
        due, numbers = time.monotonic(), count()
        while True:
            now = time.monotonic()
            if self.rate <= 0:
                due = now
            while due < now or self.special:
                if not self.special:
                    due += 1 / self.rate
                self._order(next(numbers), file)
            file.flush()
            await asyncio.sleep(_TURN_SECONDS)

    def _order(self, number: int, file: IO[str]) -> None:
        item, amount = self.special.pop(0) if self.special else (self.item(number), 1 + number % 3)
        order = Order(number, item, amount, time.time_ns() // 1_000, self.seconds)
        self.sent.append(order)
        file.write(msgspec.json.encode(order).decode() + "\n")
