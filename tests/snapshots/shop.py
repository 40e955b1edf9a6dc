"""A topology with states, timers and a log, and known results: what each customer spent in each second."""

from __future__ import annotations

from zlib import crc32

import msgspec

import millwheel as mw

SECOND = 1_000_000
END = 100_000 * SECOND


class Order(msgspec.Struct):
    customer: str
    amount: int
    place: str


class Spent(msgspec.Struct, frozen=True):
    customer: str
    until: int
    amount: int


class Total(msgspec.Struct, frozen=True):
    customer: str
    until: int
    total: int


class Account(msgspec.Struct, frozen=True):
    place: str
    orders: int
    checksum: int


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


class Orders(mw.GrowingState):
    texts: mw.ListState[str]
    times: mw.CounterState[str]


class Ledger(mw.Computation[Order, Orders]):
    """Keeps the orders of each place in a state of several pages. When the stream ends, it produces their checksum."""

    def process_record(self, ctx: mw.Context[Orders], record: mw.Record[Order]) -> None:
        order = record.value
        ctx.state.texts.append(f"{order.customer} has spent {order.amount}")
        ctx.state.times.add(order.customer)
        ctx.set_timer(mw.Timestamp(END), "end")

    def process_timer(self, ctx: mw.Context[Orders], timer: mw.Timer) -> None:
        state, checksum = ctx.state, 0
        for text in state.texts:
            checksum = crc32(text.encode(), checksum)
        for customer in sorted(state.times):
            checksum = crc32(f"{customer} {state.times[customer]}".encode(), checksum)
        ctx.produce("accounts", Account(ctx.key, len(state.texts), checksum), timestamp=timer.timestamp)


shop = mw.Topology("shop")
shop.source("orders", Order)
shop.add(Windows, inputs={"orders": mw.key("customer")}, outputs={"spent": Spent})
shop.add(Totals, inputs={"spent": mw.key("customer")}, outputs={"totals": Total})
shop.add(Ledger, inputs={"orders": mw.key("place")}, outputs={"accounts": Account})

weak = mw.Topology("weak")
weak.source("orders", Order)
weak.add(Windows, inputs={"orders": mw.key("customer")}, outputs={"spent": Spent}, strong=False)
