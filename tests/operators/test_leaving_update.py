"""A step of ``update`` whose state changes becomes a ``process`` step that migrates it, as the refusal says (4.4)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.testing import TopologyHarness

NOON = mw.Timestamp(1_700_000_000_000_000)


class Total(msgspec.Struct):
    cents: int = 0


class Renamed(msgspec.Struct):
    amount: int = 0


def topology(step: Any) -> mw.Topology:
    made = mw.Topology("shop")
    step(made.source("sales", int).key_by(mw.everything))
    return made


def add(total: Total, cents: int) -> tuple[Total, list[int]]:
    return Total(total.cents + cents), [total.cents + cents]


def add_renamed(total: Renamed, cents: int) -> tuple[Renamed, list[int]]:
    return Renamed(total.amount + cents), [total.amount + cents]


class Sums(mw.Computation[int, Renamed]):
    state_version = 2

    def __init__(self, keep: Any) -> None:
        self.keep = keep

    def migrate(self, stored: mw.StoredState) -> Renamed:
        if self.keep is None:
            return Renamed(stored.read(list[Total])[0].cents)
        return Renamed(stored.read(list[tuple[int, Total]])[0][1].cents)

    def process_record(self, ctx: mw.Context[Renamed], record: mw.Record[int]) -> None:
        ctx.state.amount += record.value
        ctx.produce("sums", ctx.state.amount)

    def process_timer(self, ctx: mw.Context[Renamed], timer: mw.Timer) -> None:
        del ctx.state


@pytest.mark.paper(section="4.4")
@pytest.mark.parametrize(
    ("keep", "reads"),
    [(None, "stored.read(list[Old])[0]"), (mw.hours(1), "stored.read(list[tuple[int, Old]])[0][1]")],
)
def test_a_renamed_field_is_kept_by_a_process_step(keep: Any, reads: str) -> None:
    harness = TopologyHarness(topology(lambda sales: sales.update("sums", Total(), add, int, keep=keep)))
    harness.send("sales", 5, NOON)
    with pytest.raises(mw.TopologyError) as refused:
        harness.update(topology(lambda sales: sales.update("sums", Renamed(), add_renamed, int, keep=keep)))
    message = str(refused.value)
    assert "write the step as process under the same name, with state_version = 2 and migrate" in message
    assert reads in message
    harness.update(topology(lambda sales: sales.process("sums", Sums(keep), {"sums": int})))
    harness.send("sales", 3, NOON)
    assert harness.values("sums") == [5, 8]
    harness.finish()
