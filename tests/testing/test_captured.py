"""Sinks that a test captures: what their writers would get, and no writer."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.testing import TopologyHarness
from tests.connectors.given import Store, Table, at


def selling(store: Store, **options: Any) -> mw.Topology:
    topology = mw.Topology("shop")
    sales = topology.source("sales", int)
    sales.filter(lambda cents: cents > 100).to("big-table", Table(store), **options)
    sales.to("all-table", Table(store))
    return topology


@pytest.mark.parametrize("crashes", [False, True])
def test_a_captured_sink_has_each_record_and_opens_nothing(crashes: bool) -> None:
    store = Store()
    with TopologyHarness(selling(store, batch_records=2), captured=["big-table"]) as harness:
        for number, cents in enumerate((300, 50, 500, 700)):
            harness.send("sales", cents, at(number))
        if crashes:
            harness.crash()
        harness.advance_clock(mw.seconds(1))
        assert harness.values("big-table") == [300, 500, 700]
        assert [one.timestamp for one in harness.produced("big-table")] == [at(0), at(2), at(3)]
        harness.finish()
        assert harness.watermark("big-table-batches") == mw.MAX_TIMESTAMP, "nothing waits for the writer"
    assert {place.sink for place in store.opened} == {"shop/all-table"}
    assert sorted(store.values()) == [50, 300, 500, 700], "the other sink writes"


def test_an_update_leaves_a_captured_sink_captured() -> None:
    store = Store()
    with TopologyHarness(selling(store), captured=["big-table"]) as harness:
        harness.send("sales", 300, at(1))
        harness.update(selling(store))
        harness.send("sales", 400, at(2))
        harness.advance_clock(mw.seconds(1))
        assert harness.values("big-table") == [300, 400]
    assert {place.sink for place in store.opened} == {"shop/all-table"}


def test_what_is_no_sink_cannot_be_captured() -> None:
    with pytest.raises(mw.UsageError, match=r"no sink 'big-tabel' \(did you mean 'big-table'\?\): captured="):
        TopologyHarness(selling(Store()), captured=["big-tabel"])
    with pytest.raises(mw.UsageError, match="no sink 'sales'"):
        TopologyHarness(selling(Store()), captured=["sales"])
