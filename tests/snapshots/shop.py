"""A topology with states, timers and a log, and known results: what each customer spent in each second."""

from __future__ import annotations

import msgspec

import millwheel as mw

SECOND = 1_000_000


class Order(msgspec.Struct):
    customer: str
    amount: int


class Spent(msgspec.Struct, frozen=True):
    customer: str
    until: int
    amount: int


class Total(msgspec.Struct, frozen=True):
    customer: str
    until: int
    total: int


class Windows(mw.Computation[Order, dict[int, int]]):
    """Adds the amounts of each second, and produces the sum when the second is complete."""

    def process_record(self, ctx: mw.Context[dict[int, int]], record: mw.Record[Order]) -> None:
        until = (record.timestamp // SECOND + 1) * SECOND
        ctx.state[until] = ctx.state.get(until, 0) + record.value.amount
        ctx.set_timer(mw.Timestamp(until), str(until))

    def process_timer(self, ctx: mw.Context[dict[int, int]], timer: mw.Timer) -> None:
        amount = ctx.state.pop(int(timer.tag))
        ctx.produce("spent", Spent(ctx.key, int(timer.tag), amount), timestamp=timer.timestamp)


class Totals(mw.Computation[Spent, int]):
    """Adds the sums of each customer."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Spent]) -> None:
        spent = record.value
        ctx.state += spent.amount
        ctx.produce("totals", Total(spent.customer, spent.until, ctx.state), timestamp=record.timestamp)


shop = mw.Topology("shop")
shop.source("orders", Order)
shop.add(Windows, inputs={"orders": mw.key("customer")}, outputs={"spent": Spent})
shop.add(Totals, inputs={"spent": mw.key("customer")}, outputs={"totals": Total})

weak = mw.Topology("weak")
weak.source("orders", Order)
weak.add(Windows, inputs={"orders": mw.key("customer")}, outputs={"spent": Spent}, strong=False)
