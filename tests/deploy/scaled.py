"""The topology of the autoscaling test. A worker process can do only so many records, on any machine."""

from __future__ import annotations

import time

import msgspec

import millwheel as mw

HOOK_SECONDS = 0.0001
"""The time of each hook, in which its process does nothing else. The largest batch takes less than a lease."""


class Order(msgspec.Struct, frozen=True):
    """An injected record."""

    item: str
    number: int


class Tally(msgspec.Struct):
    """The records of an item: how many, and the sum of their numbers."""

    records: int = 0
    total: int = 0


class Count(mw.Computation[Order, Tally]):
    """Counts the orders of each item."""

    def process_record(self, ctx: mw.Context[Tally], record: mw.Record[Order]) -> None:
        time.sleep(HOOK_SECONDS)
        ctx.state.records += 1
        ctx.state.total += record.value.number


scaled = mw.Topology("scaled")
scaled.source("orders", Order)
scaled.add(Count, name="count", inputs={"orders": mw.key("item")})
