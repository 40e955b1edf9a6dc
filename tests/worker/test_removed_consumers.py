"""A delivery is dropped only if its consumer is certainly removed (4.1, 7.1; G1)."""

from __future__ import annotations

import pytest

from millwheel.coordination.contract import DamagedValueError, Put
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import topology_key
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as topology
from millwheel.worker.process import removed_consumers
from millwheel.worker.process.removed_consumers import RemovedConsumers
from tests.coordination.memory import MemoryCoordinator
from tests.kept import kept


@pytest.mark.guarantee("G1", section="4.1")
async def test_a_consumer_that_the_catalog_does_not_show_yet_is_kept() -> None:
    coordinator = MemoryCoordinator()
    edges = RemovedConsumers(coordinator, Catalog())
    reading = topology.ComputationSpec(name="c", inputs=[topology.InputSpec(stream="s")])
    record = catalog.TopologyRecord(
        spec=topology.TopologySpec(name="t", computations=[reading]),
        incarnations={"c": IncarnationId("c.1")},
        state=catalog.TOPOLOGY_STATE_RUNNING,
    )
    await coordinator.transact((), [Put(topology_key("t"), record.SerializeToString())])
    assert not await edges.is_gone(IncarnationId("c.1"), "s")
    assert await edges.is_gone(IncarnationId("c.1"), "another stream")
    record.state = catalog.TOPOLOGY_STATE_CANCELLED
    await coordinator.transact((), [Put(topology_key("t"), record.SerializeToString())])
    assert await edges.is_gone(IncarnationId("c.1"), "s")
    await coordinator.close()


@pytest.mark.guarantee("G1", section="4.1")
async def test_a_topology_that_cannot_be_read_may_have_the_consumer() -> None:
    """Regression: such a topology was skipped.

    Productions for its computations were given up, as if these had been removed.
    """
    coordinator = MemoryCoordinator()
    await coordinator.transact((), [Put(topology_key("t"), b"\xff")])
    with pytest.raises(DamagedValueError, match="topologies/t"):
        await RemovedConsumers(coordinator, Catalog()).is_gone(IncarnationId("c.1"), "s")
    await coordinator.close()


@pytest.mark.guarantee("G13")
async def test_a_bounded_number_of_removed_consumers_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removed_consumers, "MAX_GONE", 3)
    coordinator = MemoryCoordinator()
    edges = RemovedConsumers(coordinator, Catalog())
    for number in range(10):
        assert await edges.is_gone(IncarnationId(f"c.{number}"), "s")
        assert sum(one.startswith("c.") for one in kept(edges, str)) <= 3
    await coordinator.close()
