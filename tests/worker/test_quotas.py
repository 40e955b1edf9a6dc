"""Quotas at a worker: injected records wait, and nothing else does."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import chunk_key, log_key, topology_key
from millwheel.model.deliveries import Sender
from millwheel.model.incarnation import IncarnationId
from millwheel.model.key_values import KeyChange
from millwheel.rpc.channel import open_channel
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.worker.messages import AnswerDelivery, Delivery, Resend
from millwheel.worker.process.destinations import HostChannel
from millwheel.worker.process.peers import PeerConnection
from millwheel.worker.process.quotas import RecordQuotas, weight_of
from tests.patience import until
from tests.worker.doubles import delivery
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


def test_the_owner_of_an_injected_streams_log_has_a_part_too() -> None:
    known = cluster(1_000)
    known.topologies["t"].spec.streams.add(name="t/s", injected=True)
    log = catalog.StreamLogRecord(stream="t/s", incarnation=IncarnationId("t/s.log.2"))
    chunk = catalog.IntervalMapRecord(computation="t/s.log")
    chunk.intervals.add(journal="t/s.log.2.j1", sequencer=1).owner.worker_id = "w9"
    known.apply(
        [
            KeyChange(log_key("t/s"), log.SerializeToString(), 2),
            KeyChange(chunk_key(IncarnationId("t/s.log.2"), 0), chunk.SerializeToString(), 2),
        ]
    )
    clock = Clock()
    limited = quotas(known, clock)
    limited.taken("t", 1_000)
    assert limited.wait("t") == pytest.approx(1.0)


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


def test_a_topology_that_has_ended_leaves_nothing() -> None:
    clock, known = Clock(), cluster(1_000)
    limited = quotas(known, clock)
    limited.taken("t", 3_000)
    limited.waits("t")
    assert [one.labels for metric in limited.collect() for one in metric.samples] == [{"topology": "t"}]
    known.apply([KeyChange(topology_key("t"), None, 2)])
    limited.refresh()
    assert [one.labels for metric in limited.collect() for one in metric.samples] == []


def test_a_weight_is_one_unless_the_quota_says_otherwise() -> None:
    assert weight_of(cluster(0), "t") == 1.0
    assert weight_of(cluster(0, weight=2.5), "t") == 2.5
    assert weight_of(Catalog(), "t") == 1.0


def _injected(token: int) -> Delivery:
    return replace(delivery(token, 3), sender=Sender("injector/s/p", 3, None, "injector/s", None))


@pytest.mark.guarantee("G8")
async def test_only_injected_records_wait_for_the_quota() -> None:
    receiver = hosted(lambda event: [AnswerDelivery(event, wire.DELIVERY_OUTCOME_ACKED)])
    answered = hosted(journal="u.1.j1")
    clock = Clock()
    limited = quotas(cluster(6), clock)
    async with delivering({"c.1.j1": receiver}, quotas=limited) as address:
        injector, worker = (PeerConnection(address, open_channel) for _ in range(2))
        channel = HostChannel(answered)
        for token in range(1, 7):
            injector.send(_injected(token), channel)
        for token in range(101, 201):
            worker.send(delivery(token, 3), channel)
        # The third batch of three is taken whole, and leaves a debt. The others have an answer at once (G8).
        await until(lambda: len(core_of(receiver).events) == 100 + 3)
        await until(lambda: sorted(token for one in core_of(answered).of(Resend) for token in one.tokens) == [4, 5, 6])
        for taken in (4, 5, 6):
            clock.now += 0.5
            injector.send(_injected(taken), channel)
            await until(lambda taken=taken: len(core_of(receiver).events) == 100 + taken)  # type: ignore[misc]
        (waited,) = limited.collect()
        assert waited.samples[0].value == pytest.approx(0.5), "three batches waited at the same time"
        await asyncio.gather(injector.close(), worker.close())


async def test_a_short_debt_is_waited_for() -> None:
    receiver = hosted(lambda event: [AnswerDelivery(event, wire.DELIVERY_OUTCOME_ACKED)])
    answered = hosted(journal="u.1.j1")
    limited = RecordQuotas(cluster(300))
    limited.refresh()
    async with delivering({"c.1.j1": receiver}, quotas=limited) as address:
        injector, channel = PeerConnection(address, open_channel), HostChannel(answered)
        for token in range(1, 131):
            injector.send(_injected(token), channel)
        await until(lambda: len(core_of(receiver).events) == 130)
        assert core_of(answered).of(Resend) == []
        await injector.close()
