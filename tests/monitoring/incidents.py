"""Incidents as a person on call has them: an alert fires, a command shows the cause, an action ends the alert."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server

from deploy.local.prometheus import Prometheus
from millwheel.client.injector import Injector
from millwheel.client.measured import INJECTORS, SUBSCRIPTIONS
from millwheel.client.metrics import register_metrics
from millwheel.client.subscription import Subscription
from tests.monitoring import shop as program
from tests.patience import patience, until
from tests.system.server import run_cli

MINUTE: Final = 3
"""The seconds that a minute of the rules takes here."""

_AMOUNTS: Final = {"system_lag_seconds) > 60": "system_lag_seconds) > 6", "_lag_records > 100000": "_lag_records > 99"}


def quick(rules: str) -> str:
    """The rules with shorter times and smaller amounts of waiting work.

    The window of failed requests and that of the leaders stay as they are, because time limits and elections do.
    """
    kept = {"outcome=~": r"\[1m\]", "millwheel_master_leads": r"\[15m\]"}
    lines = []
    for line in rules.splitlines():
        window = next((text for metric, text in kept.items() if metric in line), None)
        if window is None or not re.search(window, line):
            line = re.sub(r"(for: |\[)(\d+)m", lambda found: f"{found[1]}{int(found[2]) * MINUTE}s", line)
        lines.append(line)
    text = "\n".join(lines)
    for usual, smaller in _AMOUNTS.items():
        assert usual in text
        text = text.replace(usual, smaller)
    return text


@contextmanager
def program_page() -> Iterator[str]:
    """The metrics page of this process, which is the program with injectors and subscriptions. Yields its address."""
    registry = CollectorRegistry()
    register_metrics(registry)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        INJECTORS.kept = SUBSCRIPTIONS.kept = False


@dataclass(frozen=True, slots=True)
class OnCall:
    """An operator with a pager and the command line."""

    address: str
    prometheus: Prometheus
    seen: set[str] = field(default_factory=set)
    """All alerts that have fired while a test waited for one."""

    async def paged(self, *alerts: str) -> None:
        """Wait until these alerts fire."""
        await self._wait(lambda firing: firing >= set(alerts))

    async def mended(self, *alerts: str) -> None:
        """Wait until none of these alerts fires."""
        await self._wait(lambda firing: not firing & set(alerts))

    async def quiet(self) -> None:
        """Wait until no alert fires, but the one whose window is not shorter. Then what fired before is forgotten."""
        await self._wait(lambda firing: not firing - {"MillwheelLeaderChanges"})
        self.seen.clear()

    async def finds(self, cause: str, *command: str) -> None:
        """Run a command until it shows the cause."""

        async def shown() -> str:
            found = await run_cli(self.address, *command)
            return found.out + found.err

        await until(shown, patience(10), every=1.0, holds=lambda text: cause in text)

    async def _wait(self, holds: Callable[[set[str]], bool]) -> None:
        async def firing() -> set[str]:
            found = await asyncio.to_thread(self.prometheus.firing)
            self.seen.update(found)
            return found

        await until(firing, patience(30), every=0.5, holds=holds)


class Shop:
    """The till sends orders, and the ledger reads totals. Each goes on until it has to wait."""

    def __init__(self, address: str) -> None:
        self.ordering, self.reading = asyncio.Event(), asyncio.Event()
        self.ordering.set()
        self.reading.set()
        self.special: list[str] = []
        """Items that are ordered next."""
        self._address = address

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Shop]:
        """Run as long as the block."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._order()), group.create_task(self._read())]
            yield self
            for task in tasks:
                task.cancel()

    async def _order(self) -> None:
        async with Injector("orders", address=self._address, process="till", topology=program.shop) as injector:
            for number in range(1_000_000):
                await self.ordering.wait()
                now = time.time_ns() // 1_000
                item = self.special.pop() if self.special else f"item {number % 7}"
                await injector.send(program.Order(item), timestamp=now)
                await injector.advance(now)
                await asyncio.sleep(0.05)

    async def _read(self) -> None:
        kind = program.Total
        async with Subscription("totals", cursor="ledger", record_type=kind, address=self._address) as subscription:
            async for batch in subscription:
                await self.reading.wait()
                await subscription.ack(batch.next_offset)
