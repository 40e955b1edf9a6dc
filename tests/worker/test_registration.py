"""A worker is registered while its lease lives, and comes back under another registration (7.1, 6.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from millwheel.coordination.contract import Compare, CoordinatorUnavailableError, Put, TransactionResult
from millwheel.model.catalog_keys import departure_key, worker_key
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.worker.interval.hook_meter import SlowBatch
from millwheel.worker.messages import HooksSlow
from millwheel.worker.process.hook_reports import HookReports
from millwheel.worker.process.registration import Registration, WorkerIdTakenError
from tests.coordination.memory import MemoryCoordinator, read_catalog
from tests.patience import patience

KEY = worker_key("w1")
TTL = patience(0.3)


class Rig:
    def __init__(self, coordinator: MemoryCoordinator, address: str = "10.0.0.1:7433", ttl: float = TTL) -> None:
        self.coordinator = coordinator
        self.lapses = 0
        self.errors: list[Exception] = []
        self.lapsing = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.registration = Registration(coordinator, "w1", address, ttl, self._lapsed)

    async def _lapsed(self) -> None:
        self.lapses += 1
        self.lapsing.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.errors:
            raise self.errors.pop()

    async def start(self) -> None:
        """Register, and repeat what gets no answer."""
        before = asyncio.all_tasks()
        while True:
            try:
                await self.registration.start()
                break
            except CoordinatorUnavailableError:
                await asyncio.sleep(0.005)
        self.tasks = asyncio.all_tasks() - before

    def die(self) -> None:
        """Run no more, without notice to anyone."""
        for task in self.tasks:
            task.cancel()

    async def created(self) -> int:
        entry = await self.coordinator.get(KEY)
        return 0 if entry is None else entry.created

    async def registered_after(self, revision: int) -> int:
        async with asyncio.timeout(patience(5)):
            while True:
                created = await self.created()
                if created > revision:
                    return created
                await asyncio.sleep(0.005)


@asynccontextmanager
async def registered(coordinator: MemoryCoordinator) -> AsyncIterator[Rig]:
    rig = Rig(coordinator)
    await rig.registration.start()
    try:
        yield rig
    finally:
        await rig.registration.close()


async def test_a_worker_stays_registered_past_its_lease_until_it_ends() -> None:
    coordinator = MemoryCoordinator()
    async with registered(coordinator) as rig:
        entry = await coordinator.get(KEY)
        assert entry is not None
        record = catalog.WorkerRecord.FromString(entry.value)
        assert (record.endpoint.worker_id, record.endpoint.address) == ("w1", "10.0.0.1:7433")
        await asyncio.sleep(TTL * 3)
        assert await rig.created() == entry.created
        assert rig.lapses == 0
    assert await coordinator.get(KEY) is None
    await coordinator.close()


async def test_an_orderly_end_is_kept_until_the_worker_is_back() -> None:
    coordinator = MemoryCoordinator()
    rig = Rig(coordinator)
    await rig.registration.start()
    entry = await coordinator.get(KEY)
    assert entry is not None
    changes = coordinator.watch("", entry.modified)
    await rig.registration.close()
    together = sorted((one.key, one.value is None) for one in await anext(changes))
    assert together == [(departure_key("w1"), False), (KEY, True)], "no master sees one without the other"
    assert list((await read_catalog(coordinator)).departures) == ["w1"]
    async with registered(coordinator):
        assert not (await read_catalog(coordinator)).departures
    await coordinator.close()


async def test_an_end_that_cannot_be_recorded_still_ends_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(seconds: float) -> int:
        raise CoordinatorUnavailableError("its leader changes")

    coordinator = MemoryCoordinator()
    rig = Rig(coordinator)
    await rig.registration.start()
    monkeypatch.setattr(coordinator, "grant_lease", away)
    await rig.registration.close()
    assert await coordinator.get(KEY) is None
    await coordinator.close()


async def test_an_end_before_the_registration_leaves_no_record() -> None:
    coordinator = MemoryCoordinator()
    rig = Rig(coordinator)
    await rig.registration.close()
    assert await coordinator.get(KEY) is None
    await coordinator.close()


async def test_an_end_without_a_lease_leaves_no_record() -> None:
    coordinator = MemoryCoordinator()
    rig = Rig(coordinator, ttl=patience(30))
    await rig.registration.start()
    entry = await coordinator.get(KEY)
    assert entry is not None
    await coordinator.revoke_lease(entry.lease)
    await rig.registration.close()
    assert await coordinator.get(KEY) is None
    assert await coordinator.get(departure_key("w1")) is None, "a lost lease is no orderly end"
    await coordinator.close()


@pytest.mark.guarantee("G3", section="7.1")
async def test_an_end_after_the_lease_does_not_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = MemoryCoordinator()
    rig = Rig(coordinator)
    await rig.registration.start()
    entry = await coordinator.get(KEY)
    assert entry is not None
    rig.gate = asyncio.Event()
    await coordinator.revoke_lease(entry.lease)
    await rig.lapsing.wait()
    # While its intervals are given up, the process is asked to stop.
    with monkeypatch.context() as patched:
        patched.setattr(coordinator, "transact", None)  # a call would raise
        await rig.registration.close()
    await coordinator.close()


@pytest.mark.paper(section="7.1")
async def test_an_ended_lease_costs_the_intervals_and_registers_again() -> None:
    coordinator = MemoryCoordinator()
    async with registered(coordinator) as rig:
        entry = await coordinator.get(KEY)
        assert entry is not None
        await coordinator.revoke_lease(entry.lease)
        assert await rig.registered_after(entry.created) > entry.created
        assert rig.lapses == 1
    await coordinator.close()


async def test_the_log_of_an_ended_lease_names_the_hook_that_blocked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    coordinator = MemoryCoordinator()
    reports = HookReports(0.0, lambda scope: None)
    lapsed = asyncio.Event()

    async def note() -> None:
        lapsed.set()

    registration = Registration(coordinator, "w1", "here:1", TTL, note, reports.slowest_since)
    slow = partial(reports.take, ("words", "count"))
    slow(HooksSlow(SlowBatch("process_record", 1, 60.0, b"before")))
    await registration.start()
    slow(HooksSlow(SlowBatch("process_timer", 1, 7.0, b"k")))
    slow(HooksSlow(SlowBatch("process_record", 1, 2.0, b"other")))
    entry = await coordinator.get(KEY)
    assert entry is not None
    await coordinator.revoke_lease(entry.lease)
    async with asyncio.timeout(patience(5)):
        await lapsed.wait()
    await registration.close()
    reports.close()
    await coordinator.close()
    (line,) = [one.getMessage() for one in caplog.records if "the lease has ended" in one.getMessage()]
    assert "words/count: one call of process_timer for key 'k' kept the event loop for 7.0 s" in line
    assert "produce in slices (docs/limits.md), or set worker.lease_seconds" in line


async def test_a_step_shorter_than_the_lease_is_not_blamed(caplog: pytest.LogCaptureFixture) -> None:
    """Regression: etcd ended the lease, and the log named a hook that had taken a second."""
    coordinator = MemoryCoordinator()
    reports = HookReports(0.0, lambda scope: None)
    lapsed = asyncio.Event()

    async def note() -> None:
        lapsed.set()

    registration = Registration(coordinator, "w1", "here:1", TTL, note, reports.slowest_since)
    await registration.start()
    reports.take(("words", "count"), HooksSlow(SlowBatch("process_record", 1, TTL * 0.9, b"k")))
    entry = await coordinator.get(KEY)
    assert entry is not None
    await coordinator.revoke_lease(entry.lease)
    async with asyncio.timeout(patience(5)):
        await lapsed.wait()
    await registration.close()
    reports.close()
    await coordinator.close()
    (line,) = [one.getMessage() for one in caplog.records if "the lease has ended" in one.getMessage()]
    assert line.endswith("registers again")


@pytest.mark.paper(section="7.1")
async def test_a_process_that_hangs_is_waited_for_until_its_lease_ends() -> None:
    """Its thread renews for one time to live after its event loop has stopped."""
    coordinator = MemoryCoordinator()
    ttl = patience(0.2)
    first = Rig(coordinator, ttl=ttl)
    await first.start()
    second = Rig(coordinator, "10.0.0.2:7433", ttl=ttl)
    starting = asyncio.ensure_future(second.registration.start())
    await asyncio.sleep(1.5 * ttl)
    first.die()
    await starting
    await second.registration.close()
    await coordinator.close()


async def test_giving_up_the_registration_does_the_same_at_once() -> None:
    coordinator = MemoryCoordinator()
    rig = Rig(coordinator, ttl=3_600.0)
    await rig.registration.start()
    try:
        before = await rig.created()
        rig.registration.renew_from_scratch()
        rig.registration.renew_from_scratch()
        after = await rig.registered_after(before)
        assert rig.lapses == 1
        await asyncio.sleep(TTL)
        assert await rig.created() == after, "asked twice at once, done once"
    finally:
        await rig.registration.close()
    await coordinator.close()


async def test_a_coordinator_that_is_away_is_waited_for() -> None:
    class Away(MemoryCoordinator):
        failures = 0

        async def grant_lease(self, ttl: float) -> int:
            if self.failures:
                self.failures -= 1
                raise CoordinatorUnavailableError("no quorum")
            return await super().grant_lease(ttl)

        async def revoke_lease(self, lease: int) -> None:
            if self.failures:
                self.failures -= 1
                raise CoordinatorUnavailableError("no quorum")
            await super().revoke_lease(lease)

    coordinator = Away()
    await coordinator.transact((), [Put("other", b"")])
    async with registered(coordinator) as rig:
        before = await rig.created()
        coordinator.failures = 3
        rig.registration.renew_from_scratch()
        assert await rig.registered_after(before) > before
    await coordinator.close()


async def test_assignments_of_an_unconfirmed_registration_are_given_up() -> None:
    """No one renews the lease. The intervals would be served until another owner fences them."""

    class Silent(MemoryCoordinator):
        silent = False

        async def transact(
            self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
        ) -> TransactionResult:
            outcome = await super().transact(compares, puts, deletes)
            if puts and self.silent:
                self.silent = False
                raise CoordinatorUnavailableError("the answer was lost")
            return outcome

    coordinator = Silent()
    async with registered(coordinator) as rig:
        first = await rig.created()
        coordinator.silent = True
        rig.registration.renew_from_scratch()
        unheard = await rig.registered_after(first)
        assert rig.lapses == 1
        assert await rig.registered_after(unheard) > unheard
        assert rig.lapses == 2
    await coordinator.close()


@pytest.mark.guarantee("G8", section="7.1")
async def test_an_error_while_intervals_close_ends_no_registration(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Regression: the error ended the task that renews the lease, without a report.

    The worker ran on, and got no intervals.
    """
    coordinator = MemoryCoordinator()
    async with registered(coordinator) as rig:
        entry = await coordinator.get(KEY)
        assert entry is not None
        rig.errors = [KeyError("c.1.j1")]
        await coordinator.revoke_lease(entry.lease)
        assert await rig.registered_after(entry.created) > entry.created
        assert rig.lapses >= 1
    assert "c.1.j1" in caplog.text
    await coordinator.close()


