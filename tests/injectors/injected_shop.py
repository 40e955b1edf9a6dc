"""A topology whose outputs show the records that it read."""

from __future__ import annotations

import os
from typing import Any

import msgspec

import millwheel as mw
from millwheel import agg, windows


class Order(msgspec.Struct, rename={"customer": "user"}):
    customer: str
    number: int


class Note(Order):
    """An order that may have a note."""

    note: str | None = None


class Guest(msgspec.Struct):
    """An order of a customer who is perhaps not known. It has no key then."""

    user: str | None
    number: int


class Sold(msgspec.Struct):
    """A record with a field that may be null."""

    symbol: str
    price: float
    fee: float | None = None


class Echo(mw.Computation[Order, int]):
    """Numbers each customer's orders, and passes them on."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        ctx.state += 1
        ctx.produce("echo", {"user": ctx.key, "number": record.value.number, "nth": ctx.state, "late": record.late})


class Hours(mw.Computation[Order, int]):
    """Counts orders by a key that code computes. Produces the count when the stream has ended."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        ctx.state += 1
        ctx.set_timer(mw.Timestamp(mw.MAX_TIMESTAMP - 1))

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        ctx.produce("totals", {"bucket": ctx.key, "count": ctx.state})


class Loose(mw.Computation[Any, int]):
    """Takes any order."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Any]) -> None:
        """Adds one to the state."""
        ctx.state += 1


def bucket(order: Order) -> int:
    """A key that code computes."""
    return order.number % 3


class Poisoned(mw.Computation[Order, int]):
    """Takes no order."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        """Always raises."""
        raise RuntimeError("poison")


def only_odd(order: Order) -> int:
    """A key that some records do not have."""
    if order.number % 2 == 0:
        raise ValueError(f"even: {order.number}")
    return order.number


def moody(order: Order) -> int:
    """A key that fails for some records now, and may work later."""
    if str(order.number) in os.environ.get("MILLWHEEL_TEST_WITHOUT_KEY", "").split():
        raise ValueError(f"not now: {order.number}")
    return order.number


def topology(
    name: str,
    computation: type[mw.Computation[Any, Any]],
    key: Any,
    output: str = "",
    *,
    reads: str = "",
    kind: Any = Order,
    skew: mw.Duration | None = None,
) -> mw.Topology:
    """One computation that reads orders, of its own source or of another topology's stream ``reads``."""
    made = mw.Topology(name)
    if reads:
        made.external(reads, kind)
    else:
        made.source("orders", kind, allowed_skew=skew)
    made.add(computation, inputs={reads or "orders": mw.key(key)}, outputs={output: dict} if output else {})
    return made


shop = topology("shop", Echo, "customer", "echo")
notes = topology("notes", Echo, "customer", "echo", kind=Note)
numbered = topology("numbered", Echo, "number", "echo")
guests = topology("guests", Loose, "user", kind=Guest)
codekeyed = topology("codekeyed", Hours, bucket, "totals")
throttled = topology("throttled", Echo, "customer", "echo", skew=mw.seconds(10))
fussy = topology("fussy", Echo, only_odd, "echo")
poisoned = topology("poisoned", Poisoned, "customer")

fussy_shop = topology("fussy-shop", Echo, only_odd, "echo", reads="shop/orders")
moody_hours = topology("moody-hours", Hours, moody, "totals", reads="shop/orders")
unkeyable = topology("unkeyable", Loose, "missing", reads="shop/orders", kind=Any)
anything = topology("anything", Loose, str, reads="unread/orders", kind=Any)
fussy_hours = topology("fussy-hours", Hours, only_odd, "totals", reads="shop/orders")
late_shop = topology("late-shop", Hours, bucket, "totals", reads="shop/orders")
broken = topology("broken", Hours, bucket, "totals", reads="shop/orders")

unread = mw.Topology("unread")
unread.source("orders", Order)

dotted = topology("dotted", Loose, "user.id", kind=Any)

opaque = mw.Topology("opaque")
opaque.source("orders", bytes)

spoken = mw.Topology("spoken")
spoken.source("words", str)

sums = mw.Topology("sums")
sums.source("orders", Order)
sums.add(
    windows.Aggregate(windows.tumbling(mw.seconds(1)), agg.sum("number"), output="sold"),
    name="sold",
    inputs={"orders": mw.key("customer")},
    outputs={"sold": windows.Result[int | float]},
)

sales = mw.Topology("sales")
sales.source("sold", Sold)
sales.add(Loose, inputs={"sold": mw.key("symbol")})

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
