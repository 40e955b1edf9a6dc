"""The consistent cut: what makes it fail, and that owners always go on (6.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import pytest

from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.cut import CutFailedError, Positions, take_cut
from millwheel.snapshots.owners import MixedOwners, WorkerOwners
from millwheel.store.contract import Append
from millwheel.store.memory import MemoryStore

OWNER = 5


def position(journal: str, commit: int, held: bool = True, settled: bool = True) -> wire.JournalPosition:
    return wire.JournalPosition(journal=journal, sequencer=OWNER, held=held, settled=settled, commit=commit)


@dataclass
class Scripted:
    """Owners whose answers a test gives."""

    frozen: Positions
    thawed: Positions
    sequencers: Mapping[str, int] = field(default_factory=lambda: {"a": OWNER, "b": OWNER})
    between: Callable[[], object] | None = None
    thaws: int = 0

    async def freeze(self) -> Positions:
        if isinstance(self.frozen, Exception):
            raise self.frozen
        return self.frozen

    async def thaw(self) -> Positions:
        self.thaws += 1
        return self.thawed


async def store_with(commits: Mapping[str, int], sequencers: Mapping[str, int] | None = None) -> MemoryStore:
    store = MemoryStore()
    for journal, commit in commits.items():
        await store.create_journal(journal)
        await store.fence(journal, OWNER)
        for number in range(1, commit + 1):
            await store.append(journal, Append(OWNER, number, 0, (), b"entry"))
    for journal, sequencer in (sequencers or {}).items():
        await store.fence(journal, sequencer)
    return store


STILL = {"a": position("a", 3), "b": position("b", 7)}


async def test_journals_that_stood_still_are_a_cut() -> None:
    store = await store_with({"a": 4, "b": 7})
    cut = await take_cut(Scripted(STILL, STILL), store)
    assert cut.commits == {"a": 3, "b": 7}, "an owner may commit again before its head is read"
    assert cut.heads["a"].commit == 4


@pytest.mark.guarantee("G3", section="6.2")
async def test_a_deposed_owner_that_answers_makes_no_cut() -> None:
    """It stands still, and its successor has committed more, which other owners may have seen."""
    store = await store_with({"a": 3, "b": 7}, {"a": OWNER + 1})
    with pytest.raises(CutFailedError, match="journal a has a newer owner"):
        await take_cut(Scripted(STILL, STILL), store)


@pytest.mark.parametrize(
    ("frozen", "thawed"),
    [
        ({"a": STILL["a"]}, STILL),
        (STILL | {"b": position("b", 7, held=False)}, STILL),
        (STILL | {"b": position("b", 7, settled=False)}, STILL),
        (STILL, {"a": STILL["a"]}),
        (STILL, STILL | {"b": position("b", 7, held=False)}),
        (STILL, STILL | {"b": position("b", 7, settled=False)}),
        (STILL, STILL | {"b": position("b", 8)}),
    ],
    ids=["no answer", "not held", "in flight", "no second answer", "went on", "sealed", "committed"],
)
async def test_an_owner_that_did_not_stand_still_fails_it(frozen: Positions, thawed: Positions) -> None:
    owners = Scripted(frozen, thawed)
    with pytest.raises(CutFailedError):
        await take_cut(owners, await store_with({"a": 3, "b": 7}))
    assert owners.thaws == 1, "all owners go on"


async def test_owners_go_on_when_the_master_is_interrupted() -> None:
    owners = Scripted(STILL, STILL)

    async def fails() -> Positions:
        raise RuntimeError("the call was cancelled")

    owners.freeze = fails  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        await take_cut(owners, await store_with({}))
    assert owners.thaws == 1


def no_channel(address: str) -> NoReturn:
    raise AssertionError(f"nothing is asked of {address}")


class Interrupted(MixedOwners):
    """Something happens while all should stand still."""

    async def thaw(self) -> Positions:
        await self.happens()
        return await super().thaw()

    async def happens(self) -> None:
        """Nothing."""


@pytest.mark.guarantee("G3", section="6.2")
async def test_a_released_owner_that_still_appends_makes_no_cut() -> None:
    """A paused topology has no owners. Its former ones may not know it yet."""
    store = await store_with({"a": 3, "b": 7})
    heads = {journal: await store.read_head(journal) for journal in ("a", "b")}
    owners = Interrupted(WorkerOwners(no_channel, []), store, heads)
    assert (await take_cut(owners, store)).commits == {"a": 3, "b": 7}

    async def append() -> None:
        await store.append("b", Append(OWNER, 8, 0, (), b"entry"))

    owners.happens = append  # type: ignore[method-assign]
    with pytest.raises(CutFailedError, match="journal b went on too early"):
        await take_cut(owners, store)

    async def take_over() -> None:
        await store.fence("a", OWNER + 1)

    owners.happens = take_over  # type: ignore[method-assign]
    with pytest.raises(CutFailedError, match="journal a has a newer owner"):
        await take_cut(owners, store)
