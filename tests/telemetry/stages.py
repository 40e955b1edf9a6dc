"""Three computations one after the other. The second one produces by a timer."""

from __future__ import annotations

from pathlib import Path

import msgspec

import millwheel as mw

GATE = Path("no gate")


class Sale(msgspec.Struct):
    """What a shop has sold."""

    shop: str
    euros: int


class Total(msgspec.Struct):
    """What a shop has sold in a second."""

    shop: str
    euros: int


class Check(mw.Computation[Sale, None]):
    """The first stage. It fails while a file exists."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Sale]) -> None:
        if GATE.exists():
            raise RuntimeError("secret text of a user")
        ctx.produce("checked", record.value)


class Add(mw.Computation[Sale, int]):
    """The second stage: a sum, which a timer produces."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Sale]) -> None:
        ctx.state += record.value.euros
        ctx.set_timer(mw.Timestamp(1_000_000))

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        ctx.produce("totals", Total(ctx.key, ctx.state))


class Rank(mw.Computation[Total, int]):
    """The third stage."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Total]) -> None:
        ctx.state += record.value.euros
        ctx.produce("ranks", Total(ctx.key, ctx.state))


stages = mw.Topology("stages")
stages.source("sales", Sale)
stages.add(Check, name="check", inputs={"sales": mw.key("shop")}, outputs={"checked": Sale})
stages.add(Add, name="add", inputs={"checked": mw.key("shop")}, outputs={"totals": Total})
stages.add(Rank, name="rank", inputs={"totals": mw.key("shop")}, outputs={"ranks": Total})
