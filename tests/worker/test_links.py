"""What a worker does not reach is in its load report, by name, and among its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from millwheel.model.catalog import Catalog
from millwheel.model.stalls import ProcessConditions
from millwheel.rpc.v1.catalog_pb2 import WorkerRecord
from millwheel.rpc.v1.common_pb2 import Endpoint
from millwheel.rpc.v1.inspection_pb2 import GetWorkerLoadResponse
from millwheel.store.contract import StoreUnavailableError
from millwheel.store.repetition import RetriedCalls
from millwheel.worker.process.links import WorkerLinks
from millwheel.worker.process.peers import PeerConnection
from tests.patience import until


@dataclass(frozen=True)
class Peer:
    """A connection that has been broken for so long."""

    broken_seconds: float


def links(repeating: Sequence[RetriedCalls] = ()) -> WorkerLinks:
    catalog = Catalog()
    for name in ("w1", "w2", "w3"):
        catalog.workers[name] = WorkerRecord(endpoint=Endpoint(worker_id=name, address=f"{name}:7450"))
    peers = {"w2:7450": Peer(40.0), "w3:7450": Peer(0.0), "gone:7450": Peer(90.0)}
    outages = {"n1:9042": 0.0, "n2:9042": 12.0}
    return WorkerLinks(
        catalog,
        cast("dict[str, PeerConnection]", peers),
        lambda: repeating,
        ProcessConditions(stalled=lambda: 0.8, node_outages=lambda: outages),
    )


async def test_a_report_names_what_a_worker_does_not_reach() -> None:
    report = GetWorkerLoadResponse()
    links().add_to(report)
    assert report.stalled == 0.8
    assert [(one.worker_id, one.store_node, one.seconds) for one in report.broken_links] == [
        ("w2", "", 40.0),
        ("", "n2:9042", 12.0),
    ]
    assert report.repeating_journals == 0


async def test_a_report_has_a_bounded_number_of_links() -> None:
    catalog, peers = Catalog(), {}
    for number in range(500):
        name = f"w{number:03}"
        catalog.workers[name] = WorkerRecord(endpoint=Endpoint(worker_id=name, address=f"{name}:7450"))
        peers[f"{name}:7450"] = Peer(1.0 + number)
    report = GetWorkerLoadResponse()
    WorkerLinks(catalog, cast("dict[str, PeerConnection]", peers), tuple, ProcessConditions()).add_to(report)
    assert [one.seconds for one in report.broken_links] == [500.0 - number for number in range(100)]


async def test_a_report_has_the_error_of_calls_that_are_repeated() -> None:
    calls, full = RetriedCalls("journal j"), True

    async def write() -> None:
        if full:
            raise StoreUnavailableError("No space left on device")

    writing = asyncio.create_task(calls.call(write))
    await until(lambda: calls.repeated)
    report = GetWorkerLoadResponse()
    links([calls]).add_to(report)
    assert (report.repeating_journals, report.repeating_error) == (1, "No space left on device")
    assert report.repeating_seconds >= 0
    full = False
    await writing
    assert calls.repeated == 0


def test_the_metric_has_each_worker_that_is_sent_to() -> None:
    (family,) = links().collect()
    assert {one.labels["peer"]: one.value for one in family.samples} == {"w2": 40.0, "w3": 0.0}
