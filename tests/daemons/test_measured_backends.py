"""Requests to the store and the coordinator are measured, with their outcome, and answer as before."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from millwheel.coordination.contract import Put
from millwheel.server.measured_backends import measured_coordinator, measured_store
from millwheel.store.contract import Append, JournalHead, JournalMissingError, StoreUnavailableError
from millwheel.store.memory import MemoryStore
from millwheel.store.repetition import RetriedCalls
from millwheel.worker.messages import AppendEntry
from millwheel.worker.process.appends import JournalAppends
from tests.coordination.memory import MemoryCoordinator
from tests.faulty_store import QueueingStore
from tests.patience import patience


class Away(MemoryStore):
    """A store that does not answer."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    async def read_head(self, journal: str) -> JournalHead:
        raise self.error


def count(registry: CollectorRegistry, what: str, operation: str, outcome: str) -> float | None:
    labels = {"operation": operation, "outcome": outcome}
    return registry.get_sample_value(f"millwheel_{what}_request_seconds_count", labels)


async def test_requests_are_measured_and_answered() -> None:
    registry = CollectorRegistry()
    store = measured_store(MemoryStore(), registry)
    await store.create_journal("j", commit=7)
    assert (await store.read_head("j")).commit == (await store.read_head("j")).commit == 7
    assert count(registry, "store", "create_journal", "ok") == 1
    assert count(registry, "store", "read_head", "ok") == 2
    with pytest.raises(JournalMissingError):
        await store.read_head("other")
    assert count(registry, "store", "read_head", "refused") == 1


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (StoreUnavailableError("away"), "unavailable"),
        (asyncio.CancelledError(), "cancelled"),
        (ValueError("a mistake"), "error"),
    ],
)
async def test_a_failure_is_raised_and_counted_by_its_kind(error: BaseException, outcome: str) -> None:
    registry = CollectorRegistry()
    with pytest.raises(type(error)):
        await measured_store(Away(error), registry).read_head("j")
    assert count(registry, "store", "read_head", outcome) == 1


async def test_watches_pass_unmeasured() -> None:
    registry = CollectorRegistry()
    coordinator = measured_coordinator(MemoryCoordinator(), registry)
    revision = (await coordinator.transact((), [Put("a", b"1")])).revision
    async for changes in coordinator.watch("", revision - 1):
        assert changes[0].value == b"1"
        break
    assert count(registry, "coordinator", "transact", "ok") == 1
    assert count(registry, "coordinator", "watch", "ok") is None


async def test_a_measured_store_appends_without_a_task() -> None:
    """From Python 3.12 on ``isinstance`` of a protocol does not see what a measured store passes on."""
    ended = asyncio.Event()

    class Host:
        closed = False

        def post(self, event: object) -> None:
            ended.set()

        def spawn(self, work: Coroutine[Any, Any, None]) -> None:
            work.close()
            raise AssertionError("a task was begun")

        def failed(self, error: BaseException) -> None:
            raise error

    store = measured_store(QueueingStore(), CollectorRegistry())
    await store.create_journal("j")
    await store.fence("j", 1)
    appends = JournalAppends(
        Host(), store, RetriedCalls("journal j", (StoreUnavailableError,)), asyncio.get_running_loop().call_soon
    )
    appends.begin(AppendEntry("j", Append(1, 1, 0, (), b"entry")))
    async with asyncio.timeout(patience(5)):
        await ended.wait()
    assert (await store.read_head("j")).commit == 1
