"""The coordinator on three members of etcd, of which some are killed or paused (section 7.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.local.etcd import EtcdCluster
from millwheel.coordination.contract import Compare, CoordinatorUnavailableError, KeyChange, Put
from millwheel.coordination.election import Election
from millwheel.coordination.etcd import EtcdCoordinator, EtcdSettings
from tests.patience import patience

SOON = patience(20.0)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd"), 3) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def all_serve(members: EtcdCluster) -> Iterator[None]:
    """After the block all members serve again."""
    yield
    for number in range(3):
        members.resume(number)
    members.start()


@asynccontextmanager
async def opened(members: EtcdCluster, name: str, timeout: float = 10.0) -> AsyncIterator[EtcdCoordinator]:
    coordinator = EtcdCoordinator(EtcdSettings(members.endpoints, prefix=f"{name}/", timeout=timeout))
    try:
        yield coordinator
    finally:
        await coordinator.close()


async def count(coordinator: EtcdCoordinator, key: str, until: int) -> set[int]:
    """Raise a counter by transactions that compare it. Returns the values of transactions with an unknown outcome."""
    unsure = set()
    value = modified = 0
    while value < until:
        try:
            outcome = await coordinator.transact([Compare(key, modified)], [Put(key, b"%d" % (value + 1))])
        except CoordinatorUnavailableError:
            unsure.add(value + 1)
            outcome = None
        if outcome is not None and outcome.committed:
            value, modified = value + 1, outcome.revision
        else:
            entry = await coordinator.get(key)
            value, modified = (0, 0) if entry is None else (int(entry.value), entry.modified)
    return unsure


async def put_blindly(coordinator: EtcdCoordinator, key: str, until: asyncio.Future[set[int]]) -> tuple[int, set[int]]:
    """Put one value after the other, each once and without a compare; how many, and which may not have been put."""
    unsure = set()
    value = 0
    while not until.done():
        value += 1
        try:
            await coordinator.transact([], [Put(key, b"%d" % value)])
        except CoordinatorUnavailableError:
            unsure.add(value)
    return value, unsure


async def seen(coordinator: EtcdCoordinator, prefix: str, after: int, until: int) -> list[KeyChange]:
    """What a watch reports until the counter has reached a value."""
    changes: list[KeyChange] = []
    async for group in coordinator.watch(prefix, after):
        changes += group
        if group[-1].value == b"%d" % until:
            return changes
    raise AssertionError("the watch has ended")


async def test_nothing_is_lost_or_repeated_while_each_member_is_killed(members: EtcdCluster) -> None:
    async with opened(members, "turn") as writer, opened(members, "turn") as watcher:
        start = (await writer.transact([], [Put("begin", b"")])).revision
        watching = asyncio.ensure_future(seen(watcher, "n", start, 600))
        counting = asyncio.ensure_future(count(writer, "n", 600))
        putting = asyncio.ensure_future(put_blindly(watcher, "blind", counting))
        for number in range(3):
            await asyncio.sleep(0.3)
            members.kill(number)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(members.start, number)
        unsure = await asyncio.wait_for(counting, patience(40))
        changes = await asyncio.wait_for(watching, SOON)
        # Each value once, in order, at growing revisions: no transaction was repeated, and no change left out.
        assert [change.value for change in changes] == [b"%d" % value for value in range(1, 601)]
        revisions = [change.revision for change in changes]
        assert revisions == sorted(set(revisions))
        assert len(unsure) < 30
        last, unsure = await asyncio.wait_for(putting, SOON)
        await writer.transact([], [Put("blind", b"0")])
        reported = [int(change.value or b"") for change in await seen(writer, "blind", start, 0)][:-1]
        assert len(set(reported)) == len(reported)
        # A put whose outcome is unknown may take effect after a later one: a member had it, and came back.
        known = [one for one in reported if one not in unsure]
        assert known == sorted(known)
        assert set(range(1, last + 1)) - set(reported) <= unsure


async def test_a_watch_at_a_member_that_dies_goes_on_at_another(members: EtcdCluster) -> None:
    async with opened(members, "watch") as writer:
        single = [EtcdSettings((each,), prefix="watch/") for each in members.endpoints]
        watchers = [EtcdCoordinator(each) for each in single]
        everywhere = EtcdCoordinator(EtcdSettings(members.endpoints, prefix="watch/"))
        start = (await writer.transact([], [Put("begin", b"")])).revision
        watching = [asyncio.ensure_future(seen(each, "n", start, 50)) for each in (*watchers, everywhere)]
        await asyncio.sleep(0.3)
        members.kill(1)
        await count(writer, "n", 25)
        await asyncio.to_thread(members.start, 1)
        await count(writer, "n", 50)
        # Those that know one member alone wait for it, and miss nothing either.
        for task in watching:
            changes = await asyncio.wait_for(task, SOON)
            assert [change.value for change in changes] == [b"%d" % value for value in range(1, 51)]
        for watcher in (*watchers, everywhere):
            await watcher.close()


async def test_without_a_quorum_calls_fail_and_work_again_with_one(members: EtcdCluster) -> None:
    async with opened(members, "quorum") as patient, opened(members, "quorum", timeout=2.0) as coordinator:
        start = (await patient.transact([], [Put("n", b"0")])).revision
        watching = asyncio.ensure_future(seen(coordinator, "n", start, 1))
        members.kill(0)
        members.kill(2)
        with pytest.raises(CoordinatorUnavailableError, match=r"coordinator\.endpoints"):
            await coordinator.get("n")
        with pytest.raises(CoordinatorUnavailableError, match=members.endpoints[1]):
            await coordinator.transact([], [Put("x", b"lost")])
        with pytest.raises(CoordinatorUnavailableError):
            await coordinator.grant_lease(5)
        await asyncio.to_thread(members.start, 0, 2)
        async with asyncio.timeout(SOON):
            while True:
                try:
                    await coordinator.transact([], [Put("n", b"1")])
                    break
                except CoordinatorUnavailableError:
                    continue
        assert [change.value for change in await asyncio.wait_for(watching, SOON)][-1] == b"1"


async def test_a_member_that_stands_still_is_left_for_another(members: EtcdCluster) -> None:
    async with opened(members, "pause", timeout=patience(20)) as coordinator:
        await coordinator.transact([], [Put("n", b"0")])
        for number in range(3):
            members.pause(number)
            assert (await coordinator.get("n")) is not None
            members.resume(number)


@pytest.mark.paper(section="7.1")
async def test_a_leader_is_followed_though_an_etcd_member_is_down(members: EtcdCluster) -> None:
    async with opened(members, "election") as one, opened(members, "election") as two:
        first = await asyncio.wait_for(Election(one, "leader", "first", ttl=5.0).campaign(), SOON)
        standby = asyncio.ensure_future(Election(two, "leader", "second", ttl=5.0).campaign())
        lost = asyncio.create_task(first.lost())
        members.kill(2)
        await asyncio.sleep(6.0)
        assert not lost.done()
        assert (await one.transact([first.compare], [Put("x", b"")])).committed
        assert not standby.done()
        await first.resign()
        await lost
        second = await asyncio.wait_for(standby, SOON)
        assert second.term > first.term
        await second.resign()


async def test_data_survive_when_all_members_are_killed_at_once(members: EtcdCluster) -> None:
    async with opened(members, "all") as coordinator:
        revision = (await coordinator.transact([], [Put("a", b"kept")])).revision
        for number in range(3):
            members.kill(number)
        await asyncio.to_thread(members.start)
        entry = await coordinator.get("a")
        assert entry is not None
        assert (entry.value, entry.modified) == (b"kept", revision)


def test_what_is_killed_leaves_no_process_behind(members: EtcdCluster) -> None:
    pid = members.members[0].pid
    members.kill(0)
    assert not Path(f"/proc/{pid}").exists()
