"""What waits for a sync is still right when it leaves: its destination, its number, and what a client is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.rpc.v1.watermark_pb2 import HOLD_KIND_INPUT
from millwheel.store.held_calls import HeldCalls
from millwheel.store.memory import MemoryStore
from millwheel.worker.messages import Report, SendDelivery, Tick
from millwheel.worker.process.destinations import DeliverySender
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.inspection import InspectionService
from millwheel.worker.process.owned_states import OwnedStates
from millwheel.worker.process.run_queue import RunQueue
from tests.patience import until
from tests.worker.doubles import ScriptedCore, ScriptedPeers, delivery
from tests.worker.interval.driver import IntervalDriver

JOURNAL = "test.1.j1"


class HeldStore(MemoryStore):
    """A store whose next sync is still to come."""

    def __init__(self) -> None:
        super().__init__()
        self.held = HeldCalls()
        self.held.begin(0.0)

    def after_sync(self, call: Callable[[], None]) -> None:
        self.held.run(call)


class Owner:
    """An interval map whose only interval is owned by a worker, or by none."""

    address = "127.0.0.1:1"

    def of_journal(self, journal: str) -> Any:
        return SimpleNamespace(owner=SimpleNamespace(address=self.address)) if self.address else None

    def addresses(self) -> set[str]:
        return {self.address} if self.address else set()


@pytest.mark.guarantee("G8", section="6.1.1")
async def test_a_batch_outlives_a_connection_that_is_closed() -> None:
    """Regression: it went to the connection of a former owner, which was closed during a slow sync."""
    held, later = HeldCalls(), list[int]()
    batch, owner = delivery(7), Owner()
    host = cast("CoreHost", SimpleNamespace(journal=JOURNAL))
    hosted = {JOURNAL: SimpleNamespace(host=host, channel=SimpleNamespace(later=later.append))}
    maps = {IncarnationId("c.1"): owner}
    catalog = SimpleNamespace(maps=maps, edges=lambda: {(batch.consumer, batch.stream)})
    sender = DeliverySender(
        cast("Any", None), cast("Any", catalog), cast("Any", hosted), "here", lambda work: work.close(), held.run
    )
    sender.refresh()
    sender.send(host, SendDelivery(batch))
    held.begin(0.0)
    sender.send(host, SendDelivery(delivery(8)))
    owner.address = ""
    await sender.close_unused()
    held.release()
    assert sender.peers == {}
    assert sorted(later) == [7, 8]


class Count(mw.Computation[tuple[str, str], int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1


@pytest.mark.guarantee("G1", section="6.1.2")
@pytest.mark.parametrize("method", ["InspectKey", "ListKeys", "ListTimers"])
async def test_what_a_client_is_shown_is_on_the_disk(method: str) -> None:
    """Regression: a client saw a state that a loss of power took back."""
    driver, store = IntervalDriver(Count()), HeldStore()
    owned = OwnedStates(lambda incarnation, key: JOURNAL, lambda journal: driver.core, lambda journal: "", store)
    service = InspectionService(owned, store, wire.GetWorkerLoadResponse)
    driver.deliver(("k", "v", 1))
    driver.commit_all()
    requests: dict[str, Any] = {
        "InspectKey": wire.InspectKeyRequest(incarnation=IncarnationId("test.1"), key=b"k"),
        "ListKeys": wire.ListKeysRequest(journal=JOURNAL),
        "ListTimers": wire.ListTimersRequest(journal=JOURNAL),
    }
    asked = asyncio.ensure_future(getattr(service, method)(requests[method], None))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not asked.done()
    store.held.release()
    await asked


@pytest.mark.guarantee("G8", section="4.5")
async def test_only_the_newest_report_waits_for_a_sync() -> None:
    reports = [Report(IncarnationId("c.1"), ALL_KEYS, 1, at, at, HOLD_KIND_INPUT, "") for at in range(5)]
    script = iter(reports)
    core, store, peers = ScriptedCore(lambda event: [next(script)]), HeldStore(), ScriptedPeers()
    share = RunQueue(asyncio.get_running_loop()).share("t")
    host = CoreHost(JOURNAL, cast("Any", core), store, peers, share)
    for _ in reports:
        host.post(Tick())
    await until(lambda: len(core.events) == len(reports))
    assert peers.reports == []
    store.held.release()
    assert peers.reports == [reports[0], reports[-1]]
    await host.close()
