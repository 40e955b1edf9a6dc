"""Topologies whose key function raises for most records."""

from __future__ import annotations

import msgspec

import millwheel as mw


class Order(msgspec.Struct):
    customer: str
    amount: int = 1


def region(order: Order) -> str:
    return {"eu": "Europe"}[order.customer[:2]]


class Total(mw.Computation[Order, int]):
    """Adds up amounts."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        ctx.state += record.value.amount


class Relay(mw.Computation[Order, None]):
    """Passes orders on, to a consumer that has its own key."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Order]) -> None:
        ctx.produce("relayed", record.value)


regions = mw.Topology("regions")
regions.source("orders", Order)
regions.add(Total, name="by-region", inputs={"orders": mw.key(region)})
regions.add(Total, name="by-customer", inputs={"orders": mw.key("customer")})

refusing = mw.Topology("refusing")
refusing.source("orders", Order)
refusing.add(Total, name="by-region", inputs={"orders": mw.key(region)})

relaying = mw.Topology("relaying")
relaying.source("orders", Order)
relaying.add(Relay, name="relay", inputs={"orders": mw.key("customer")}, outputs={"relayed": Order})
relaying.add(Total, name="by-region", inputs={"relayed": mw.key(region)})
