"""What leaves a process is on the disk, though its intervals have their results before the sync (decision 1)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast
from unittest.mock import patch

import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.rpc.v1.watermark_pb2 import HOLD_KIND_INPUT
from millwheel.store import layout
from millwheel.store.contract import Append, StoreUnavailableError
from millwheel.store.embedded import EmbeddedStore
from millwheel.store.writer import StoreThread
from millwheel.worker.messages import (
    AnswerDelivery,
    Appended,
    AppendEntry,
    AsyncHook,
    Delivery,
    Report,
    SendDelivery,
)
from millwheel.worker.process.destinations import HostChannel
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.run_queue import RunQueue
from simulation.rocks import Change, SimulatedBatch, SimulatedRocks
from tests.patience import until
from tests.worker.doubles import ScriptedPeers, delivery

ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
INCARNATION = IncarnationId("c.1")
CHAIN = ("first", "second", "third")


class Disk(SimulatedRocks):
    """A disk that counts syncs. They may take time, and fail. ``loses``: a failed sync drops what was not synced."""

    def __init__(self) -> None:
        super().__init__()
        self.takes = 0.0
        self.syncs = self.fails = 0
        self.loses = False
        self.kept: set[bytes] = set()
        """The keys that survive a loss of power."""
        self.on_disk = self._note

    def _note(self, changes: Sequence[Change]) -> None:
        self.kept.update(key for _, key, _, _ in changes)

    def sync(self) -> None:
        time.sleep(self.takes)
        if self.fails:
            self.fails -= 1
            raise StoreUnavailableError("the sync has failed")
        self.syncs += 1
        super().sync()

    def recover(self) -> bool:
        if self.loses:
            self.log.clear()
            self.maps = {family: dict(kept) for family, kept in self._disk.items()}
        return True


class ChainCore:
    """Commits each delivery alone, then ACKs it, passes it on, and has effects that leave the process."""

    def __init__(self, journal: str, following: str | None, leaves: Callable[[str, int], None]) -> None:
        self.journal, self.following, self.leaves = journal, following, leaves
        self.commit = 0
        self.waiting: list[Delivery] = []
        self.in_flight: Delivery | None = None
        self.hooks: list[int] = []

    def step(self, event: Any, now: int) -> Sequence[Any]:
        out: list[Any] = []
        if type(event) is Delivery:
            self.waiting.append(event)
        elif type(event) is Appended and self.in_flight is not None:
            done, self.in_flight = self.in_flight, None
            out.append(AnswerDelivery(done, ACKED, ()))
            if self.following:
                out.append(SendDelivery(delivery(self.commit, journal=self.following)))
            out.append(Report(INCARNATION, ALL_KEYS, 1, self.commit, self.commit, HOLD_KIND_INPUT, self.journal))
            out.append(AsyncHook(self.commit, self._hook(self.commit)))
        if self.waiting and self.in_flight is None:
            self.in_flight = self.waiting.pop(0)
            self.commit += 1
            append = Append(1, self.commit, 0, (), b"entry", True)
            out.append(AppendEntry(self.journal, append))
        return out

    async def _hook(self, commit: int) -> None:
        self.leaves(self.journal, commit)
        self.hooks.append(commit)

    def next_deadline(self) -> int | None:
        return None


class Outside:
    """The channel of a sender in another process. Its batches have the numbers of the commits."""

    def __init__(self, leaves: Callable[[str, int], None]) -> None:
        self._leaves = leaves

    def reply(self, token: int, outcome: DeliveryOutcome.ValueType, indexes: Sequence[int], message: str) -> None:
        self._leaves("first", token)


class Chain:
    """Three owners in one process. Each passes to the next one what it has committed."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.left: list[tuple[str, int]] = []
        self.early: list[tuple[str, int]] = []
        """What left before it was on the disk."""
        self.ended: list[str] = []
        """Why the process would have ended."""
        self.thread = StoreThread(cast("Any", disk))
        self.store = EmbeddedStore(cast("Any", disk), self.thread, self.thread.close, self.ended.append)
        self.cores = {
            one: ChainCore(one, then, self._leaves) for one, then in zip(CHAIN, (*CHAIN[1:], None), strict=True)
        }
        self.hosts: dict[str, CoreHost] = {}

    async def open(self) -> None:
        share = RunQueue(asyncio.get_running_loop()).share("t")
        peers = ScriptedPeers()
        peers.send = self._send  # type: ignore[method-assign]
        peers.report = lambda report: self._leaves(report.subject, report.output)  # type: ignore[method-assign]
        for one, core in self.cores.items():
            await self.store.create_journal(one)
            await self.store.fence(one, 1)
            self.hosts[one] = CoreHost(one, cast("Any", core), self.store, peers, share)
        self.disk.syncs = 0

    def _leaves(self, journal: str, commit: int) -> None:
        on_disk = layout.entry_key(journal, commit) in self.disk.kept
        (self.left if on_disk else self.early).append((journal, commit))

    def _send(self, host: CoreHost, send: SendDelivery) -> None:
        send.delivery.channel = HostChannel(host)
        self.hosts[send.delivery.journal].post(send.delivery)

    def inject(self, token: int) -> None:
        self.hosts["first"].post(delivery(token, channel=Outside(self._leaves), journal="first"))

    async def passed(self, count: int) -> None:
        await until(lambda: all(len(core.hooks) == count for core in self.cores.values()))


@pytest.fixture
async def chain() -> AsyncIterator[Chain]:
    with patch("millwheel.store.writer.RowBatch", SimulatedBatch):
        made = Chain(Disk())
        await made.open()
        yield made
        for host in made.hosts.values():
            await host.close()
        await made.store.close()


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("takes", [0.0, 0.002], ids=["fast", "slow"])
async def test_what_leaves_the_process_is_on_the_disk(chain: Chain, takes: float) -> None:
    """ACKs, reports and asynchronous hooks, on disks whose syncs are made in place, and by the thread."""
    chain.disk.takes = takes
    for token in range(1, 41):
        chain.inject(token)
        if token % 3 == 0:
            await asyncio.sleep(0.001)
    await chain.passed(40)
    assert chain.early == []
    acks_and_hooks = Counter([("first", token) for token in range(1, 41)])
    acks_and_hooks.update((one, number) for one in CHAIN for number in range(1, 41))
    assert Counter(chain.left) >= acks_and_hooks, "and the reports, of which only the newest must leave"


async def test_a_record_passes_three_journals_with_one_sync(chain: Chain) -> None:
    chain.inject(1)
    await chain.passed(1)
    assert chain.disk.syncs == 1


@pytest.mark.guarantee("G8")
async def test_a_failed_sync_is_repeated_and_nothing_leaves_before(chain: Chain) -> None:
    chain.disk.fails = 2
    chain.inject(1)
    await chain.passed(1)
    chain.inject(2)
    await chain.passed(2)
    assert chain.early == []
    assert chain.ended == []


@pytest.mark.guarantee("G9", section="6.1.2")
async def test_a_disk_that_loses_what_was_written_ends_the_process(chain: Chain) -> None:
    """Other intervals have consumed it. If they went on, its repetition would be a duplicate with other contents."""
    chain.disk.fails, chain.disk.loses = 1, True
    chain.inject(1)
    await until(lambda: bool(chain.ended or chain.left or chain.early))
    assert chain.early == []
    assert "commit 1 of journal first" in chain.ended[0]
    assert chain.left == []
