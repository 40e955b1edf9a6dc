"""Cassandra goes away and comes back: nothing is lost, nothing takes effect twice, and the store goes on by itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import Any

import pytest
from cassandra.connection import ConnectionException

from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.contract import (
    Append,
    JournalHead,
    SequencerRefusedError,
    StateRow,
    StoreUnavailableError,
)
from tests.components import cassandra
from tests.store.cassandra.owner import append_for_certain


async def test_g2_each_append_takes_effect_once_through_stops_and_kills_of_cassandra(
    settings: CassandraSettings, name: str
) -> None:
    (node,) = cassandra().nodes
    store = await CassandraStore.open(replace(settings, timeout_seconds=0.4))
    await store.create_journal(name)
    await store.fence(name, 5)
    done = asyncio.Event()
    uncertain = 0

    async def own() -> int:
        nonlocal uncertain
        commit = 0
        while not done.is_set():
            commit += 1
            uncertain += await append_for_certain(store, name, Append(5, commit, 0, (), b"entry %d" % commit))
        return commit

    owner = asyncio.create_task(own())
    try:
        for pause in (0.2, 0.6, 1.5):
            await asyncio.sleep(0.5)
            node.pause()
            await asyncio.sleep(pause)
            node.resume()
        await asyncio.sleep(0.3)
        node.kill()
        await asyncio.sleep(0.5)
        await asyncio.to_thread(node.start)
        await asyncio.sleep(2.0)
    finally:
        node.resume()
        done.set()
    commits = await owner
    assert uncertain > 0
    assert commits > 50
    assert await store.read_head(name) == JournalHead(5, commits, 0, ())
    assert await store.read_entries(name, 1, commits) == [b"entry %d" % commit for commit in range(1, commits + 1)]
    await store.close()


async def test_g3_what_a_zombie_had_on_its_way_is_refused_when_it_arrives_late_6_2(
    settings: CassandraSettings, store: CassandraStore, name: str
) -> None:
    """The zombie's append waits in a node that stands still, together with its successor's fence."""
    (node,) = cassandra().nodes
    zombie = await CassandraStore.open(replace(settings, timeout_seconds=0.3))
    await store.create_journal(name)
    await zombie.fence(name, 5)
    node.pause()
    try:
        with pytest.raises(StoreUnavailableError, match=r"store|Cassandra"):
            await zombie.append(name, Append(5, 1, 0, (), b"zombie"))
        fence = asyncio.create_task(store.fence(name, 6))
        await asyncio.sleep(0.1)
    finally:
        node.resume()
    head = await fence
    await store.append(name, Append(6, head.commit + 1, 0, (), b"successor"))
    with pytest.raises(SequencerRefusedError):
        await append_for_certain(zombie, name, Append(5, 2, 0, (), b"zombie again"))
    last = await store.read_head(name)
    assert last == JournalHead(6, head.commit + 1, 0, ())
    assert (await store.read_entries(name, 1, last.commit))[-1] == b"successor"
    await zombie.close()


async def test_every_call_says_that_cassandra_is_away_and_works_again_when_it_is_back(
    settings: CassandraSettings, name: str
) -> None:
    (node,) = cassandra().nodes
    store = await CassandraStore.open(replace(settings, timeout_seconds=0.5))
    await store.create_journal(name)
    node.kill()
    try:
        for call in (
            lambda: store.fence(name, 1),
            lambda: store.read_head(name),
            lambda: store.append(name, Append(1, 1, 0, (), b"")),
            lambda: store.read_entries(name, 1, 1),
            lambda: store.write_states(name, name, 1, [StateRow(b"k", 1, b"v")]),
            lambda: store.read_states(name, [b"k"]),
            lambda: store.list_parts(name),
        ):
            with pytest.raises(StoreUnavailableError, match=r"tried again"):
                await call()
    finally:
        await asyncio.to_thread(node.start)
    deadline = time.monotonic() + 20
    while True:
        with contextlib.suppress(StoreUnavailableError):
            assert (await store.fence(name, 1)).sequencer == 1
            break
        assert time.monotonic() < deadline
    await store.write_states(name, name, 1, [StateRow(b"k", 1, b"v")])
    assert await store.read_states(name, [b"k"]) == [StateRow(b"k", 1, b"v")]
    await store.close()


async def test_a_refused_login_is_tried_again_until_it_is_let_in(
    settings: CassandraSettings, driver: Any, store: CassandraStore, name: str
) -> None:
    """The driver gave a node up for good that had refused one, as all do while the passwords' replica is away."""
    driver.execute(f"CREATE ROLE {name} WITH PASSWORD = 'p' AND LOGIN = true")
    driver.execute(f"GRANT SELECT ON KEYSPACE {settings.keyspace} TO {name}")
    refused = await CassandraStore.open(replace(settings, username=name, password="p", timeout_seconds=0.5))
    driver.execute(f"ALTER ROLE {name} WITH PASSWORD = 'other'")
    await asyncio.sleep(2.1)  # for as long passwords are remembered
    for pool in refused._session._driver.get_pools():
        pool._connection.defunct(ConnectionException("the network"))
    with pytest.raises(StoreUnavailableError, match=r"tried again"):
        await refused.list_parts(name)
    await asyncio.sleep(0.5)
    driver.execute(f"ALTER ROLE {name} WITH PASSWORD = 'p'")
    deadline = time.monotonic() + 20
    while True:
        with contextlib.suppress(StoreUnavailableError):
            assert await refused.list_parts(name) == []
            break
        assert time.monotonic() < deadline
    await refused.close()


