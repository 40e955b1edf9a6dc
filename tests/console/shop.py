"""Topologies for the console: one with three computations, one with fifty, and one that gives records up."""

from __future__ import annotations

import msgspec

import millwheel as mw

REFUSED = "eve"
"""The customer whose records make a hook raise."""


class Order(msgspec.Struct):
    customer: str
    cents: int


class Accounts(mw.Computation[Order, int]):
    """The sum of each customer."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        ctx.state += record.value.cents
        ctx.produce("accounts", Order(record.value.customer, ctx.state))


class Alerts(mw.Computation[Order, int]):
    """Raises for one customer."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        if record.value.customer == REFUSED:
            raise ValueError(f"no alert for {REFUSED}")
        ctx.produce("alerts", record.value)


class Days(mw.Computation[Order, int]):
    """The last sum of each customer, when its hour is over."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        ctx.state = record.value.cents
        ctx.set_timer(mw.Timestamp(record.timestamp + 3_600_000_000))

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        ctx.produce("days", Order(str(ctx.key), ctx.state))


class Bills(mw.Computation[Order, int]):
    """Gives the orders of a customer up until the customer has a price."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        if record.stream == "prices":
            ctx.state = record.value.cents
        elif ctx.state == 0:
            raise LookupError(f"no price for {record.value.customer}")
        else:
            ctx.produce("bills", Order(record.value.customer, ctx.state))


class Step(mw.Computation[Order, int]):
    """Passes its records on."""

    def __init__(self, output: str) -> None:
        self._output = output

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        ctx.produce(self._output, record.value)


shop = mw.Topology("shop")
shop.source("orders", Order)
shop.add(Accounts, inputs={"orders": mw.key("customer")}, outputs={"accounts": Order})
shop.add(Alerts, inputs={"accounts": mw.key("customer")}, outputs={"alerts": Order})
shop.add(Days, inputs={"accounts": mw.key("customer")}, outputs={"days": Order})

bills = mw.Topology("bills")
bills.source("orders", Order)
bills.source("prices", Order)
bills.add(
    Bills,
    inputs={"orders": mw.key("customer"), "prices": mw.key("customer")},
    outputs={"bills": Order},
    on_failure=mw.dead_letter(after=1),
)

large = mw.Topology("large")
large.source("orders", Order)
for number in range(50):
    read = "orders" if number == 0 else f"out-{(number - 1) // 3}"
    written = f"out-{number}"
    large.add(Step(written), name=f"step-{number}", inputs={read: mw.key("customer")}, outputs={written: Order})
