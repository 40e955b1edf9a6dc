"""What the coordinators of a process do beyond the contract: virtual time, bounded history, failed writes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millwheel.coordination.contract import CompactedError, CoordinatorUnavailableError, LeaseExpiredError, Put
from millwheel.embedded.coordinator import EmbeddedCoordinator
from millwheel.embedded.database import EmbeddedDatabase
from millwheel.store.contract import StoreUnavailableError
from millwheel.store.directory import DatabaseDirectory
from millwheel.store.rocks import Rocks, RowBatch
from millwheel.store.writer import StoreThread
from tests.coordination.memory import MemoryCoordinator


async def test_with_a_clock_of_ones_own_leases_end_only_when_asked() -> None:
    now = 100.0
    coordinator = MemoryCoordinator(lambda: now)
    lease = await coordinator.grant_lease(5)
    await coordinator.transact([], [Put("a", b"", lease)])
    now = 104.0
    await coordinator.keep_alive(lease)
    now = 108.9
    await coordinator.expire_leases()
    assert await coordinator.get("a") is not None
    now = 109.0
    with pytest.raises(LeaseExpiredError):
        await coordinator.keep_alive(lease)
    await coordinator.expire_leases()
    assert await coordinator.get("a") is None
    await coordinator.close()


async def test_an_overdue_lease_ends_before_the_next_transaction() -> None:
    now = 0.0
    coordinator = MemoryCoordinator(lambda: now)
    await coordinator.transact([], [Put("a", b"", await coordinator.grant_lease(5))])
    now = 6.0
    outcome = await coordinator.transact([], [Put("b", b"")])
    assert await coordinator.get("a") is None
    assert outcome.revision == 3
    await coordinator.close()


async def test_a_watch_that_lags_beyond_the_history_is_notified() -> None:
    coordinator = MemoryCoordinator(history=3)
    for number in range(5):
        await coordinator.transact([], [Put("a", b"%d" % number)])
    kept = coordinator.watch("", 2)
    assert [(await anext(kept))[0].revision for _ in range(3)] == [3, 4, 5]
    with pytest.raises(CompactedError, match="list"):
        await anext(coordinator.watch("", 1))
    for number in range(4):
        await coordinator.transact([], [Put("a", b"%d" % number)])
    with pytest.raises(CompactedError):
        await anext(kept)
    await coordinator.close()


async def test_the_embedded_coordinator_and_store_share_one_database(tmp_path: Path) -> None:
    async with await EmbeddedDatabase.open(tmp_path / "db") as database:
        await asyncio.gather(
            database.store.create_journal("j"), database.coordinator.transact([], [Put("ünïcode/key", b"v")])
        )
    async with await EmbeddedDatabase.open(tmp_path / "db") as database:
        assert (await database.store.read_head("j")).commit == 0
        assert [entry.key for entry in (await database.coordinator.list("ü")).entries] == ["ünïcode/key"]


class FailingRocks(Rocks):
    """A real database whose log can be made to fail, before or after the batch is in it."""

    fail_before = False
    fail_after = False

    def write(self, batch: RowBatch) -> None:
        if self.fail_before:
            self._failure = "injected"
        super().write(batch)
        if self.fail_after:
            self._failure = "injected"
            raise StoreUnavailableError("injected")

    def recover(self) -> bool:
        if self.fail_before or self.fail_after:
            raise StoreUnavailableError("still failing")
        return super().recover()


@pytest.mark.parametrize("applied", [False, True])
async def test_an_unknown_transaction_is_settled_by_what_is_stored(tmp_path: Path, applied: bool) -> None:
    """Readers and watches never see one answer now and another after a restart."""
    directory = DatabaseDirectory(tmp_path / "db")
    rocks = FailingRocks(directory)
    thread = StoreThread(rocks)
    coordinator = EmbeddedCoordinator(rocks, thread)
    await coordinator.start()
    revision = (await coordinator.transact([], [Put("a", b"1")])).revision
    rocks.fail_after, rocks.fail_before = applied, not applied
    with pytest.raises(CoordinatorUnavailableError):
        await coordinator.transact([], [Put("a", b"2")])
    with pytest.raises(CoordinatorUnavailableError):
        await coordinator.get("a")
    rocks.fail_after = rocks.fail_before = False
    first, second = await asyncio.gather(coordinator.get("a"), coordinator.get("a"))
    assert first == second
    assert first is not None
    assert first.value == (b"2" if applied else b"1")
    watch = coordinator.watch("", revision)
    outcome = await coordinator.transact([], [Put("b", b"3")])
    assert outcome.revision == revision + (2 if applied else 1)
    seen = [(await anext(watch))[0].value for _ in range(2 if applied else 1)]
    assert seen == ([b"2", b"3"] if applied else [b"3"])
    await coordinator.close()
    thread.close()
    rocks.close()
    directory.release()
    async with await EmbeddedDatabase.open(tmp_path / "db") as database:
        assert await database.coordinator.get("a") == first
        assert (await database.coordinator.list("")).revision == outcome.revision
