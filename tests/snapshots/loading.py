"""The load of the shop: numbered orders, sent by an injector that can begin again at any number."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from zlib import crc32

from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from tests.patience import patience
from tests.snapshots import shop
from tests.snapshots.shop import SECOND, Account, Order, Total

STEP = 20
"""Orders of one batch."""
CUSTOMERS = 37
_PER_SECOND = 50
"""Orders of one second of event time."""


def order(number: int) -> tuple[Order, int]:
    """Order ``number`` and its timestamp."""
    place = "north" if number % 3 else "south"
    return Order(f"customer-{number * 7 % CUSTOMERS}", number % 11 + 1, place), number * SECOND // _PER_SECOND


def expected(count: int) -> Counter[Total]:
    """All results of the first ``count`` orders."""
    windows: dict[str, dict[int, int]] = {}
    for value, stamp in map(order, range(count)):
        of_customer = windows.setdefault(value.customer, {})
        until = (stamp // SECOND + 1) * SECOND
        of_customer[until] = of_customer.get(until, 0) + value.amount
    found: Counter[Total] = Counter()
    for customer, sums in windows.items():
        total = 0
        for until in sorted(sums):
            total += sums[until]
            found[Total(customer, until, total)] += 1
    return found


def expected_accounts(count: int) -> set[Account]:
    """The accounts of the first ``count`` orders."""
    found: set[Account] = set()
    for place in ("north", "south"):
        orders = [value for value, _ in map(order, range(count)) if value.place == place]
        checksum = 0
        for one in orders:
            checksum = crc32(f"{one.customer} has spent {one.amount}".encode(), checksum)
        for customer, times in sorted(Counter(one.customer for one in orders).items()):
            checksum = crc32(f"{customer} {times}".encode(), checksum)
        found.add(Account(place, len(orders), checksum))
    return found


async def accounts(address: str, name: str = "shop") -> list[Account]:
    """All accounts, when the stream of topology ``name`` has ended."""
    async with (
        asyncio.timeout(patience(60)),
        Subscription(f"{name}/accounts", cursor="all", record_type=Account, address=address, until_end=True) as reader,
    ):
        return [value async for batch in reader for value in batch.values]


async def sell(
    address: str,
    first: int,
    last: int | asyncio.Event,
    sent: Callable[[int], None],
    pause: float = 0.0,
    name: str = "shop",
) -> int:
    """Send orders ``first`` to below ``last``, or until an event is set, and finish. Return the number of all orders.

    ``sent`` gets the number of orders that are ACKed.
    """
    number = first
    async with Injector(f"{name}/orders", address=address, process="p", topology=shop.shop.named(name)) as injector:
        while not last.is_set() if isinstance(last, asyncio.Event) else number < last:
            numbers = range(number, number + STEP if isinstance(last, asyncio.Event) else min(number + STEP, last))
            values, stamps = zip(*map(order, numbers), strict=True)
            await injector.send_many(list(values), list(stamps), positions=numbers)
            await injector.flush()
            await injector.advance(order(numbers[-1])[1])
            number = numbers[-1] + 1
            sent(number)
            await asyncio.sleep(pause)
        await injector.finish()
    return number


async def totals(address: str, cursor: str, count: int | None = None, name: str = "shop") -> list[Total]:
    """The results from the cursor on, until the stream ends. Or the first ``count``, which are ACKed."""
    found: list[Total] = []
    stream = f"{name}/totals"
    async with (
        asyncio.timeout(patience(60)),
        Subscription(stream, cursor=cursor, record_type=Total, address=address, until_end=count is None) as reader,
    ):
        async for batch in reader:
            found += batch.values
            if count is not None and len(found) >= count:
                await reader.ack(count)
                await reader.flush()
                break
    return found
