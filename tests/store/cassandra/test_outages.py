"""After an outage of Cassandra nothing is lost or applied twice, and the store continues by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from cassandra.connection import ConnectionException
from cassandra.pool import HostConnection

from millwheel.model.incarnation import IncarnationId
from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.contract import (
    Append,
    JournalHead,
    SequencerRefusedError,
    StateRow,
    StateStore,
    StoreUnavailableError,
)
from tests.components import cassandra
from tests.kept import kept
from tests.patience import patience, until
from tests.store.cassandra.conftest import OpenStore

Result = TypeVar("Result")

by_either_way = pytest.mark.parametrize("direct_appends", [True, False], ids=["direct", "driver"])


async def until_available(call: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat a call until the store answers it."""
    while True:
        try:
            return await call()
        except StoreUnavailableError:
            await asyncio.sleep(0.05)


async def append_for_certain(
    store: StateStore,
    journal: str,
    append: Append,
    *,
    after_unknown: bool = False,
    on_unknown: Callable[[], object] = lambda: None,
) -> int:
    """As an owner does: repeat the identical bytes until the outcome is known; the number of unknown outcomes.

    ``after_unknown``: the same append was tried before this call. ``on_unknown`` is called at each unknown outcome.
    """
    uncertain = int(after_unknown)
    while True:
        try:
            await store.append(journal, append)
        except StoreUnavailableError:
            uncertain += 1
            on_unknown()
            await asyncio.sleep(0.05)
        except SequencerRefusedError as refused:
            if not uncertain or (refused.sequencer, refused.commit) != (append.sequencer, append.commit):
                raise
            return uncertain
        else:
            return uncertain


@pytest.fixture(autouse=True)
def mended() -> Iterator[None]:
    """The node works again after the block, because all tests share it."""
    (node,) = cassandra().nodes
    try:
        yield
    finally:
        node.resume()
        node.start()


class _Owner:
    """Appends one entry after the other until it is stopped. Its outcomes are known in the end, each of them."""

    def __init__(self, store: CassandraStore, journal: str) -> None:
        self._store, self._journal = store, journal
        self._stopped = asyncio.Event()
        self._task = asyncio.create_task(self._own())
        self.commits = 0
        self.unknown = 0

    async def _own(self) -> None:
        while not self._stopped.is_set():
            append = Append(5, self.commits + 1, 0, (), b"entry %d" % (self.commits + 1))
            await append_for_certain(self._store, self._journal, append, on_unknown=self._count_unknown)
            self.commits += 1

    def _count_unknown(self) -> None:
        self.unknown += 1

    async def more_commits(self, number: int) -> None:
        until = self.commits + number
        await self._until(lambda: self.commits >= until)

    async def more_unknown(self) -> None:
        before = self.unknown
        await self._until(lambda: self.unknown > before)

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(patience(60)):
            while not holds():
                assert not self._task.done(), repr(self._task)
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._stopped.set()
        await self._task


@by_either_way
@pytest.mark.guarantee("G2")
async def test_each_append_takes_effect_once_through_cassandras_kills(
    settings: CassandraSettings, store: CassandraStore, name: str, open_store: OpenStore, direct_appends: bool
) -> None:
    (node,) = cassandra().nodes
    settings = replace(settings, direct_appends=direct_appends)
    await store.create_journal(name)
    await store.fence(name, 5)
    owner = _Owner(await open_store(replace(settings, timeout_seconds=0.4)), name)
    try:
        for pause in (0.2, 0.6, 1.5):
            await owner.more_commits(10)
            node.pause()
            await asyncio.sleep(pause)
            node.resume()
        await owner.more_commits(10)
        node.kill()
        await owner.more_unknown()
        await asyncio.to_thread(node.start)
        await owner.more_commits(10)
    finally:
        node.resume()
        await asyncio.to_thread(node.start)
        await owner.stop()
    commits = owner.commits
    reader = await open_store(settings)  # the first store may still wait for its next attempt to connect
    assert await reader.read_head(name) == JournalHead(5, commits, 0, ())
    assert await reader.read_entries(name, 1, commits) == [b"entry %d" % commit for commit in range(1, commits + 1)]


@by_either_way
@pytest.mark.guarantee("G3", section="6.2")
async def test_a_zombies_delayed_write_is_refused_when_it_arrives(
    settings: CassandraSettings, store: CassandraStore, name: str, open_store: OpenStore, direct_appends: bool
) -> None:
    """A suspended node holds the zombie's append together with its successor's fence."""
    (node,) = cassandra().nodes
    zombie = await open_store(replace(settings, timeout_seconds=0.3, direct_appends=direct_appends))
    await store.create_journal(name)
    await store.fence(name, 5)
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


