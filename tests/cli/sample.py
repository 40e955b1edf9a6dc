"""A topology for the command line's tests."""

from __future__ import annotations

import msgspec

import millwheel as mw


class Query(msgspec.Struct):
    text: str


class Counter(mw.Computation[Query, int]):
    """Counts."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Query]) -> None:
        ctx.state += 1
        ctx.produce("counts", ctx.state)


good = mw.Topology("sample")
good.source("queries", Query)
good.stream("counts", int)
good.add(Counter, inputs={"queries": mw.key("text")}, outputs=["counts"])
