"""Following the coordinator and the authority: through errors, and for intervals that open later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from millwheel.coordination.contract import PrefixSnapshot, Put
from millwheel.model.backoff import Backoff
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import LEADERSHIP, SEQUENCER, worker_key
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.worker.messages import GroupWatermarks
from millwheel.worker.process.follower import follow
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.run_queue import RunQueue
from millwheel.worker.process.watermarks import GroupWatch
from tests.coordination.memory import MemoryCoordinator
from tests.faulty_store import FaultyStore
from tests.patience import patience, until
from tests.worker.doubles import ScriptedCore, ScriptedPeers


class Here:
    """An interval that runs here."""

    def __init__(self, core: ScriptedCore, *groups: str) -> None:
        self.groups = frozenset(groups)
        queue = RunQueue(asyncio.get_running_loop()).share("t")
        self.host = CoreHost("c.1.j1", core, FaultyStore(), ScriptedPeers(), queue)


@pytest.mark.guarantee("G8")
async def test_an_error_does_not_end_the_following_of_the_catalog(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: the error ended the task without a report. The worker never received an assignment again."""
    monkeypatch.setattr("millwheel.worker.process.follower.BACKOFF", Backoff(0.01, 0.01))

    class Odd(MemoryCoordinator):
        errors = 1

        async def list(self, prefix: str) -> PrefixSnapshot:
            if self.errors:
                self.errors -= 1
                raise RuntimeError("odd")
            return await super().list(prefix)

    coordinator, known = Odd(), Catalog()
    await coordinator.transact((), [Put(worker_key("w1"), catalog.WorkerRecord().SerializeToString())])
    changes = follow(coordinator, known)
    async with asyncio.timeout(patience(5)):
        await anext(changes)
    assert known.registration("w1") > 0
    assert "odd" in caplog.text
    await changes.aclose()  # type: ignore[attr-defined]
    await coordinator.close()


async def test_masters_elections_do_not_concern_a_worker() -> None:
    coordinator, known = MemoryCoordinator(), Catalog()
    changes = follow(coordinator, known)
    await anext(changes)
    following = asyncio.ensure_future(anext(changes))
    elected = await coordinator.transact((), [Put(LEADERSHIP, b"m1"), Put(SEQUENCER, b"7")])
    assert elected
    await until(lambda: known.drawn == 7)
    for _turn in range(20):
        await asyncio.sleep(0)
    assert not following.done()
    registered = catalog.WorkerRecord().SerializeToString()
    await coordinator.transact((), [Put(worker_key("w1"), registered), Put(SEQUENCER, b"8")])
    async with asyncio.timeout(patience(5)):
        await following
    assert known.registration("w1") > 0
    await changes.aclose()  # type: ignore[attr-defined]
    await coordinator.close()


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_a_late_follower_gets_the_sequencers_behind_its_values() -> None:
    """Regression: the late follower got the values only.

    It could not tell records of a former owner from its successor's.
    """
    left, right = ALL_KEYS.split(b"m")
    updates: asyncio.Queue[GroupWatermarks] = asyncio.Queue()
    core = ScriptedCore()

    async def watch(senders: Iterable[str]) -> AsyncIterator[GroupWatermarks]:
        while True:
            yield await updates.get()

    sent = [
        GroupWatermarks({"weak.1": 5, "gone.1": 3}, {"weak.1": [(left, 1), (right, 2)], "gone.1": [(ALL_KEYS, 1)]}),
        GroupWatermarks({"weak.1": 9}, {"weak.1": [(left, 4)]}),
        GroupWatermarks({"weak.1": 9}),
    ]
    following = GroupWatch(watch, {"c.1.j1": Here(core, "weak.1")})
    following.follow(frozenset({"weak.1", "gone.1"}))
    for update in sent:
        updates.put_nowait(update)
    await until(lambda: len(core.of(GroupWatermarks)) == len(sent))
    following.follow(frozenset({"weak.1"}))
    known = following.known(frozenset({"weak.1"}))
    assert known.values == {"weak.1": 9}
    assert {name: dict(members) for name, members in known.sequencers.items()} == {"weak.1": {left: 4, right: 2}}
    await following.close()


async def test_an_interval_receives_watermarks_of_its_senders_only() -> None:
    updates: asyncio.Queue[GroupWatermarks] = asyncio.Queue()
    first, second = ScriptedCore(), ScriptedCore()

    async def watch(senders: Iterable[str]) -> AsyncIterator[GroupWatermarks]:
        while True:
            yield await updates.get()

    following = GroupWatch(watch, {"c.1.j1": Here(first, "a.1", "b.1"), "c.2.j1": Here(second, "b.1")})
    following.follow(frozenset({"a.1", "b.1"}))
    both = GroupWatermarks({"a.1": 7, "b.1": 8}, {"a.1": [(ALL_KEYS, 1)], "b.1": [(ALL_KEYS, 2)]})
    sent = [GroupWatermarks({"a.1": 5}), GroupWatermarks({"b.1": 6}), both]
    for update in sent:
        updates.put_nowait(update)
    mine = GroupWatermarks({"b.1": 8}, {"b.1": [(ALL_KEYS, 2)]})
    await until(lambda: len(second.events) == 2)
    assert first.events == sent
    assert second.events == [sent[1], mine]
    assert following.known(frozenset({"b.1"})) == mine
    await following.close()


@pytest.mark.guarantee("G7", section="5.2")
async def test_a_former_incarnations_injectors_do_not_affect_the_next() -> None:
    """The catalog jumps over a cancellation and a new submission.

    Regression: the end of the same sender's former life was kept.
    """
    updates: asyncio.Queue[GroupWatermarks] = asyncio.Queue()
    core = ScriptedCore()

    async def watch(senders: Iterable[str]) -> AsyncIterator[GroupWatermarks]:
        while True:
            yield await updates.get()

    following = GroupWatch(watch, {"c.1.j1": Here(core, "count.1")})
    senders = frozenset({"injector/s", "count.1"})
    first, second = {"injector/s": (("t", 5),)}, {"injector/s": (("t", 9),)}
    following.follow(senders, first)
    values = {"injector/s": MAX_TIMESTAMP, "count.1": 7}
    updates.put_nowait(GroupWatermarks(values, {"injector/s": [("p", 3)], "count.1": [(ALL_KEYS, 4)]}))
    await until(lambda: core.of(GroupWatermarks))
    following.follow(senders, dict(first))
    assert following.known(senders).values == {"injector/s": MAX_TIMESTAMP, "count.1": 7}
    following.follow(senders, second)
    assert following.known(senders).values == {"count.1": 7}
    await following.close()