@pytest.mark.guarantee("G3", section="6.2")
async def test_a_worker_restarted_within_its_lease_registers_again() -> None:
    """Regression: the worker found the record of its former life with its intervals.

    Their sequencers were used, so it could open no journal, and no others were drawn.
    """
    coordinator = MemoryCoordinator()
    killed = Rig(coordinator)
    await killed.registration.start()
    before = await killed.created()
    async with registered(coordinator) as rig:
        assert await rig.created() > before
        await killed.registration.close()
        assert await rig.created() > before, "the end of the old lease takes nothing of the new one"
    await coordinator.close()


@pytest.mark.paper(section="7.1")
@pytest.mark.parametrize("late", ["put", "delete"])
async def test_a_late_transaction_does_not_cost_the_next_registration(
    late: str,
) -> None:
    """Regression: the lease of the later registration was renewed for ever, but the worker got no interval."""

    class Late(MemoryCoordinator):
        held: tuple[Sequence[Compare], Sequence[Put], Sequence[str]] | None = None
        lives = True

        async def transact(
            self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
        ) -> TransactionResult:
            if self.lives and (puts if late == "put" else deletes):
                self.lives, self.held = False, (compares, puts, deletes)
                raise CoordinatorUnavailableError("no answer")
            return await super().transact(compares, puts, deletes)

    coordinator = Late()
    coordinator.lives = False
    killed = Rig(coordinator)
    await killed.start()
    killed.die()
    coordinator.lives = True
    rig = Rig(coordinator)
    await rig.start()
    before = await rig.created()
    assert coordinator.held is not None
    await coordinator.transact(*coordinator.held)
    entry = await coordinator.get(KEY)
    assert entry is not None
    assert entry.created == before
    await rig.registration.close()
    assert await coordinator.get(KEY) is None
    await coordinator.close()


