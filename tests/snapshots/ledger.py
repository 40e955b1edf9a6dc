"""States of all kinds: windows, which a server may keep by columns, growing states, and timers alone."""

from __future__ import annotations

import msgspec

import millwheel as mw
from millwheel import agg, windows


class Sale(msgspec.Struct):
    shop: str
    cents: int


class Book(mw.GrowingState):
    cents: mw.ListState[int]
    last: int = 0


class Keep(mw.Computation[Sale, Book]):
    """Keeps each sale. A shop whose name begins with "x" forgets all at its second one."""

    def process_record(self, ctx: mw.Context[Book], record: mw.Record[Sale]) -> None:
        if ctx.key.startswith("x") and len(ctx.state.cents):
            del ctx.state
            return
        ctx.state.cents.append(record.value.cents)
        ctx.state.last = record.value.cents


class Remind(mw.Computation[Sale, None]):
    """Has timers, holds and no states."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Sale]) -> None:
        later = mw.Timestamp(record.timestamp + mw.days(record.value.cents))
        ctx.set_timer(later, "later", hold=record.timestamp)
        ctx.set_timer(mw.Timestamp(ctx.now + mw.days(9)), "clock", domain=mw.TimeDomain.PROCESSING_TIME)

    def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None:
        """Do nothing: tests look at the timers."""


ledger = mw.Topology("ledger")
sales = ledger.source("sales", Sale)
sales.key_by("shop").window(windows.tumbling(mw.hours(1))).aggregate("sums", n=agg.count(), cents=agg.sum("cents"))
ledger.add(Keep, inputs={"sales": mw.key("shop")})
ledger.add(Remind, inputs={"sales": mw.key("shop")})
