"""A shop whose code gives records up, in several ways. Tests mend it by an update."""

from __future__ import annotations

import msgspec

import millwheel as mw


class Order(msgspec.Struct, frozen=True):
    customer: str
    item: str


class Billed(msgspec.Struct, frozen=True):
    customer: str
    times: int


GIVES_UP = mw.dead_letter(after=1)
BROKEN = True


class Bill(mw.Computation[Order, int]):
    """Counts a customer's orders. Its timers fail."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        if record.value.item == "timed":
            ctx.set_timer(mw.Timestamp(record.timestamp), "closing")
            return
        if BROKEN and record.value.item == "bad":
            raise ValueError("no price")
        ctx.state += 1
        ctx.produce("bills", Billed(record.value.customer, ctx.state))

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        raise ValueError("not closed")


class Audit(mw.Computation[Order, int]):
    """Another reader of the orders, which never fails."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        ctx.state += 1
        ctx.produce("audits", Billed(record.value.customer, ctx.state))


async def label(order: Order) -> str:
    """A call of a service."""
    if BROKEN and order.item == "bad":
        raise ConnectionError("it is away")
    return f"{order.customer} has ordered {order.item}"


shop = mw.Topology("shop")
orders = shop.source("orders", Order)
shop.add(Bill, inputs={"orders": mw.key("customer")}, outputs={"bills": Billed}, on_failure=GIVES_UP)
shop.add(Audit, inputs={"orders": mw.key("customer")}, outputs={"audits": Billed})
orders.key_by("customer").enrich("labels", label, str, on_failure=GIVES_UP)