@pytest.mark.paper(section="7.1")
async def test_a_worker_whose_id_is_taken_is_refused_by_the_setting() -> None:
    """Regression: the second worker took the name and the intervals.

    Both opened the same assignments under the same sequencers.
    """
    coordinator = MemoryCoordinator()
    first = Rig(coordinator, ttl=patience(0.1))
    await first.start()
    before = await first.created()
    second = Rig(coordinator, "10.0.0.2:7433", ttl=patience(0.1))
    with pytest.raises(WorkerIdTakenError, match=r"the worker process at 10.0.0.1:7433 .*, and lives") as caught:
        await second.registration.start()
    assert "worker.id" in caught.value.remedy
    assert await first.created() == before
    # The first one dies without notice. The second one waits until that lease ends, and no longer.
    first.die()
    await second.registration.start()
    assert await second.created() > before
    await second.registration.close()
    await coordinator.close()


@pytest.mark.paper(section="7.1")
async def test_of_two_that_start_with_one_id_at_once_one_is_refused() -> None:
    """Regression: both workers found the name free.

    The second one deleted the record of the first, which then owned nothing and reported nothing.
    """
    coordinator = MemoryCoordinator()
    rigs = [Rig(coordinator, ttl=patience(0.2)), Rig(coordinator, "10.0.0.2:7433", ttl=patience(0.2))]
    found = await asyncio.gather(*(rig.registration.start() for rig in rigs), return_exceptions=True)
    assert sorted(map(type, found), key=repr) == [type(None), WorkerIdTakenError]
    winner = rigs[found.index(None)]
    entry = await coordinator.get(KEY)
    assert entry is not None
    assert winner.registration.is_own(catalog.WorkerRecord.FromString(entry.value))
    await winner.registration.close()
    await coordinator.close()
