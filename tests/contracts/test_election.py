"""One leader at a time, also if a former one believes that it leads (section 7.1: a replicated master)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millwheel.coordination.contract import Compare, Coordinator, CoordinatorUnavailableError, Put
from millwheel.coordination.election import Election, Leadership
from tests.patience import patience

SOON = patience(5.0)


class Cut:
    """A coordinator that can be cut off: calls fail as they do without a connection."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.is_cut = False

    def __getattr__(self, name: str) -> Any:
        if self.is_cut:
            raise CoordinatorUnavailableError("cut off")
        return getattr(self._coordinator, name)


async def elected(election: Election) -> Leadership:
    return await asyncio.wait_for(election.campaign(), SOON)


async def set_as(leadership: Leadership, coordinator: Coordinator, key: str) -> bool:
    return (await coordinator.transact([leadership.compare], [Put(key, b"set")])).committed


async def is_lost(leadership: Leadership) -> bool:
    """Whether the term is known to have ended."""
    lost = asyncio.ensure_future(leadership.lost())
    await asyncio.sleep(0)
    return lost.done() or not lost.cancel()


@pytest.fixture
def key(prefix: str) -> str:
    return prefix + "leader"


async def test_the_only_candidate_is_elected(coordinator: Coordinator, key: str) -> None:
    election = Election(coordinator, key, "first", ttl=5.0)
    assert await election.leader() is None
    leadership = await elected(election)
    assert await election.leader() == "first"
    assert await set_as(leadership, coordinator, key + "/x")
    assert not await is_lost(leadership)
    await leadership.resign()


async def test_a_standby_follows_when_the_leader_resigns(coordinator: Coordinator, key: str) -> None:
    first = await elected(Election(coordinator, key, "first", ttl=5.0))
    standby = asyncio.ensure_future(Election(coordinator, key, "second", ttl=5.0).campaign())
    await asyncio.sleep(0.05)
    assert not standby.done()
    await first.resign()
    second = await asyncio.wait_for(standby, SOON)
    assert second.term > first.term
    assert await is_lost(first)
    assert not await set_as(first, coordinator, key + "/x")
    assert await set_as(second, coordinator, key + "/x")
    await second.resign()


async def test_of_many_candidates_one_leads_at_a_time(coordinator: Coordinator, key: str) -> None:
    tasks = {asyncio.ensure_future(Election(coordinator, key, str(each), ttl=5.0).campaign()) for each in range(5)}
    terms = []
    while tasks:
        done, tasks = await asyncio.wait(tasks, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        leadership = done.pop().result()
        terms.append(leadership.term)
        await leadership.resign()
    assert terms == sorted(set(terms))


async def test_a_leader_that_is_cut_off_is_followed_and_knows_it(coordinator: Coordinator, key: str) -> None:
    link = Cut(coordinator)
    first = await elected(Election(link, key, "first", ttl=1.0))
    standby = asyncio.ensure_future(Election(coordinator, key, "second", ttl=1.0).campaign())
    link.is_cut = True
    second = await asyncio.wait_for(standby, SOON)
    await asyncio.wait_for(first.lost(), SOON)
    assert not await set_as(first, coordinator, key + "/x")
    assert await set_as(second, coordinator, key + "/x")
    await second.resign()
    await first.resign()


async def test_a_leader_stays_one_for_longer_than_its_lease(coordinator: Coordinator, key: str) -> None:
    leadership = await elected(Election(coordinator, key, "first", ttl=2.0))  # etcd's shortest
    await asyncio.sleep(2.6)
    assert not await is_lost(leadership)
    assert await set_as(leadership, coordinator, key + "/x")
    await leadership.resign()


async def test_a_leader_whose_key_was_taken_knows_it(coordinator: Coordinator, key: str) -> None:
    leadership = await elected(Election(coordinator, key, "first", ttl=5.0))
    await coordinator.transact([Compare(key, leadership.term)], [Put(key, b"operator")])
    await asyncio.wait_for(leadership.lost(), SOON)
    assert not await set_as(leadership, coordinator, key + "/x")
    await leadership.resign()
