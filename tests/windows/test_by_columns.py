"""Windows by columns give what hooks give, through crashes and whatever the order of records (4.2, 4.6; G1, G5, G6)."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.testing import TopologyHarness

NOON = 1_767_268_800_000_000
SECOND = 1_000_000


class Bid(msgspec.Struct):
    auction: str
    price: int


class Bad(msgspec.Struct):
    auction: str
    price: str


def totals(**options: Any) -> mw.Topology:
    topology = mw.Topology("totals")
    bids = topology.source("bids", Bid)
    windowed = bids.key_by("auction").window(windows.tumbling(mw.seconds(10)))
    windowed.aggregate("totals", n=agg.count(), total=agg.sum("price"), highest=agg.max("price"), **options)
    return topology


def by_hooks(topology: mw.Topology) -> Any:
    """While it lasts, harnesses run the topology's windows by hooks."""
    return patch.object(windows.Aggregate, "_by_columns", lambda self: None)


send = st.tuples(
    st.just("send"), st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(-5, 5)), min_size=1)
)
advance = st.tuples(st.just("advance"), st.integers(0, 45))
crash = st.tuples(st.just("crash"), st.none())


def run(actions: list[tuple[str, Any]], topology: mw.Topology, late: str | None) -> list[Any]:
    with TopologyHarness(topology, now=mw.Timestamp(NOON)) as harness:
        watermark = 0
        for kind, what in actions:
            if kind == "send":
                batch = [(Bid(key, price), mw.Timestamp(NOON + at * SECOND)) for key, at, price in what]
                harness.send_all("bids", batch)
            elif kind == "advance":
                watermark = max(watermark, what)
                harness.advance(mw.Timestamp(NOON + watermark * SECOND))
            else:
                harness.crash()
        harness.finish()
        found = sorted((repr(one.value), one.timestamp) for one in harness.produced("totals"))
        if late is not None:
            found += sorted((repr(one.value), one.timestamp) for one in harness.produced(late))
        return [*found, harness.counts("totals")]


@given(st.lists(st.one_of(send, send, advance, crash), max_size=12), st.sampled_from([None, "too-late"]))
def test_columns_and_hooks_give_the_same(actions: list[tuple[str, Any]], late: str | None) -> None:
    options = {} if late is None else {"too_late": late}
    columns = run(actions, totals(**options), late)
    with by_hooks(totals()):
        assert run(actions, totals(**options), late) == columns
