"""A topology that tells what came to it."""

from __future__ import annotations

import os
from typing import Any

import msgspec

import millwheel as mw
from millwheel import agg, windows


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


class Loose(mw.Computation[Any, int]):
    """Takes any order."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Any]) -> None:
        """Counts."""
        ctx.state += 1


def bucket(order: Order) -> int:
    """A key by code."""
    return order.number % 3


shop = mw.Topology("shop")
shop.source("orders", Order)
shop.add(Echo, inputs={"orders": mw.key("customer")}, outputs={"echo": dict})

unread = mw.Topology("unread")
unread.source("orders", Order)

spoken = mw.Topology("spoken")
spoken.source("words", str)

codekeyed = mw.Topology("codekeyed")
codekeyed.source("orders", Order)
codekeyed.add(Hours, inputs={"orders": mw.key(bucket)}, outputs={"totals": dict})

throttled = mw.Topology("throttled")
throttled.source("orders", Order, allowed_skew=mw.seconds(10))
throttled.add(Echo, inputs={"orders": mw.key("customer")}, outputs={"echo": dict})


def only_odd(order: Order) -> int:
    """A key that some records do not have."""
    if order.number % 2 == 0:
        raise ValueError(f"even: {order.number}")
    return order.number


fussy = mw.Topology("fussy")
fussy.source("orders", Order)
fussy.add(Echo, inputs={"orders": mw.key(only_odd)}, outputs={"echo": dict})


def reader(name: str, computation: type[mw.Computation[Any, Any]], key: Any, **more: Any) -> mw.Topology:
    """A topology of its own that reads the shop's orders."""
    made = mw.Topology(name)
    stream, kind = more.pop("stream", "shop/orders"), more.pop("kind", Order)
    made.external(stream, kind)
    made.add(computation, inputs={stream: mw.key(key)}, **more)
    return made


def moody(order: Order) -> int:
    """A key that some records do not have now, and may have later."""
    if str(order.number) in os.environ.get("MILLWHEEL_TEST_WITHOUT_KEY", "").split():
        raise ValueError(f"not now: {order.number}")
    return order.number


fussy_shop = reader("fussy-shop", Echo, only_odd, outputs={"echo": dict})
moody_hours = reader("moody-hours", Hours, moody, outputs={"totals": dict})
unkeyable = reader("unkeyable", Loose, "missing", kind=Any)
anything = reader("anything", Loose, str, stream="unread/orders", kind=Any)
fussy_hours = reader("fussy-hours", Hours, only_odd, outputs={"totals": dict})
late_shop = reader("late-shop", Hours, bucket, outputs={"totals": dict})
broken = reader("broken", Hours, bucket, outputs={"totals": dict})


class Poisoned(mw.Computation[Order, int]):
    """Takes no order."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        """Fails."""
        raise RuntimeError("poison")


poisoned = mw.Topology("poisoned")
poisoned.source("orders", Order)
poisoned.add(Poisoned, inputs={"orders": mw.key("customer")})

two_phases = mw.Topology("two-phases")
two_phases.source("orders", Order)
windows.two_phase(
    two_phases,
    "busy-users",
    source="orders",
    key_of=lambda order: order.customer,
    windows=windows.tumbling(mw.seconds(1)),
    aggregator=agg.count(),
    output="busy",
)
