"""The rows of an overview: sums over the intervals of present owners, and nothing of former ones."""

from __future__ import annotations

import pytest

from millwheel.coordination.contract import KeyChange, Put
from millwheel.master.load_book import LoadBook
from millwheel.master.overview import OverviewRows
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import chunk_key, log_key, topology_key, worker_key
from millwheel.model.incarnation import IncarnationId, injector_group
from millwheel.model.time import Timestamp
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as wire
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.rpc.v1.common_pb2 import Endpoint, KeyInterval
from tests.coordination.memory import MemoryCoordinator, read_catalog

COUNTER, LOG = IncarnationId("counter.7"), IncarnationId("log.8")
GROUP = injector_group("shop/in")


def spec() -> specs.TopologySpec:
    made = specs.TopologySpec(name="shop")
    made.streams.add(name="shop/in", injected=True, record_type="int")
    made.streams.add(name="shop/out")
    made.streams.add(name="web/clicks", external=True)
    counter = made.computations.add(name="counter", implementation="m:Counter", outputs=["shop/out"])
    counter.inputs.add(stream="shop/in")
    counter.inputs.add(stream="web/clicks")
    return made


def interval(
    journal: str, sequencer: int, start: bytes, end: bytes | None, owner: str, registration: int = 1
) -> catalog.IntervalRecord:
    keys = KeyInterval(start=start, end=end)
    record = catalog.IntervalRecord(keys=keys, journal=journal, sequencer=sequencer)
    if owner:
        record.owner.worker_id = owner
        record.owner_revision = registration
    return record


@pytest.fixture
async def known() -> Catalog:
    coordinator = MemoryCoordinator()
    record = catalog.TopologyRecord(
        spec=spec(), version=2, state=catalog.TOPOLOGY_STATE_RUNNING, incarnations={"counter": COUNTER}
    )
    worker = catalog.WorkerRecord(endpoint=Endpoint(worker_id="w1", address="h:1"))
    intervals = [
        interval("counter.7.j1", 11, b"", b"h", "w1"),
        interval("counter.7.j2", 12, b"h", b"p", "w1"),
        interval("counter.7.j3", 13, b"p", b"t", ""),
        interval("counter.7.j4", 15, b"t", None, "w1", registration=99),
    ]
    counter = catalog.IntervalMapRecord(computation="counter", topology="shop", intervals=intervals)
    log = catalog.IntervalMapRecord(intervals=[interval("log.8.j1", 14, b"", None, "w1")])
    await coordinator.transact((), [Put(worker_key("w1"), worker.SerializeToString())])
    await coordinator.transact(
        (),
        [
            Put(topology_key("shop"), record.SerializeToString()),
            Put(chunk_key(COUNTER, 0), counter.SerializeToString()),
            Put(chunk_key(LOG, 0), log.SerializeToString()),
            Put(log_key("shop/out"), catalog.StreamLogRecord(stream="shop/out", incarnation=LOG).SerializeToString()),
        ],
    )
    found = await read_catalog(coordinator)
    await coordinator.close()
    return found


def load(journal: str, sequencer: int, **figures: float) -> inspection.IntervalLoad:
    made = inspection.IntervalLoad(journal=journal, sequencer=sequencer)
    for name, value in figures.items():
        setattr(made, name, value)
    return made


def rows(known: Catalog, *loads: inspection.IntervalLoad) -> wire.TopologyOverview:
    book = LoadBook()
    hooks = [
        inspection.ComputationHook(
            topology="shop", computation="counter", time=inspection.HookTime(hook="process_record", calls=4)
        )
    ]
    columns = [inspection.ComputationColumns(topology="shop", computation="counter", by_records="it has no windows")]
    book.on_load("w1", inspection.GetWorkerLoadResponse(intervals=loads, hooks=hooks, columns=columns), Timestamp(1))
    watermarks = {
        COUNTER: wire.WatermarkOverview(low_watermark_us=5, held_by="input"),
        GROUP: wire.WatermarkOverview(low_watermark_us=9),
    }
    failing = [wire.ComputationFailures(topology="shop", computation="counter", text="it raises")]
    made = OverviewRows(known, book, watermarks, failing)
    return made.topology(known.topologies["shop"], ["an owner"])


async def test_loads_of_present_owners_are_summed_up(known: Catalog) -> None:
    (row,) = rows(
        known,
        load("counter.7.j1", 11, records_per_second=3.0, queued_records=5, system_lag_seconds=2.0, dead_letters=1),
        load("counter.7.j2", 12, records_per_second=4.0, queued_records=6, system_lag_seconds=0.5),
        load("counter.7.j3", 9, records_per_second=100.0, system_lag_seconds=50.0),
    ).computations
    assert (row.records_per_second, row.queued_records, row.dead_letters) == (7.0, 11, 1)
    assert row.system_lag_seconds == 2.0
    assert (row.intervals, list(row.workers)) == (4, ["w1"])


async def test_intervals_without_a_living_owner_are_counted(known: Catalog) -> None:
    (row,) = rows(known).computations
    assert row.without_owner == 2, "one without any, one whose owner has registered again"


async def test_a_row_has_watermark_failures_and_hooks(known: Catalog) -> None:
    whole = rows(known)
    (row,) = whole.computations
    assert (row.watermark.low_watermark_us, row.watermark.held_by) == (5, "input")
    assert row.failures.text == "it raises"
    assert [(one.hook, one.calls) for one in row.hooks] == [("process_record", 4)]
    assert row.columns.by_records == "it has no windows"
    assert (list(whole.waiting_for), whole.version) == (["an owner"], 2)


async def test_streams_have_readers_writers_and_logs(known: Catalog) -> None:
    streams = {one.name: one for one in rows(known, load("log.8.j1", 14, records_per_second=8.0)).streams}
    assert set(streams) == {"shop/in", "shop/out"}, "a stream is shown at the topology that it belongs to"
    assert list(streams["shop/in"].read_by) == list(streams["shop/out"].written_by) == ["shop/counter"]
    assert streams["shop/in"].watermark.low_watermark_us == 9
    assert (streams["shop/out"].log.worker, streams["shop/out"].log.records_per_second) == ("w1", 8.0)
    assert not streams["shop/in"].HasField("log")


async def test_sums_follow_reports_and_the_catalog(known: Catalog) -> None:
    book = LoadBook()

    def report(*loads: inspection.IntervalLoad) -> None:
        book.on_load("w1", inspection.GetWorkerLoadResponse(intervals=loads), Timestamp(1))

    def queued() -> tuple[int, list[str]]:
        found = book.together(known, COUNTER)
        return found.sums.queued_records, [one.journal for one, _ in found.waiting]

    report(load("counter.7.j1", 11, queued_records=5), load("counter.7.j2", 12, queued_records=1))
    assert queued() == queued() == (6, ["counter.7.j1", "counter.7.j2"])
    assert [name for name, _ in book.troubled] == []
    report(load("counter.7.j1", 11, queued_records=4, damaged_rows=1))
    assert queued() == (5, ["counter.7.j1", "counter.7.j2"])
    assert [name for name, _ in book.troubled] == ["counter.7.j1"]
    moved = catalog.IntervalMapRecord(computation="counter", topology="shop")
    moved.intervals.append(interval("counter.7.j1", 21, b"", None, "w1"))
    known.apply([KeyChange(chunk_key(COUNTER, 0), moved.SerializeToString(), known.revision + 1)])
    assert queued() == (0, []), "the next owner has reported nothing yet"
