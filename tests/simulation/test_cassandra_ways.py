"""The product's Cassandra store on a simulated cluster: what a cluster does to requests whose outcome is not known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millwheel.model.envelope import DEFLATED_FORMAT, wrap_deflated
from millwheel.model.incarnation import IncarnationId
from millwheel.store.contract import Append, JournalHead, PartId, SequencerRefusedError, StateRow, StoreUnavailableError
from simulation.clocks import replaced
from simulation.forking import apart
from simulation.loop import SimulatedLoop
from simulation.process import Process
from simulation.seed_plan import plan_for
from simulation.world import World

Play = Callable[[World], Awaitable[Any]]


def played(directory: Path, store: str, ways: dict[str, Any], play: Play) -> Any:
    """What ``play`` returns. It runs as process w0 of a world whose store has these ways."""

    def run() -> Any:
        loop = SimulatedLoop(Random(1))
        asyncio.set_event_loop(loop)
        plan = plan_for(1)
        plan.store, plan.store_ways = store, ways
        world = World(plan, loop, directory)
        found: list[Any] = []

        async def main(world: World, process: Process) -> None:
            found.append(await play(world))

        with replaced(loop, 1), world.store.patched():
            world.start("w0", main)
            while not found and not world.violations:
                loop.run_until_complete(asyncio.sleep(0.5))
        return world.violations or found[0]

    (found,) = apart([("a play on a store", run)])
    return found


BASE, LARGE = PartId("base", 1, 1), PartId("entry/2", 1, 2)


@pytest.mark.guarantee("G2", section="6.1.2")
def test_an_unanswered_part_list_is_replaced_by_the_next(tmp_path: Path) -> None:
    """The store leaves an unchanged part list out of an append, so it must know which one is stored."""

    async def play(world: World) -> JournalHead:
        store = world.store.open()
        await store.create_journal("j")
        await store.fence("j", 1)
        await store.append("j", Append(1, 1, 0, (BASE,), b"a"))
        world.network.cut("store", "w0")
        large = Append(1, 2, 0, (BASE, LARGE), b"b")
        with pytest.raises(StoreUnavailableError):
            await store.append("j", large)
        world.network.heal()
        with pytest.raises(SequencerRefusedError, match="sequencer 1 at commit 2"):
            await store.append("j", large)
        await store.append("j", Append(1, 3, 2, (BASE,), b"c"))
        return await store.read_head("j")

    assert played(tmp_path, "cassandra", {}, play) == JournalHead(1, 3, 2, (BASE,))


@pytest.mark.guarantee("G2", section="6.2")
def test_the_next_owner_settles_an_append_left_unfinished(tmp_path: Path) -> None:
    """The next owner's fence decides about the append. After that all reads agree."""

    async def play(world: World) -> list[tuple[int, int]]:
        store: Any = world.store
        heads = []
        for number in range(20):
            journal, owner, heir = f"j{number}", store.open(), store.open()
            owner.who = "w0.1"
            await owner.create_journal(journal)
            await owner.fence(journal, 1)
            world.network.cut("store", "w0")
            store.ways["unfinished"] = 1.0  # the way that is tested is rare
            try:
                await owner.append(journal, Append(1, 1, 0, (), b"a"))
            except StoreUnavailableError:
                store.calm()
            world.network.heal()
            head = await heir.fence(journal, 2)
            assert await heir.read_entries(journal, 1, head.commit) == [b"a"] * head.commit
            heads.append((head.commit, (await heir.read_head(journal)).commit))
        return heads

    heads = played(tmp_path, "cassandra", {}, play)
    assert set(heads) == {(0, 0), (1, 1)}


@pytest.mark.guarantee("G3", section="6.2")
def test_the_later_commits_row_stands_for_any_clocks(tmp_path: Path) -> None:
    """The first writer's clock is ahead of the second's, and its write is repeated last."""

    async def play(world: World) -> StateRow | None:
        clock, rows = world.processes["w0"].clock, [StateRow(b"k", commit, b"%d" % commit) for commit in (1, 2)]
        owner, heir = world.store.open(), world.store.open()
        clock.offset = 30.0
        await owner.write_states(IncarnationId("c"), "j", 1, rows[:1])
        clock.offset = 0.0
        await heir.write_states(IncarnationId("c"), "j", 2, rows[1:])
        clock.offset = 30.0
        await owner.write_states(IncarnationId("c"), "j", 1, rows[:1])
        (row,) = await heir.read_states(IncarnationId("c"), [b"k"])
        return row

    assert played(tmp_path, "cassandra", {}, play) == StateRow(b"k", 2, b"2")


@pytest.mark.guarantee("G12", section="6.2")
def test_deflated_entries_are_read_by_the_next_owner(tmp_path: Path) -> None:
    """The checkers' view of the cluster has them, too."""
    entry = b"abcdefgh" * 100

    async def play(world: World) -> tuple[list[bytes], dict[int, bytes]]:
        assert wrap_deflated(entry)[0] == DEFLATED_FORMAT, "by the plan's bound, which is below that of the product"
        store: Any = world.store
        owner, heir = store.open(), store.open()
        await owner.create_journal("j")
        await owner.fence("j", 1)
        for commit in (1, 2):
            await owner.append("j", Append(1, commit, 0, (), entry, deflate=True))
        head = await heir.fence("j", 2)
        return await heir.read_entries("j", 1, head.commit), store.inner.journals["j"].entries

    read, seen = played(tmp_path, "cassandra", {"deflate": 1, "piece": 64}, play)
    assert (read, seen) == ([entry, entry], {1: entry, 2: entry})
