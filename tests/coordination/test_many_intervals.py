"""Up to half a million intervals in etcd with its default limits: only changes are written (7.1; G11)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millwheel.coordination.contract import TransactionResult
from millwheel.coordination.etcd import EtcdCoordinator, EtcdSettings
from millwheel.master.change_plan import PlanBuilder
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import chunks_prefix
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_map import check_coverage, interval_to_proto
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1 import catalog_pb2 as catalog
from tests.components import etcd
from tests.patience import patience

PER_TRANSACTION = 6_000
NAME = IncarnationId("window-counter.17")


def interval(at: int, start: bytes, end: bytes | None) -> catalog.IntervalRecord:
    """An interval as in a cluster of 200 workers."""
    made = catalog.IntervalRecord(
        journal=f"{NAME}.j{at + 20}", sequencer=at + 1_000_021, owner_revision=1_000 + at % 200
    )
    made.keys.CopyFrom(interval_to_proto(KeyInterval(start, end)))
    made.owner.worker_id = f"worker-{at % 200}.example.org"
    made.owner.address = f"10.20.30.{at % 200}:7461"
    return made


def key(at: int) -> bytes:
    return b"user-%09d" % (at * 1_000) if at else b""


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[EtcdCoordinator]:
    made = EtcdCoordinator(EtcdSettings(etcd().endpoints, prefix=f"many{tmp_path}/"))
    yield made
    snapshot = await made.list("")
    for at in range(0, len(snapshot.entries), 100):
        await made.transact([], deletes=[entry.key for entry in snapshot.entries[at : at + 100]])
    await made.close()


class Follower:
    """A catalog that follows the coordinator. Commits plans."""

    def __init__(self, coordinator: EtcdCoordinator) -> None:
        self.coordinator = coordinator
        self.catalog = Catalog()
        self.watch: Any = None
        self.written = 0

    async def load(self) -> None:
        snapshot = await self.coordinator.list("")
        self.catalog.load(snapshot)
        self.watch = self.coordinator.watch("", snapshot.revision)

    async def commit(self, builder: PlanBuilder) -> None:
        plan = builder.plan()
        self.written = sum(len(put.key) + len(put.value) for put in plan.puts) + sum(map(len, plan.deletes))
        outcome: TransactionResult = await self.coordinator.transact(plan.compares, plan.puts, plan.deletes)
        assert outcome.committed
        while self.catalog.revision < outcome.revision:
            self.catalog.apply(await asyncio.wait_for(anext(self.watch), patience(10)))

    async def grow(self, begin: int, count: int) -> None:
        """Split the last interval, which has all keys from ``begin`` on, until there are enough intervals."""
        builder = PlanBuilder(self.catalog)
        last = min(begin + PER_TRANSACTION, count)
        # The rest of the keys stays one interval. The next transaction splits it.
        ends = [key(at + 1) for at in range(begin, last)]
        new = [interval(at, key(at), end) for at, end in zip(range(begin, last), ends, strict=True)]
        if last < count:
            new.append(interval(last + count, key(last), None))
        else:
            new[-1].keys.ClearField("end")
        if begin:
            builder.put_intervals(NAME, new)
        else:
            record = catalog.IntervalMapRecord(computation="window-counter", topology="zeitgeist")
            record.intervals.extend(new)
            builder.put_map(NAME, record)
        await self.commit(builder)


@pytest.mark.guarantee("G11", section="7.1")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("count", [40_000, pytest.param(500_000, marks=pytest.mark.cluster)])
async def test_any_number_of_intervals_and_what_a_move_writes(coordinator: EtcdCoordinator, count: int) -> None:
    follower = Follower(coordinator)
    await follower.load()
    began = time.monotonic()
    for begin in range(0, count, PER_TRANSACTION):
        await follower.grow(begin, count)
    print(f"built in {time.monotonic() - began:.1f} s")
    interval_map = follower.catalog.maps[NAME]
    assert len(interval_map) == count

    # One move.
    began = time.monotonic()
    at = count // 2 + 1_828
    moved = catalog.IntervalRecord()
    found = follower.catalog.locate(NAME, key(at) + b"x")
    assert found is not None
    moved.CopyFrom(found)
    moved.sequencer += 10_000_000
    moved.owner.worker_id = "worker-7.example.org"
    builder = PlanBuilder(follower.catalog)
    assert builder.put_intervals(NAME, [moved])
    await follower.commit(builder)
    print(f"one move: {follower.written} bytes, {(time.monotonic() - began) * 1_000:.1f} ms until the catalog shows it")
    assert follower.written < 40_000
    assert follower.catalog.locate(NAME, key(at)) == moved

    # One split.
    keys = moved.keys
    halves = [
        interval(count * 2 + index, *bounds)
        for index, bounds in enumerate([(keys.start, keys.start + b"m"), (keys.start + b"m", keys.end)])
    ]
    builder = PlanBuilder(follower.catalog)
    builder.put_intervals(NAME, halves)
    began = time.monotonic()
    await follower.commit(builder)
    print(f"one split: {follower.written} bytes, {(time.monotonic() - began) * 1_000:.1f} ms")
    assert follower.written < 40_000

    # A new reader finds every key covered once.
    began = time.monotonic()
    snapshot = await coordinator.list(chunks_prefix(NAME))
    listed = time.monotonic()
    size = sum(len(entry.value) for entry in snapshot.entries)
    newcomer = Catalog()
    newcomer.load(snapshot)
    print(
        f"{len(snapshot.entries)} chunks, {size / 1e6:.1f} MB, largest {max(len(e.value) for e in snapshot.entries)} "
        f"bytes; listed in {listed - began:.1f} s, taken in in {time.monotonic() - listed:.1f} s"
    )
    assert len(newcomer.maps[NAME]) == count + 1
    check_coverage(NAME, newcomer.maps[NAME].intervals)
    assert len(newcomer.owned_by("worker-7.example.org")) == count / 200
    await follower.watch.aclose()