async def test_what_cassandra_refuses_of_an_open_store_is_tried_again(
    settings: CassandraSettings, driver: Any, name: str
) -> None:
    """As a node does that has just joined and has not heard of the tables: intervals were given up for it, for good."""
    store = await CassandraStore.open(replace(settings, keyspace=name, timeout_seconds=0.5))
    driver.execute(f"DROP TABLE {name}.parts")
    with pytest.raises(StoreUnavailableError, match=r"does not know the tables.*tried again"):
        await store.list_parts(name)
    await store.close()


async def test_what_waited_past_its_deadline_is_not_sent_any_more(
    settings: CassandraSettings, store: CassandraStore, name: str
) -> None:
    """One request at a time: the first is in a node that stands still, the second waits until it is late."""
    (node,) = cassandra().nodes
    slow = await CassandraStore.open(replace(settings, timeout_seconds=0.5, concurrent_writes=1))
    node.pause()
    try:
        results = await asyncio.gather(
            slow.write_states(name, name, 1, [StateRow(b"first", 1, b"sent")]),
            slow.write_states(name, name, 1, [StateRow(b"second", 1, b"waits")]),
            return_exceptions=True,
        )
    finally:
        node.resume()
    assert [type(result) for result in results] == [StoreUnavailableError] * 2
    assert "not sent" in str(results[1])
    await asyncio.sleep(0.5)
    assert [row is not None for row in await store.read_states(name, [b"first", b"second"])] == [True, False]
    await slow.close()


async def test_g13_a_flush_that_takes_longer_than_a_deadline_gets_through(
    settings: CassandraSettings, store: CassandraStore, name: str
) -> None:
    """What had to wait at the gate for longer was not sent; the repetition began anew, and came as far: for ever."""
    slow = await CassandraStore.open(replace(settings, timeout_seconds=0.3, concurrent_writes=1))
    rows = [StateRow(b"key %d" % number, 1, b"value") for number in range(10_000)]
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(StoreUnavailableError):
                began = time.monotonic()
                await slow.write_states(name, name, 1, rows)
                break
    assert time.monotonic() - began > 0.3
    assert await store.read_states(name, [rows[0].key, rows[-1].key]) == [rows[0], rows[-1]]
    await slow.close()


async def test_closing_fails_what_is_outstanding(settings: CassandraSettings, name: str) -> None:
    (node,) = cassandra().nodes
    store = await CassandraStore.open(settings)
    await store.create_journal(name)
    node.pause()
    try:
        outstanding = asyncio.create_task(store.fence(name, 1))
        await asyncio.sleep(0.2)
        begun = time.monotonic()
        await store.close()
        with pytest.raises(StoreUnavailableError, match="closed"):
            await outstanding
        assert time.monotonic() - begun < 5
    finally:
        node.resume()
