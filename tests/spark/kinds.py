"""A topology with a field for each type of Spark. It produces what it gets."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated

import msgspec

import millwheel as mw


class Sold(msgspec.Struct):
    id: str
    day: date | None
    price: Decimal | None
    local: Annotated[datetime, msgspec.Meta(tz=False)] | None = None
    took: timedelta | None = None
    opens: time | None = None
    days: dict[date, Decimal] | None = None
    counts: dict[int, int] | None = None


class Echo(mw.Computation[Sold, None]):
    def process_record(self, ctx: mw.Context[None], record: mw.Record[Sold]) -> None:
        ctx.produce("echoed", record.value)


kinds = mw.Topology("kinds")
kinds.source("sold", Sold)
kinds.add(Echo, inputs={"sold": mw.key("id")}, outputs={"echoed": Sold})
