"""Quotas at a worker: injected records wait, and nothing else does."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import chunk_key, topology_key
from millwheel.model.deliveries import Sender
from millwheel.model.incarnation import IncarnationId
from millwheel.model.key_values import KeyChange
from millwheel.rpc.channel import open_channel
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.worker.messages import Acknowledge, Delivery, Resend
from millwheel.worker.process.destinations import LocalChannel
from millwheel.worker.process.peers import PeerConnection
from millwheel.worker.process.quotas import RecordQuotas, weight_of
from tests.patience import until
from tests.worker.doubles import ScriptedCore, delivery
from tests.worker.test_delivery_service import core_of, delivering, hosted


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def cluster(records_per_second: int, owners: tuple[str, ...] = ("w1",), weight: float = 0.0) -> Catalog:
    """A topology ``t`` with one computation, whose intervals have these owners."""
    record = catalog.TopologyRecord(state=catalog.TOPOLOGY_STATE_RUNNING)
    record.spec.name = "t"
    record.spec.computations.add(name="c")
    record.incarnations["c"] = IncarnationId("c.1")
    record.quota.records_per_second, record.quota.weight = records_per_second, weight
    chunk = catalog.IntervalMapRecord(computation="c", topology="t")
    for number, owner in enumerate(owners):
        interval = chunk.intervals.add(journal=f"c.1.j{number}", sequencer=1)
        interval.keys.start = b"" if number == 0 else b"%d" % number
        if number + 1 < len(owners):
            interval.keys.end = b"%d" % (number + 1)
        interval.owner.worker_id = owner
    known = Catalog()
    known.apply(
        [
            KeyChange(topology_key("t"), record.SerializeToString(), 1),
            KeyChange(chunk_key(IncarnationId("c.1"), 0), chunk.SerializeToString(), 1),
        ]
    )
    return known


def quotas(known: Catalog, clock: Clock) -> RecordQuotas:
    made = RecordQuotas(known, clock)
    made.refresh()
    return made


def test_a_second_of_records_is_free_and_more_must_wait() -> None:
    clock = Clock()
    limited = quotas(cluster(1_000), clock)
    limited.taken("t", 1_000)
    assert limited.wait("t") == 0.0
    limited.taken("t", 500)
    assert limited.wait("t") == pytest.approx(0.5)
    clock.now += 0.2
    assert limited.wait("t") == pytest.approx(0.3)
    clock.now += 10.0
    limited.taken("t", 1_000)
    assert limited.wait("t") == 0.0, "what was not used is kept for a second"
    limited.taken("t", 1)
    assert limited.wait("t") == pytest.approx(0.001)


def test_the_owners_of_intervals_share_a_quota() -> None:
    clock = Clock()
    limited = quotas(cluster(1_000, ("w1", "w2", "w2", "w3")), clock)
    limited.taken("t", 1_000)
    assert limited.wait("t") == pytest.approx(2.0)


def test_a_topology_without_a_quota_never_waits() -> None:
    limited = quotas(cluster(0), Clock())
    limited.taken("t", 10**9)
    assert limited.wait("t") == limited.wait("other") == 0.0
    assert not limited.buckets


def test_a_new_quota_counts_at_once() -> None:
    clock, known = Clock(), cluster(1_000)
    limited = quotas(known, clock)
    limited.taken("t", 3_000)
    record = known.topologies["t"]
    record.quota.records_per_second = 10_000
    limited.refresh()
    assert limited.wait("t") == pytest.approx(0.2)
    record.quota.records_per_second = 0
    limited.refresh()
    assert limited.wait("t") == 0.0


def test_a_weight_is_one_unless_the_quota_says_otherwise() -> None:
    assert weight_of(cluster(0), "t") == 1.0
    assert weight_of(cluster(0, weight=2.5), "t") == 2.5
    assert weight_of(Catalog(), "t") == 1.0


def _injected(token: int) -> Delivery:
    return replace(delivery(token, 3), sender=Sender("injector/s/p", 3, None, "injector/s", None))


def _refused(sender: ScriptedCore) -> set[int]:
    """The tokens that have to be sent again. Each batch has an answer, or copies of it would use up the quota."""
    return {token for event in sender.of(Resend) for token in event.tokens}


async def test_only_an_injectors_connection_waits_for_the_quota() -> None:
    receiver = hosted(lambda event: [Acknowledge(event, wire.DELIVERY_OUTCOME_ACKED)])
    clock = Clock()
    limited = quotas(cluster(6), clock)
    async with delivering({"c.1.j1": receiver}, quotas=limited) as address:
        injector, worker = (PeerConnection(address, open_channel) for _ in range(2))
        sender = hosted(journal="u.1.j1")
        channel = LocalChannel(sender)
        for token in range(1, 7):
            injector.send(_injected(token), channel)
        for token in range(1, 101):
            worker.send(delivery(token, 3), channel)
        # The third batch of three is taken whole, and leaves a debt.
        await until(lambda: len(core_of(receiver).events) == 100 + 3)
        await until(lambda: _refused(core_of(sender)) == {4, 5, 6})
        for taken in (4, 5, 6):
            clock.now += 0.5
            injector.send(_injected(taken), channel)
            await until(lambda taken=taken: len(core_of(receiver).events) == 100 + taken)  # type: ignore[misc]
        (waited,) = limited.collect()
        assert waited.samples[0].value > 0
        await asyncio.gather(injector.close(), worker.close())
