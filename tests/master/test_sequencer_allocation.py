"""A coordinator is restored from a snapshot, while the store keeps later data (G3, 6.2)."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from functools import partial
from itertools import pairwise

import pytest

from millwheel.coordination.contract import Put
from millwheel.coordination.sequencers import draw_sequencer
from millwheel.master.messages import OpenInjector, SnapshotLoaded, SubmitTopology
from millwheel.model.catalog_keys import SEQUENCER
from millwheel.store.contract import JournalHead, StoreUnavailableError
from millwheel.store.memory import MemoryStore
from millwheel.store.sequencer_allocation import SequencerBlock, reserve_sequencers
from tests.coordination.memory import MemoryCoordinator
from tests.master.harness import Cluster, Master, topology


class Interrupting(MemoryStore):
    """Between the read of the head and the fence, another process reserves. The answer of one fence is lost."""

    rivals = 0
    lost = 0

    async def fence(self, journal: str, sequencer: int) -> JournalHead:
        if self.rivals:
            self.rivals -= 1
            await reserve_sequencers(self, 0)
        head = await super().fence(journal, sequencer)
        if self.lost:
            self.lost -= 1
            raise StoreUnavailableError("no answer")
        return head


class Slow(MemoryStore):
    """Each call lets other tasks run first."""

    async def read_head(self, journal: str) -> JournalHead:
        await asyncio.sleep(0)
        return await super().read_head(journal)

    async def fence(self, journal: str, sequencer: int) -> JournalHead:
        await asyncio.sleep(0)
        return await super().fence(journal, sequencer)


async def restored(value: int | None) -> MemoryCoordinator:
    """A coordinator from a snapshot whose counter is ``value``."""
    coordinator = MemoryCoordinator()
    if value is not None:
        await coordinator.transact((), [Put(SEQUENCER, str(value).encode())])
    return coordinator


@pytest.mark.guarantee("G3", section="6.2")
async def test_a_restored_coordinator_draws_no_earlier_sequencer_again() -> None:
    store = MemoryStore()
    reserve = partial(reserve_sequencers, store)
    before = MemoryCoordinator()
    drawn = [await draw_sequencer(before, reserve) for _ in range(5)]
    assert drawn == sorted(set(drawn))
    await before.close()
    remembered = (await store.read_head("cluster.drawn")).sequencer
    for value in (None, 0, drawn[0], drawn[3], drawn[4] - 1, remembered - 1, remembered, remembered + 5):
        after = await restored(value)
        number = await draw_sequencer(after, reserve)
        assert number > max(drawn), f"the counter was restored to {value}"
        assert int((await after.get(SEQUENCER)).value) == number  # type: ignore[union-attr]
        drawn.append(number)
        await after.close()


async def test_concurrent_draws_differ() -> None:
    store, coordinator = Slow(), MemoryCoordinator()
    reserve = partial(reserve_sequencers, store)
    drawn = await asyncio.gather(*(draw_sequencer(coordinator, reserve) for _ in range(20)))
    assert len(set(drawn)) == 20
    await coordinator.close()


async def test_blocks_have_no_number_in_common() -> None:
    store = Interrupting()
    blocks = [await reserve_sequencers(store, 0)]
    store.rivals = 3
    blocks.append(await reserve_sequencers(store, 0))
    store.lost = 1
    with pytest.raises(StoreUnavailableError):
        await reserve_sequencers(store, 0)
    blocks.append(await reserve_sequencers(store, blocks[-1].last + 250_007))
    blocks.append(await reserve_sequencers(store, 0))
    for former, later in pairwise(blocks):
        assert former.first <= former.last < later.first <= later.last
    assert (await store.read_head("cluster.drawn")).sequencer == blocks[-1].last


async def test_a_fence_of_a_former_version_is_an_exact_bound() -> None:
    """The former version stored the last drawn number, not the end of a block."""
    store = MemoryStore()
    await store.create_journal("cluster.drawn")
    await store.fence("cluster.drawn", 7)
    assert await reserve_sequencers(store, 9) == SequencerBlock(10, 100_000)


@pytest.mark.guarantee("G3", section="6.2")
def test_a_master_draws_no_number_of_before_a_restore() -> None:
    """The snapshot is from just before the last draws of the former master."""
    cluster = Cluster()
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r"))
    snapshot = deepcopy(cluster.state)
    drawn = master.call(OpenInjector("zeitgeist/queries", "p")).sequencer
    cluster.state = snapshot
    again = Master(cluster, "m2").call(OpenInjector("zeitgeist/queries", "p")).sequencer
    assert again > drawn


@pytest.mark.guarantee("G3", section="6.2")
def test_a_master_paused_during_a_restore_repeats_no_number() -> None:
    """The paused master continues in the block that it reserved. It does not repeat its own numbers either."""
    cluster = Cluster()
    paused = Master(cluster, "paused")
    paused.call(SubmitTopology(topology(), "r"))
    drawn = {paused.call(OpenInjector("zeitgeist/queries", "p")).sequencer}
    snapshot = deepcopy(cluster.state)
    drawn.add(paused.call(OpenInjector("zeitgeist/queries", "q")).sequencer)
    lost = cluster.state.revision
    drawn.add(Master(cluster, "other").call(OpenInjector("zeitgeist/queries", "r")).sequencer)
    cluster.state = snapshot
    while cluster.state.revision <= lost:  # a restore raises the revision, and keeps when each value was changed
        cluster.transact((), (Put("filler", b""),))
    paused.seen = cluster.state.revision
    paused.handle(SnapshotLoaded(cluster.state.list("")))
    again = paused.call(OpenInjector("zeitgeist/queries", "s")).sequencer
    assert again not in drawn


async def test_a_master_draws_nothing_while_the_store_reserves_nothing() -> None:
    cluster = Cluster()
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r"))
    count = cluster.catalog().drawn
    successor = Master(cluster, "m2")
    ticket = successor.ask(OpenInjector("zeitgeist/queries", "p"))
    assert ticket not in successor.answers
    assert cluster.catalog().drawn == count
    successor.run()
    assert successor.answers[ticket].sequencer > count  # type: ignore[union-attr]
