"""Each problem of the cluster's health names its place, and a section of the runbook that exists."""

from __future__ import annotations

from pathlib import Path

from millwheel.master.health_problems import cluster_problems, damage_problems, hook_problems
from millwheel.master.load_book import LoadBook
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import Timestamp
from millwheel.rpc.v1 import cluster_pb2 as wire
from millwheel.rpc.v1 import inspection_pb2 as inspection

RUNBOOK = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text()


def everything() -> wire.GetClusterHealthResponse:
    """A cluster in which all is wrong."""
    health = wire.GetClusterHealthResponse(store=wire.StoreHealth(error="it is away"))
    health.authorities.add(shard=0)
    health.authorities.add(shard=1, address="a:1")
    health.workers.add(worker_id="w", address="w:1")
    health.intervals.all, health.intervals.without_owner = 4, 1
    health.hot_keys.add(topology="shop", computation="bill", key=b"ann", share=0.9, busy=0.8)
    return health


def test_each_problem_has_a_section_of_the_runbook() -> None:
    problems = [*cluster_problems(everything(), True), *cluster_problems(wire.GetClusterHealthResponse(), True)]
    problems += hook_problems([wire.ComputationFailures(text="it raises"), wire.ComputationFailures(absence="no code")])
    assert len(problems) == 10
    assert [one.text for one in problems if f"\n## {one.runbook}\n" not in RUNBOOK] == []


def test_a_problem_names_the_computation_and_the_key() -> None:
    *_, hot = cluster_problems(everything(), True)
    assert (hot.topology, hot.computation, hot.key, hot.journal) == ("shop", "bill", b"ann", "")
    (raises,) = hook_problems([wire.ComputationFailures(topology="shop", computation="bill", text="it raises")])
    assert (raises.topology, raises.computation, raises.runbook) == ("shop", "bill", "MillwheelHookFailing")


def test_damage_names_the_interval() -> None:
    book = LoadBook()
    load = inspection.GetWorkerLoadResponse()
    load.intervals.add(incarnation="bill.7", journal="bill.7.j1", sequencer=3, quarantined=True, damage="entry 4")
    load.intervals.add(incarnation="gone.8", journal="gone.8.j1", sequencer=3, damaged_rows=2, damage="a row")
    book.on_load("w", load, Timestamp(0))
    known, unknown = damage_problems(Catalog(), book, {IncarnationId("bill.7"): ("shop", "bill")})
    assert (known.topology, known.computation, known.journal) == ("shop", "bill", "bill.7.j1")
    assert (unknown.topology, unknown.journal) == ("", "gone.8.j1")
    assert {known.runbook, unknown.runbook} == {"MillwheelDataDamaged"}
