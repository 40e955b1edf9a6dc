"""A topology that tells what came to it."""

from __future__ import annotations

import msgspec

import millwheel as mw


class Order(msgspec.Struct, rename={"customer": "user"}):
    customer: str
    number: int


class Echo(mw.Computation[Order, int]):
    """Numbers each customer's orders, and passes them on."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        ctx.state += 1
        ctx.produce("echo", {"user": ctx.key, "number": record.value.number, "nth": ctx.state, "late": record.late})


class Hours(mw.Computation[Order, int]):
    """Counts orders by a key that only code can tell, and says so when the stream has ended."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        ctx.state += 1
        ctx.set_timer(mw.Timestamp(mw.MAX_TIMESTAMP - 1))

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        ctx.produce("totals", {"bucket": ctx.key, "count": ctx.state})


def bucket(order: Order) -> int:
    """A key by code."""
    return order.number % 3


shop = mw.Topology("shop")
shop.source("orders", Order)
shop.add(Echo, inputs={"orders": mw.key("customer")}, outputs={"echo": dict})

codekeyed = mw.Topology("codekeyed")
codekeyed.source("orders", Order)
codekeyed.add(Hours, inputs={"orders": mw.key(bucket)}, outputs={"totals": dict})

throttled = mw.Topology("throttled")
throttled.source("orders", Order, allowed_skew=mw.seconds(10))
throttled.add(Echo, inputs={"orders": mw.key("customer")}, outputs={"echo": dict})
