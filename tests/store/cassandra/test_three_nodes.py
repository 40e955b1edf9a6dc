"""Three nodes, three replicas: an owner notices only a pause if any one node fails at any moment."""

from __future__ import annotations

import asyncio
from functools import partial
from operator import eq

import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.store.cassandra import CassandraStore
from millwheel.store.contract import Append, JournalHead, SequencerRefusedError, StateRow, StoreUnavailableError
from tests.components import cassandra_settings, three_cassandra_nodes
from tests.patience import until
from tests.store.cassandra.test_outages import append_for_certain

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.mark.guarantee("G2", "G3")
async def test_an_owner_goes_on_while_one_node_then_another_is_killed(name: str, by_driver: list[object]) -> None:
    cluster = three_cassandra_nodes()
    for node in cluster.nodes:
        await asyncio.to_thread(node.start)
    store = await _open()
    await store.create_journal(name)
    await store.fence(name, 5)
    commits = 0
    done = asyncio.Event()

    async def own() -> None:
        nonlocal commits
        while not done.is_set():
            await append_for_certain(store, name, Append(5, commits + 1, 0, (), b"entry %d" % (commits + 1)))
            commits += 1
            await _until_certain_write(
                store, IncarnationId(name), StateRow(b"key %d" % (commits % 100), commits, b"%d" % commits)
            )

    async def some_go_directly() -> bool:
        """Whether the next ten appends are all sent on connections of their own."""
        before, sent = commits, len(by_driver)
        await until(lambda: commits >= before + 10)
        return len(by_driver) == sent

    owner = asyncio.create_task(own())
    await until(some_go_directly)
    for node in cluster.nodes[:2]:
        node.kill()
        await asyncio.sleep(5.0)
        # Two of three replicas are enough.
        await until(some_go_directly)
        assert sorted(store.node_outages()) == sorted(one.address for one in cluster.nodes)
        # An outage begins when it is first seen, so its first length is 0.
        await until(lambda: _down(store), holds=partial(eq, [node.address]))
        await asyncio.to_thread(node.start)
        await until(lambda: not any(store.node_outages().values()))
        await asyncio.sleep(2.0)
    done.set()
    await owner
    assert await store.read_head(name) == JournalHead(5, commits, 0, ())
    assert await store.read_entries(name, 1, commits) == [b"entry %d" % commit for commit in range(1, commits + 1)]
    newest = {b"key %d" % (commit % 100): commit for commit in range(1, commits + 1)}
    found = await store.read_states(IncarnationId(name), list(newest))
    assert [row and row.commit for row in found] == list(newest.values())
    successor = await _open()
    assert (await successor.fence(name, 6)).commit == commits
    with pytest.raises(SequencerRefusedError):
        await store.append(name, Append(5, commits + 1, 0, (), b"zombie"))
    await store.close()
    await successor.close()


async def test_without_a_majority_nothing_is_acknowledged(name: str) -> None:
    cluster = three_cassandra_nodes()
    store = await _open()
    await store.create_journal(name)
    await store.fence(name, 5)
    cluster.nodes[1].kill()
    cluster.nodes[2].kill()
    try:
        with pytest.raises(StoreUnavailableError, match="tried again"):
            await store.append(name, Append(5, 1, 0, (), b"entry"))
    finally:
        await asyncio.to_thread(cluster.nodes[1].start)
        await asyncio.to_thread(cluster.nodes[2].start)
    await append_for_certain(store, name, Append(5, 1, 0, (), b"entry"), after_unknown=True)
    assert await store.read_entries(name, 1, 1) == [b"entry"]
    await store.close()


async def _open() -> CassandraStore:
    while True:
        try:
            return await CassandraStore.open(cassandra_settings(three_cassandra_nodes(), "three"))
        except StoreUnavailableError:
            await asyncio.sleep(0.2)


def _down(store: CassandraStore) -> list[str]:
    return [one for one, seconds in store.node_outages().items() if seconds]


async def _until_certain_write(store: CassandraStore, incarnation: IncarnationId, row: StateRow) -> None:
    while True:
        try:
            return await store.write_states(incarnation, incarnation, 5, [row])
        except StoreUnavailableError:
            await asyncio.sleep(0.1)
