"""What a worker says of how its records run, and how many of them went by columns (section 4.2)."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.sdk.compiled import compile_computation
from millwheel.worker.interval import DrainingCore, IntervalCore
from millwheel.worker.process.column_use import columns_of
from millwheel.worker.process.load import LoadMeter
from millwheel.worker.process.tallies import Tallies
from tests.windows.test_by_columns import COLUMNS, HOOKS
from tests.worker.interval.column_windows import Results, driver_of
from tests.worker.interval.driver import IntervalDriver

PLACE = ("topology", "test")


def reported(core: IntervalCore) -> tuple[str, bool, list[tuple[str, str]]]:
    tallies = Tallies()
    tallies.enter("test.1.j1", PLACE, core)
    load = LoadMeter(list, columns=lambda: columns_of(tallies.cores_by_place())).load()
    (one,) = load.columns
    assert (one.topology, one.computation) == PLACE
    return one.by_records, one.in_batches, [(each.stream, each.by_values) for each in one.inputs]


class Counting(mw.Computation[tuple[str, str], int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1


class Many(mw.BatchComputation[tuple[str, str]]):
    def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[tuple[str, str]]) -> None:
        """Nothing."""


def test_a_worker_says_how_records_run_and_why() -> None:
    assert reported(driver_of(Results()).core)[0] == ""
    off = driver_of(Results(), replace(COLUMNS, columns_from=0))
    assert "worker.columns" in reported(off.core)[0]
    assert "no tumbling windows" in reported(IntervalDriver(Counting()).core)[0]
    assert reported(IntervalDriver(Many()).core) == ("", True, [])


class TakesTables(Many):
    _takes_columns = True


class Bid(msgspec.Struct):
    item: str
    price: int


def test_inputs_have_their_full_names() -> None:
    topology = mw.Topology("shop")
    bids = topology.source("bids", Bid).map(lambda bid: bid, Bid)
    bids.key_by("item").window(windows.tumbling(mw.seconds(10))).aggregate("out", n=agg.count())
    found = compile_computation(topology, "out", full_names=True).columns
    assert found.by_hooks == ""
    assert list(found.by_values) == ["shop/bids"]


def test_a_worker_says_which_sinks_take_tables() -> None:
    core = IntervalDriver(TakesTables()).core
    assert reported(core) == ("", True, [("in", "its key is computed by code")])


@pytest.mark.parametrize(("settings", "share"), [(COLUMNS, 3), (HOOKS, 0)])
def test_records_by_columns_are_counted(settings: object, share: int) -> None:
    driver = driver_of(Results(), settings)  # type: ignore[arg-type]
    driver.deliver(("a", "", 1), ("b", "", 1), ("a", "", 2))
    driver.commit_all()
    assert (driver.core.meter.records.by_columns, driver.core.meter.records.calls) == (share, 3)


def test_a_draining_interval_does_not_hide_its_successor() -> None:
    tallies, live = Tallies(), IntervalDriver(Counting()).core
    draining = DrainingCore.__new__(DrainingCore)
    for journal, core in (("test.2.j2", live), ("test.1.j1", draining)):
        tallies.enter(journal, PLACE, core)
    assert tallies.cores_by_place() == {PLACE: live}
