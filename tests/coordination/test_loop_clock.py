"""Leases of a coordinator in the process: no lease ends because the event loop was blocked (7.1)."""

from __future__ import annotations

import asyncio

import pytest

from millwheel.coordination import local
from millwheel.coordination.contract import Compare, Put
from millwheel.coordination.election import Election
from millwheel.coordination.loop_clock import LoopClock
from millwheel.worker.process.registration import Registration
from tests.coordination.memory import MemoryCoordinator
from tests.patience import patience


class Steady:
    """A clock of which the test moves the hands."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


async def test_a_standstill_counts_as_half_a_second_at_most() -> None:
    steady = Steady()
    clock = LoopClock(steady)
    clock.start()
    for _ in range(8):
        steady.now += 0.25
        clock.beat()
    assert clock() == 2.0, "while the loop runs, time is time"
    steady.now += 0.2
    assert clock() == pytest.approx(2.2)
    steady.now += 3_600.0
    assert clock() == 2.5
    clock.beat()
    assert clock() == 2.5, "a beat counts the gap before it once"
    steady.now += 0.25
    assert clock() == 2.75
    clock.stop()


@pytest.mark.guarantee("G8", section="7.1")
async def test_a_step_longer_than_the_lease_ends_no_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each hook of a series blocks the loop for a hundred leases.

    Renewals run between the hooks, and still find their leases.
    """
    steady, ttl = Steady(), patience(1.0)
    monkeypatch.setattr(local, "LoopClock", lambda: LoopClock(steady))
    coordinator = MemoryCoordinator()
    lapses: list[str] = []

    async def lapsed() -> None:
        lapses.append("worker")

    registration = Registration(coordinator, "dev", "here:1", ttl, lapsed)
    await registration.start()
    leadership = await Election(coordinator, "leadership", "here:1", ttl).attempt()
    assert leadership is not None
    lost = asyncio.create_task(leadership.lost())
    for _ in range(3):
        steady.now += 100 * ttl
        await coordinator.transact([Compare("none", 0)], [Put(f"at {steady.now}", b"")])
        await asyncio.sleep(ttl / 2)
        await coordinator.expire_leases()
    assert not lapses
    assert not lost.done()
    await leadership.resign()
    await lost
    await registration.close()
    await coordinator.close()
