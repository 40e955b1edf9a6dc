"""Each problem of the cluster's health names its place, and a section of the runbook that exists."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from millwheel.client.control import ControlClient
from millwheel.master.health_problems import cluster_problems, damage_problems, hook_problems
from millwheel.master.load_book import LoadBook
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import Timestamp
from millwheel.rpc.v1 import cluster_pb2 as wire
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator
from tests.house.tree import ROOT
from tests.master.replica import replica

RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
MAKER = "health_problem"
"""The function that makes all problems. It takes their section."""


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


def test_each_section_that_a_master_names_exists() -> None:
    named = {text for tree in master_modules() for text in strings(tree) if text.startswith("Millwheel")}
    assert len(named) >= 12
    assert [one for one in sorted(named) if f"\n## {one}\n" not in RUNBOOK] == []


def test_no_problem_is_made_without_a_section() -> None:
    makers = {function.name for tree in master_modules() for function in functions(tree) if makes_problem(function)}
    assert makers == {MAKER}


def master_modules() -> Iterator[ast.Module]:
    """The modules of the masters."""
    return (ast.parse(path.read_text()) for path in (ROOT / "master").rglob("*.py"))


def strings(tree: ast.AST) -> Iterator[str]:
    return (one.value for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


def makes_problem(function: ast.AST) -> bool:
    calls = (one.func for one in ast.walk(function) if isinstance(one, ast.Call))
    return any(isinstance(one, ast.Attribute) and one.attr == "HealthProblem" for one in calls)


async def test_an_ending_certificate_has_its_section() -> None:
    coordinator = MemoryCoordinator()
    async with replica(coordinator, MemoryStore()) as (address, master), ControlClient(address) as client:
        master.certificate_problems = lambda: ("the certificate a.pem ends on 2026-01-02",)
        details = (await client.cluster_health()).problem_details
    await coordinator.close()
    assert [one.runbook for one in details if "a.pem" in one.text] == ["MillwheelCertificateEnds"]
    assert [one.text for one in details if not one.runbook] == []


def test_a_problem_names_the_computation_and_the_key() -> None:
    *_, hot = cluster_problems(everything(), True)
    assert (hot.topology, hot.computation, hot.key, hot.journal) == ("shop", "bill", b"ann", "")
    assert "keeps its interval busy for 80% of the time" in hot.text
    *_, late = cluster_problems(everything(), True, ["9,329 records of its interval wait"])
    assert "no split relieves that. 9,329 records of its interval wait. Nothing is lost" in late.text
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
