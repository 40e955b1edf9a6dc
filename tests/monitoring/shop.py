"""A topology that has something of everything that the dashboards show. Some orders make it fail."""

from __future__ import annotations

import time

import msgspec

import millwheel as mw
from millwheel.connectors import Read, Sink, SinkBatch, SinkShard, SinkWriter, Source, SplitReader, Splits


class Order(msgspec.Struct):
    item: str
    amount: int = 1


class Total(msgspec.Struct, frozen=True):
    item: str
    amount: int


class Count(mw.Computation[Order, int]):
    """Adds up the amounts of each item, and reports the sum."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        item = record.value.item
        if item == "poison":
            raise ValueError("not this one")
        if item == "slow":
            time.sleep(1.5)
        ctx.state += record.value.amount
        ctx.set_timer(mw.Timestamp(record.timestamp + mw.seconds(1)))
        ctx.produce("totals", Total(item, ctx.state))

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        """Do nothing: a timer is shown while it is set."""


class Latest(mw.Computation[Total, int]):
    """Keeps the newest sum of each item."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Total]) -> None:
        ctx.state = record.value.amount


def region(order: Order) -> str:
    return {"eu": "Europe"}[order.item[:2]]


class Region(mw.Computation[Order, int]):
    """Counts the orders of each region. Its key function raises for most."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        if record.value.item == "eu broken":
            raise ValueError("it is broken")
        ctx.state += 1


class Ticks(Source[Order, int], SplitReader[Order, int]):
    """A source with a record for each second of the clock, which is its position."""

    def __init__(self) -> None:
        self.position = 0

    async def splits(self) -> Splits:
        return Splits(["clock"], final=True)

    async def open_reader(self, split: str, position: int | None) -> SplitReader[Order, int]:
        reader = Ticks()
        reader.position = int(time.time()) if position is None else position
        return reader

    async def read(self) -> Read[Order, int]:
        now = int(time.time())
        upto = min(now, self.position + 100)
        found = [(Order("tick"), mw.Timestamp(at * 1_000_000)) for at in range(self.position, upto)]
        self.position = max(self.position, upto)
        return Read(found, self.position, behind=max(now - self.position, 0))


class Forgets(Sink[Order], SinkWriter[Order]):
    """A sink that keeps nothing."""

    async def open_writer(self, place: SinkShard) -> SinkWriter[Order]:
        return self

    async def write(self, batch: SinkBatch[Order]) -> None: ...


shop = mw.Topology("shop")
shop.source("ticks", Order, Ticks()).to("ticks-table", Forgets())
shop.source("orders", Order)
shop.source("returns", Order)
shop.add(
    Count,
    name="count",
    inputs={"orders": mw.key("item")},
    outputs={"totals": Total},
    on_failure=mw.dead_letter(after=2),
)
shop.add(Latest, inputs={"totals": mw.key("item")}, name="latest")
shop.add(Region, inputs={"returns": mw.key(region)}, name="by-region")
shop.add(Region, inputs={"returns": mw.key("item")}, name="by-item")
