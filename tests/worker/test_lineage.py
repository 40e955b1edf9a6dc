"""The live journals are read from the coordinator, also if the local catalog is old (section 6.2)."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.coordination.contract import Put
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import chunk_key, chunks_prefix
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_map import interval_to_proto
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1.catalog_pb2 import IntervalMapRecord
from millwheel.worker.process.lineage import journal_lives
from tests.coordination.memory import MemoryCoordinator

NAME = IncarnationId("counter.7")


class Counting(MemoryCoordinator):
    """A coordinator that counts its reads."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []

    async def list(self, prefix: str) -> Any:
        self.listed.append(prefix)
        return await super().list(prefix)


def chunk(keys: KeyInterval, journal: str, parent: str = "") -> bytes:
    record = IntervalMapRecord()
    interval = record.intervals.add(keys=interval_to_proto(keys), journal=journal)
    if parent:
        interval.parents.add(journal=parent, keys=interval.keys)
    return record.SerializeToString()


async def put(coordinator: MemoryCoordinator, number: int, value: bytes) -> None:
    await coordinator.transact((), [Put(chunk_key(NAME, number), value)])


async def caught_up(coordinator: MemoryCoordinator) -> Catalog:
    known = Catalog()
    known.load(await MemoryCoordinator.list(coordinator, ""))
    return known


@pytest.mark.paper(section="6.2")
async def test_a_journal_in_the_catalog_is_confirmed_by_its_chunk() -> None:
    coordinator = Counting()
    await put(coordinator, 0, chunk(KeyInterval(b"", b"m"), f"{NAME}.j1"))
    await put(coordinator, 1, chunk(KeyInterval(b"m"), f"{NAME}.j2", parent=f"{NAME}.j0"))
    known = await caught_up(coordinator)
    for journal in (f"{NAME}.j1", f"{NAME}.j2", f"{NAME}.j0"):
        assert await journal_lives(coordinator, known, journal)
    assert coordinator.listed == []
    await coordinator.close()


@pytest.mark.paper(section="6.2")
async def test_what_the_catalog_still_shows_is_not_taken_for_alive() -> None:
    coordinator = Counting()
    await put(coordinator, 0, chunk(KeyInterval(), f"{NAME}.j1", parent=f"{NAME}.j0"))
    stale = await caught_up(coordinator)
    await put(coordinator, 0, chunk(KeyInterval(), f"{NAME}.j1"))
    assert not await journal_lives(coordinator, stale, f"{NAME}.j0")
    await coordinator.transact((), deletes=[chunk_key(NAME, 0)])
    assert not await journal_lives(coordinator, stale, f"{NAME}.j1")
    await coordinator.close()


@pytest.mark.paper(section="6.2")
async def test_a_journal_that_the_catalog_does_not_show_yet_is_found() -> None:
    coordinator = Counting()
    await put(coordinator, 0, chunk(KeyInterval(), f"{NAME}.j1"))
    stale = await caught_up(coordinator)
    await put(coordinator, 3, chunk(KeyInterval(b"m"), f"{NAME}.j1"))
    await put(coordinator, 0, chunk(KeyInterval(b"", b"m"), f"{NAME}.j12"))
    assert await journal_lives(coordinator, stale, f"{NAME}.j1")
    assert await journal_lives(coordinator, Catalog(), f"{NAME}.j12")
    assert not await journal_lives(coordinator, Catalog(), f"{NAME}.j123")
    assert coordinator.listed == [chunks_prefix(NAME)] * 3
    await coordinator.close()
