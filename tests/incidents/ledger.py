"""The ledger: it reads all results of the shop, and says whether each order counts exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from millwheel.client.control import ControlClient
from millwheel.client.subscription import From, Subscription
from millwheel.windows import Result
from tests.incidents.shop import WINDOW, Order, Total

_PATIENCE_SECONDS: Final = 3600.0


@dataclass
class Ledger:
    """All results so far."""

    address: str
    totals: list[Total] = field(default_factory=list)
    sold: list[Result[int]] = field(default_factory=list)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Ledger]:
        """Read during the block. Nothing is missed that comes after its begin."""
        async with ControlClient(self.address, patience=_PATIENCE_SECONDS) as client:
            for stream in ("totals", "sold"):
                await client.ensure_stream_log(f"shop/{stream}")
        reading = [
            asyncio.create_task(self._read("totals", Total, self.totals)),
            asyncio.create_task(self._read("sold", Result[int], self.sold)),
        ]
        try:
            yield self
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    async def _read(self, stream: str, kind: Any, found: list[Any]) -> None:
        how: dict[str, Any] = {"address": self.address, "record_type": kind, "patience": _PATIENCE_SECONDS}
        async with Subscription(f"shop/{stream}", cursor="ledger", start=From.OLDEST, auto_ack=True, **how) as reader:
            async for batch in reader:
                found.extend(batch.values)

    def has_all(self, orders: Iterable[Order]) -> bool:
        """Whether a total of each order has come, and a window with each."""
        expected = list(orders)
        return len(self.totals) >= len(expected) and sum(one.value for one in self.sold) >= len(expected)

    def problems(self, orders: Iterable[Order]) -> list[str]:
        """What is not exact. These orders, and no others, must have counted once each."""
        expected = list(orders)
        found = Counter(one.number for one in self.totals)
        wrong = [f"order {one.number} counts {found[one.number]} times" for one in expected if found[one.number] != 1]
        wrong += [f"order {number} counts" for number in found.keys() - {one.number for one in expected}]
        amounts: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        amount_of = {one.number: one.amount for one in expected}
        for total in sorted(self.totals, key=lambda one: (one.item, one.count)):
            counts[total.item] += 1
            amounts[total.item] += amount_of.get(total.number, 0)
            if (total.count, total.amount) != (counts[total.item], amounts[total.item]):
                wrong.append(f"{total} is number {counts[total.item]} of its item, with {amounts[total.item]}")
        windows = Counter((one.item, one.at - one.at % WINDOW) for one in expected)
        results = Counter({(one.key, int(one.start)): one.value for one in self.sold})
        if len(results) != len(self.sold):
            wrong.append("a window has two results")
        wrong += [f"window {key} has {results[key]}" for key in windows | results if windows[key] != results[key]]
        return wrong