async def test_every_call_reports_an_outage_and_works_again_after_it(
    settings: CassandraSettings, name: str, open_store: OpenStore
) -> None:
    (node,) = cassandra().nodes
    patient = await open_store(settings)
    store = await open_store(replace(settings, timeout_seconds=0.5))
    await patient.create_journal(name)
    node.kill()
    try:
        for call in (
            lambda: store.fence(name, 1),
            lambda: store.read_head(name),
            lambda: store.append(name, Append(1, 1, 0, (), b"")),
            lambda: store.read_entries(name, 1, 1),
            lambda: store.write_states(IncarnationId(name), name, 1, [StateRow(b"k", 1, b"v")]),
            lambda: store.read_states(IncarnationId(name), [b"k"]),
            lambda: store.list_parts(name),
        ):
            with pytest.raises(StoreUnavailableError, match=r"tried again"):
                await call()
    finally:
        await asyncio.to_thread(node.start)
    async with asyncio.timeout(patience(20)):
        await until_available(lambda: store.write_states(IncarnationId(name), name, 1, [StateRow(b"k", 1, b"v")]))
        assert await until_available(lambda: store.read_states(IncarnationId(name), [b"k"])) == [
            StateRow(b"k", 1, b"v")
        ]
        assert (await until_available(lambda: store.read_head(name))).commit == 0


async def test_a_refused_login_is_tried_again_until_it_is_let_in(
    settings: CassandraSettings, driver: Any, store: CassandraStore, name: str, open_store: OpenStore
) -> None:
    """Regression: the driver gave a node up after one refusal.

    All nodes refuse while the replica with the passwords is away.
    """
    driver.execute(f"CREATE ROLE {name} WITH PASSWORD = 'p' AND LOGIN = true")
    driver.execute(f"GRANT SELECT ON KEYSPACE {settings.keyspace} TO {name}")
    refused = await open_store(replace(settings, username=name, password="p", timeout_seconds=0.5))
    driver.execute(f"ALTER ROLE {name} WITH PASSWORD = 'other'")
    await asyncio.sleep(2.1)  # for as long passwords are remembered
    for pool in kept(refused, HostConnection):
        for connection in pool.get_connections():
            connection.defunct(ConnectionException("the network"))
    with pytest.raises(StoreUnavailableError, match=r"tried again"):
        await refused.list_parts(name)
    await asyncio.sleep(0.5)
    driver.execute(f"ALTER ROLE {name} WITH PASSWORD = 'p'")
    async with asyncio.timeout(patience(20)):
        assert await until_available(lambda: refused.list_parts(name)) == []


async def test_what_cassandra_refuses_of_an_open_store_is_tried_again(
    settings: CassandraSettings, driver: Any, name: str, open_store: OpenStore
) -> None:
    """A node that has just joined refuses because it has no tables yet.

    Regression: intervals were given up for that.
    """
    store = await open_store(replace(settings, keyspace=name, timeout_seconds=0.5))
    driver.execute(f"DROP TABLE {name}.parts")
    with pytest.raises(StoreUnavailableError, match=r"does not know the tables.*tried again"):
        await store.list_parts(name)


async def test_what_waited_past_its_deadline_is_not_sent_any_more(
    settings: CassandraSettings, store: CassandraStore, name: str, open_store: OpenStore
) -> None:
    """Only one request runs at a time. The first is in a suspended node, and the second waits until its deadline."""
    (node,) = cassandra().nodes
    slow = await open_store(replace(settings, timeout_seconds=0.5, concurrent_writes=1))
    node.pause()
    try:
        results = await asyncio.gather(
            slow.write_states(IncarnationId(name), name, 1, [StateRow(b"first", 1, b"sent")]),
            slow.write_states(IncarnationId(name), name, 1, [StateRow(b"second", 1, b"waits")]),
            return_exceptions=True,
        )
    finally:
        node.resume()
    assert [type(result) for result in results] == [StoreUnavailableError] * 2
    assert "not sent" in str(results[1])
    await until(lambda: store.read_states(IncarnationId(name), [b"first"]), holds=lambda rows: rows != [None])
    await store.write_states(IncarnationId(name), name, 1, [StateRow(b"third", 1, b"sent behind them")])
    assert await store.read_states(IncarnationId(name), [b"second"]) == [None]


@pytest.mark.guarantee("G13")
async def test_a_flush_that_takes_longer_than_a_deadline_gets_through(
    settings: CassandraSettings, store: CassandraStore, name: str, open_store: OpenStore
) -> None:
    """Regression: what waited past the deadline was not sent.

    The repetition started from the beginning and came no further.
    """
    rows = [StateRow(b"key %d" % number, 1, b"value") for number in range(10_000)]
    single = await open_store(replace(settings, concurrent_writes=1))
    began = time.monotonic()
    await single.write_states(IncarnationId(f"{name}_timed"), name, 1, rows)
    third = (time.monotonic() - began) / 3
    slow = await open_store(replace(settings, timeout_seconds=third, concurrent_writes=1))
    async with asyncio.timeout(patience(30)):
        await until_available(lambda: slow.write_states(IncarnationId(name), name, 1, rows))
    assert await store.read_states(IncarnationId(name), [rows[0].key, rows[-1].key]) == [rows[0], rows[-1]]


async def test_closing_fails_what_is_outstanding(settings: CassandraSettings, name: str, open_store: OpenStore) -> None:
    store = await open_store(settings)
    await store.create_journal(name)
    await closing_fails(store, store.fence(name, 1))


async def closing_fails(store: CassandraStore, request: Coroutine[Any, Any, object]) -> None:
    """Close a store while its paused node owes it the answer to a request: the request fails at once."""
    (node,) = cassandra().nodes
    node.pause()
    try:
        outstanding = asyncio.create_task(request)
        await asyncio.sleep(0.2)
        async with asyncio.timeout(patience(5)):
            await store.close()
            with pytest.raises(StoreUnavailableError, match="closed"):
                await outstanding
    finally:
        node.resume()
