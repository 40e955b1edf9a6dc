"""The topology of the incidents: orders are counted by item, and by window. Some orders are poison, and some are slow.

A test submits a copy of this file, and updates the topology to a changed copy.
"""

from __future__ import annotations

import time

import msgspec

import millwheel as mw
from millwheel import agg, windows


class Order(msgspec.Struct, frozen=True):
    """An order of the till. ``number`` counts all orders from 0 on."""

    number: int
    item: str
    amount: int
    at: int
    """When it was made, in microseconds."""
    seconds: float = 0.0
    """How long the look-up takes that this order needs."""


class Total(msgspec.Struct, frozen=True):
    """An order that was counted: it is the ``count``-th one of its item, and all of them have this ``amount``."""

    number: int
    item: str
    count: int
    amount: int


class Tally(msgspec.Struct):
    """The state of an item."""

    count: int = 0
    amount: int = 0


def look_up(order: Order) -> None:
    """Ask a service that takes its time. Nothing else of the process runs meanwhile, as with any long computation."""
    time.sleep(order.seconds)


class Count(mw.Computation[Order, Tally]):
    """Counts the orders of each item."""

    def process_record(self, ctx: mw.Context[Tally], record: mw.Record[Order]) -> None:
        order, tally = record.value, ctx.state
        if order.amount < 0:
            raise ValueError(f"order {order.number} has the amount {order.amount}")
        look_up(order)
        tally.count += 1
        tally.amount += order.amount
        ctx.produce("totals", Total(order.number, order.item, tally.count, tally.amount))


WINDOW = mw.seconds(10)

shop = mw.Topology("shop")
shop.source("orders", Order)
shop.add(Count, name="count", inputs={"orders": mw.key("item")}, outputs={"totals": Total})
sold = windows.Aggregate(windows.tumbling(WINDOW), agg.count(), output="sold")
shop.add(sold, name="sold", inputs={"totals": mw.key("item")})
