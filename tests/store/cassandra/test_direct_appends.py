"""Appends on connections of their own, on a real node: the driver sends what they cannot, and outcomes are settled."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.contract import Append, JournalHead, PartId, SequencerRefusedError, StoreUnavailableError
from tests.patience import patience
from tests.relay import CuttingProxy
from tests.store.cassandra.conftest import OpenStore
from tests.store.cassandra.test_outages import append_for_certain, closing_fails


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "driver"])
async def test_a_setting_says_which_way_appends_go(
    settings: CassandraSettings, name: str, open_store: OpenStore, by_driver: list[object], direct: bool
) -> None:
    store = await open_store(replace(settings, direct_appends=direct))
    await store.create_journal(name)
    await store.fence(name, 5)
    part = PartId("base", 5, 0)
    await store.append(name, Append(5, 1, 0, (part,), b"with parts"))
    await store.append(name, Append(5, 2, 1, (part,), b"x" * 300_000))
    with pytest.raises(SequencerRefusedError, match="held by sequencer 5 at commit 2"):
        await store.append(name, Append(4, 3, 1, (part,), b"an older owner's"))
    assert await store.read_head(name) == JournalHead(5, 2, 1, (part,))
    assert await store.read_entries(name, 1, 2) == [b"with parts", b"x" * 300_000]
    assert len(by_driver) == (0 if direct else 3)


@pytest.mark.guarantee("G2")
async def test_many_journals_append_at_once(store: CassandraStore, name: str, by_driver: list[object]) -> None:
    """Regression: the next request took the number of an answered one, whose caller then gave the new one up."""

    async def own(journal: str) -> None:
        await store.create_journal(journal)
        await store.fence(journal, 1)
        for commit in range(1, 11):
            await store.append(journal, Append(1, commit, 0, (), b"%s %d" % (journal.encode(), commit)))

    journals = [f"{name}.{number}" for number in range(24)]
    async with asyncio.timeout(patience(15)):
        await asyncio.gather(*(own(journal) for journal in journals))
    for journal in journals:
        assert await store.read_entries(journal, 1, 10) == [b"%s %d" % (journal.encode(), n) for n in range(1, 11)]
    assert by_driver == []


async def test_a_changed_table_is_prepared_for_once_more(
    settings: CassandraSettings, driver: Any, name: str, open_store: OpenStore, by_driver: list[object]
) -> None:
    store = await open_store(replace(settings, keyspace=name, timeout_seconds=2.0))
    await store.create_journal(name)
    await store.fence(name, 1)
    await store.append(name, Append(1, 1, 0, (), b"before"))
    driver.execute(f"ALTER TABLE {name}.journals ADD later text")
    await store.append(name, Append(1, 2, 0, (), b"behind"))
    assert await store.read_entries(name, 1, 2) == [b"before", b"behind"]
    driver.execute(f"DROP TABLE {name}.journals")
    with pytest.raises(StoreUnavailableError, match=r"does not know the tables.*tried again"):
        await store.append(name, Append(1, 3, 0, (), b"nowhere"))
    assert by_driver == []


@pytest.mark.guarantee("G2", "G3")
async def test_an_append_without_an_answer_is_settled_by_repeating(
    settings: CassandraSettings, store: CassandraStore, name: str, open_store: OpenStore, by_driver: list[object]
) -> None:
    await store.create_journal(name)
    await store.fence(name, 1)
    async with CuttingProxy(settings.contact_points[0]) as proxy:
        owner = await open_store(replace(settings, contact_points=(proxy.address,), timeout_seconds=0.5))
        proxy.is_deaf = True
        with pytest.raises(StoreUnavailableError, match=r"did not answer in time.*tried again"):
            await owner.append(name, Append(1, 1, 0, (), b"entry"))
        proxy.is_deaf = False
        proxy.close_connections()
        async with asyncio.timeout(patience(20)):
            await append_for_certain(owner, name, Append(1, 1, 0, (), b"entry"), after_unknown=True)
            commits = 1
            while True:  # until a connection of its own is there again
                commits += 1
                before = len(by_driver)
                await append_for_certain(owner, name, Append(1, commits, 0, (), b"entry"))
                if len(by_driver) == before:
                    break
        assert await store.read_head(name) == JournalHead(1, commits, 0, ())
        assert await store.read_entries(name, 1, commits) == [b"entry"] * commits


async def test_closing_fails_the_appends_in_flight(
    settings: CassandraSettings, name: str, open_store: OpenStore
) -> None:
    store = await open_store(settings)
    await store.create_journal(name)
    await store.fence(name, 1)
    await closing_fails(store, store.append(name, Append(1, 1, 0, (), b"entry")))
