"""What every coordinator promises. Nothing here knows which one it is, or at which revision it starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millwheel.coordination.contract import (
    CompactedError,
    Compare,
    Coordinator,
    CoordinatorUnavailableError,
    KeyChange,
    KeyValue,
    LeaseExpiredError,
    Put,
)
from tests.contracts.conftest import OpenCoordinator
from tests.patience import patience, until

SOON = patience(5.0)
"""Seconds within which what is due must have happened."""


async def put(coordinator: Coordinator, key: str, value: bytes, lease: int = 0) -> int:
    outcome = await coordinator.transact([], [Put(key, value, lease)])
    assert outcome.committed
    return outcome.revision


async def following(watch: AsyncIterator[tuple[KeyChange, ...]]) -> tuple[KeyChange, ...]:
    return await asyncio.wait_for(anext(watch), SOON)


async def close(watch: AsyncIterator[tuple[KeyChange, ...]]) -> None:
    await watch.aclose()  # type: ignore[attr-defined]


async def gone(coordinator: Coordinator, key: str) -> None:
    """Wait until ``key`` does not exist."""
    await until(lambda: coordinator.get(key), SOON, holds=lambda entry: entry is None)


# Keys and revisions.


async def test_a_key_is_absent_until_it_is_put(coordinator: Coordinator, prefix: str) -> None:
    key = prefix + "a"
    assert await coordinator.get(key) is None
    created = await put(coordinator, key, b"one")
    assert await coordinator.get(key) == KeyValue(key, b"one", created, created)
    modified = await put(coordinator, key, b"")
    assert modified > created
    assert await coordinator.get(key) == KeyValue(key, b"", created, modified)


async def test_a_key_put_after_its_deletion_is_a_new_one(coordinator: Coordinator, prefix: str) -> None:
    key = prefix + "a"
    await put(coordinator, key, b"one")
    deleted = (await coordinator.transact([], deletes=[key])).revision
    assert await coordinator.get(key) is None
    again = await put(coordinator, key, b"two")
    assert again > deleted
    assert await coordinator.get(key) == KeyValue(key, b"two", again, again)


async def test_a_list_is_sorted_and_from_one_moment(coordinator: Coordinator, prefix: str) -> None:
    for name in ("b", "a", "a/x", "ä", "c"):
        await put(coordinator, prefix + name, name.encode())
    revision = (await coordinator.transact([], deletes=[prefix + "c"])).revision
    snapshot = await coordinator.list(prefix)
    assert [entry.key for entry in snapshot.entries] == [prefix + name for name in ("a", "a/x", "b", "ä")]
    assert snapshot.revision >= revision
    assert [entry.value for entry in (await coordinator.list(prefix + "a")).entries] == [b"a", b"a/x"]
    assert (await coordinator.list(prefix + "none")).entries == ()


# Transactions.


async def test_a_transaction_is_one_revision(coordinator: Coordinator, prefix: str) -> None:
    await put(coordinator, prefix + "old", b"")
    outcome = await coordinator.transact(
        [], [Put(prefix + "a", b"1"), Put(prefix + "b", b"2")], [prefix + "old", prefix + "absent"]
    )
    snapshot = await coordinator.list(prefix)
    assert [(entry.key, entry.modified) for entry in snapshot.entries] == [
        (prefix + "a", outcome.revision),
        (prefix + "b", outcome.revision),
    ]


async def test_a_transaction_does_all_or_nothing(coordinator: Coordinator, prefix: str) -> None:
    first, second = prefix + "a", prefix + "b"
    revision = await put(coordinator, first, b"1")
    for stale in (0, revision - 1, revision + 1):
        outcome = await coordinator.transact(
            [Compare(first, stale), Compare(second, 0)], [Put(second, b"2")], deletes=[first]
        )
        assert not outcome.committed
        assert outcome.revision >= revision
    assert await coordinator.get(second) is None
    assert (await coordinator.transact([Compare(second, revision)], [Put(second, b"2")])).committed is False
    outcome = await coordinator.transact(
        [Compare(first, revision), Compare(second, 0)], [Put(second, b"2")], deletes=[first]
    )
    assert outcome.committed
    assert [entry.key for entry in (await coordinator.list(prefix)).entries] == [second]


async def test_a_transaction_may_only_compare(coordinator: Coordinator, prefix: str) -> None:
    revision = await put(coordinator, prefix + "a", b"1")
    assert (await coordinator.transact([Compare(prefix + "a", revision)])).committed
    assert not (await coordinator.transact([Compare(prefix + "a", 0)])).committed
    entry = await coordinator.get(prefix + "a")
    assert entry is not None
    assert entry.modified == revision


async def test_a_transaction_names_a_key_once(coordinator: Coordinator, prefix: str) -> None:
    key = prefix + "a"
    with pytest.raises(ValueError, match=key):
        await coordinator.transact([], [Put(key, b"1"), Put(key, b"2")])
    with pytest.raises(ValueError, match=key):
        await coordinator.transact([], [Put(key, b"1")], [key])
    assert await coordinator.get(key) is None


async def test_of_many_that_create_a_key_one_succeeds(coordinator: Coordinator, prefix: str) -> None:
    key = prefix + "lock"
    outcomes = await asyncio.gather(
        *(coordinator.transact([Compare(key, 0)], [Put(key, b"%d" % each)]) for each in range(10))
    )
    winners = [each for each, outcome in enumerate(outcomes) if outcome.committed]
    assert len(winners) == 1
    entry = await coordinator.get(key)
    assert entry is not None
    assert entry.value == b"%d" % winners[0]


async def test_a_counter_incremented_by_many_loses_nothing(coordinator: Coordinator, prefix: str) -> None:
    key = prefix + "sequencer"
    drawn: list[int] = []

    async def draw(times: int) -> None:
        while times:
            entry = await coordinator.get(key)
            value, modified = (0, 0) if entry is None else (int(entry.value), entry.modified)
            outcome = await coordinator.transact([Compare(key, modified)], [Put(key, b"%d" % (value + 1))])
            if outcome.committed:
                drawn.append(value + 1)
                times -= 1

    await asyncio.gather(*(draw(5) for _ in range(4)))
    assert sorted(drawn) == list(range(1, 21))


async def test_a_cancelled_transaction_is_whole_and_compared(coordinator: Coordinator, prefix: str) -> None:
    """It may still be under way when its caller is gone, as after a lost answer. Its compare must stop it then."""
    key, beside = prefix + "a", prefix + "b"
    for attempt in range(20):
        modified = await put(coordinator, key, b"%d before" % attempt)
        puts = [Put(name, b"%d cancelled" % attempt) for name in (key, beside)]
        task = asyncio.ensure_future(coordinator.transact([Compare(key, modified)], puts))
        for _ in range(attempt % 5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await put(coordinator, key, b"%d after" % attempt)
        entry, other = await coordinator.get(key), await coordinator.get(beside)
        assert entry is not None
        assert entry.value == b"%d after" % attempt
        assert other is None or other.modified < entry.modified


# Watches.


async def test_a_watch_reports_what_comes_after_its_revision(coordinator: Coordinator, prefix: str) -> None:
    key = prefix + "a"
    first = await put(coordinator, key, b"1")
    second = await put(coordinator, key, b"2")
    watch = coordinator.watch(prefix, first)
    assert await following(watch) == (KeyChange(key, b"2", second),)
    third = (await coordinator.transact([], deletes=[key])).revision
    assert await following(watch) == (KeyChange(key, None, third),)
    await close(watch)


async def test_a_watch_reports_one_revision_at_a_time_without_a_gap(coordinator: Coordinator, prefix: str) -> None:
    start = (await coordinator.list(prefix)).revision
    watch = coordinator.watch(prefix, start)

    async def change() -> list[int]:
        revisions = []
        for number in range(30):
            puts = [Put(f"{prefix}{number}/{part}", b"%d" % number) for part in range(3)]
            revisions.append((await coordinator.transact([], puts)).revision)
            await coordinator.transact([], [Put(f"elsewhere/{prefix}", b"")])
        return revisions

    changing = asyncio.ensure_future(change())
    reported = [await following(watch) for _ in range(30)]
    assert [{each.revision for each in group} for group in reported] == [{revision} for revision in await changing]
    for number, group in enumerate(reported):
        assert sorted(each.key for each in group) == [f"{prefix}{number}/{part}" for part in range(3)]
    await close(watch)


async def test_a_watch_waits_for_a_change_below_its_prefix(coordinator: Coordinator, prefix: str) -> None:
    start = (await coordinator.list(prefix)).revision
    watch = coordinator.watch(prefix + "in/", start)
    waiting = asyncio.ensure_future(anext(watch))
    await put(coordinator, prefix + "out", b"")
    await put(coordinator, prefix + "in", b"")
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    revision = await put(coordinator, prefix + "in/side", b"x")
    assert await asyncio.wait_for(waiting, SOON) == (KeyChange(prefix + "in/side", b"x", revision),)
    await close(watch)


async def test_a_watch_from_a_future_revision_skips_what_is_before_it(coordinator: Coordinator, prefix: str) -> None:
    start = (await coordinator.list(prefix)).revision
    watch = coordinator.watch(prefix, start + 2)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0.01)
    revisions = []
    for number in range(3):
        revisions.append(await put(coordinator, prefix + "a", b"%d" % number))
        await asyncio.sleep(0.01)
    (change,) = await asyncio.wait_for(waiting, SOON)
    assert change.revision == min(revision for revision in revisions if revision > start + 2)
    await close(watch)


async def test_watches_are_independent(coordinator: Coordinator, prefix: str) -> None:
    start = (await coordinator.list(prefix)).revision
    early, late = coordinator.watch(prefix, start), coordinator.watch(prefix, start)
    revision = await put(coordinator, prefix + "a", b"1")
    assert await following(early) == (KeyChange(prefix + "a", b"1", revision),)
    await close(early)
    second = await put(coordinator, prefix + "b", b"2")
    assert await following(late) == (KeyChange(prefix + "a", b"1", revision),)
    assert await following(late) == (KeyChange(prefix + "b", b"2", second),)
    await close(late)


async def test_a_list_and_a_watch_from_its_revision_miss_nothing(coordinator: Coordinator, prefix: str) -> None:
    async def change() -> None:
        for number in range(100):
            await put(coordinator, f"{prefix}{number % 7}", b"%d" % number)

    changing = asyncio.ensure_future(change())
    await asyncio.sleep(0.005)
    snapshot = await coordinator.list(prefix)
    mirror = {entry.key: entry.value for entry in snapshot.entries}
    watch = coordinator.watch(prefix, snapshot.revision)
    while mirror.get(prefix + "1") != b"99":
        for change_ in await following(watch):
            assert change_.value is not None
            mirror[change_.key] = change_.value
    await changing
    assert mirror == {entry.key: entry.value for entry in (await coordinator.list(prefix)).entries}
    await close(watch)


# Leases.


async def test_what_is_bound_to_a_lease_goes_with_it(coordinator: Coordinator, prefix: str) -> None:
    lease = await coordinator.grant_lease(60)
    other = await coordinator.grant_lease(60)
    assert lease != other
    await put(coordinator, prefix + "free", b"")
    await put(coordinator, prefix + "other", b"", other)
    await put(coordinator, prefix + "a", b"", lease)
    revision = await put(coordinator, prefix + "b", b"", lease)
    entry = await coordinator.get(prefix + "a")
    assert entry is not None
    assert entry.lease == lease
    watch = coordinator.watch(prefix, revision)
    await coordinator.revoke_lease(lease)
    assert [entry.key for entry in (await coordinator.list(prefix)).entries] == [prefix + "free", prefix + "other"]
    reported = [*await following(watch)]
    if len(reported) == 1:
        reported += await following(watch)
    assert sorted((change.key, change.value) for change in reported) == [(prefix + "a", None), (prefix + "b", None)]
    await close(watch)


async def test_a_lease_ends_by_itself(coordinator: Coordinator, prefix: str) -> None:
    lease = await coordinator.grant_lease(1)
    revision = await put(coordinator, prefix + "a", b"", lease)
    watch = coordinator.watch(prefix, revision)
    (change,) = await following(watch)
    assert (change.key, change.value) == (prefix + "a", None)
    assert change.revision > revision
    assert await coordinator.get(prefix + "a") is None
    with pytest.raises(LeaseExpiredError):
        await coordinator.keep_alive(lease)
    await close(watch)


async def test_a_renewed_lease_does_not_end(coordinator: Coordinator, prefix: str) -> None:
    lease = await coordinator.grant_lease(2)
    await put(coordinator, prefix + "a", b"", lease)
    for _ in range(5):
        await asyncio.sleep(0.5)
        await coordinator.keep_alive(lease)
    assert await coordinator.get(prefix + "a") is not None
    await gone(coordinator, prefix + "a")


async def test_an_ended_lease_is_of_no_use(coordinator: Coordinator, prefix: str) -> None:
    lease = await coordinator.grant_lease(60)
    await coordinator.revoke_lease(lease)
    await coordinator.revoke_lease(lease)
    with pytest.raises(LeaseExpiredError):
        await coordinator.keep_alive(lease)
    with pytest.raises(LeaseExpiredError):
        await coordinator.transact([], [Put(prefix + "a", b"", lease), Put(prefix + "b", b"")])
    assert (await coordinator.list(prefix)).entries == ()


async def test_a_key_put_without_its_lease_outlives_it(coordinator: Coordinator, prefix: str) -> None:
    lease = await coordinator.grant_lease(60)
    await put(coordinator, prefix + "a", b"bound", lease)
    revision = await put(coordinator, prefix + "a", b"free")
    await coordinator.revoke_lease(lease)
    entry = await coordinator.get(prefix + "a")
    assert entry is not None
    assert (entry.value, entry.lease, entry.modified) == (b"free", 0, revision)


# Closing, and opening again.


async def test_a_closed_coordinator_is_unavailable_and_ends_watches(coordinator: Coordinator, prefix: str) -> None:
    revision = await put(coordinator, prefix + "a", b"")
    watch = coordinator.watch(prefix, revision)
    waiting = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0)
    await coordinator.close()
    assert await asyncio.wait_for(waiting, SOON) is None
    with pytest.raises(CoordinatorUnavailableError):
        await coordinator.get(prefix + "a")
    with pytest.raises(CoordinatorUnavailableError):
        await coordinator.transact([], [Put(prefix + "a", b"")])
    with pytest.raises(CoordinatorUnavailableError):
        await coordinator.grant_lease(1)


async def test_keys_and_revisions_survive_opening_again(
    open_coordinator: OpenCoordinator, tmp_path: Path, prefix: str
) -> None:
    async with open_coordinator(tmp_path) as coordinator:
        created = await put(coordinator, prefix + "a", b"1")
        modified = await put(coordinator, prefix + "a", b"2")
        await put(coordinator, prefix + "b", b"")
        last = (await coordinator.transact([], deletes=[prefix + "b"])).revision
    async with open_coordinator(tmp_path) as coordinator:
        snapshot = await coordinator.list(prefix)
        assert snapshot.entries == (KeyValue(prefix + "a", b"2", created, modified),)
        assert snapshot.revision >= last
        watch = coordinator.watch(prefix, snapshot.revision)
        revision = await put(coordinator, prefix + "a", b"3")
        assert revision > last
        assert await following(watch) == (KeyChange(prefix + "a", b"3", revision),)
        await close(watch)


async def test_a_watch_from_a_compacted_revision_reports_that(
    open_coordinator: OpenCoordinator, tmp_path: Path, prefix: str
) -> None:
    """The watch brings all changes, or raises CompactedError. It never leaves a gap."""
    async with open_coordinator(tmp_path) as coordinator:
        revisions = [await put(coordinator, prefix + "a", b"%d" % number) for number in range(3)]
    async with open_coordinator(tmp_path) as coordinator:
        watch = coordinator.watch(prefix, revisions[0])
        try:
            reported = [await following(watch), await following(watch)]
        except CompactedError:
            return
        assert [group[0].revision for group in reported] == revisions[1:]


async def test_no_lease_outlives_its_coordinator_unnoticed(
    open_coordinator: OpenCoordinator, tmp_path: Path, prefix: str
) -> None:
    """A coordinator that is opened again has kept the lease with its keys, or ended both.

    No other lease gets its id.
    """
    async with open_coordinator(tmp_path) as coordinator:
        lease = await coordinator.grant_lease(60)
        await put(coordinator, prefix + "bound", b"", lease)
        await put(coordinator, prefix + "free", b"")
    async with open_coordinator(tmp_path) as coordinator:
        assert await coordinator.grant_lease(60) != lease
        try:
            await coordinator.keep_alive(lease)
        except LeaseExpiredError:
            assert await coordinator.get(prefix + "bound") is None
        else:
            assert await coordinator.get(prefix + "bound") is not None
        assert await coordinator.get(prefix + "free") is not None
