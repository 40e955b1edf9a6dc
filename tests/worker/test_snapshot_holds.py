"""What an owner does while a snapshot pins its truncation point or freezes its commits (6.1.2, 7.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

import millwheel as mw
from millwheel.rpc.channel import open_channel
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.rpc.v1 import snapshot_pb2_grpc
from millwheel.store.contract import Append
from millwheel.store.memory import MemoryStore
from millwheel.worker import messages as m
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.journal_holds import JournalHoldService
from millwheel.worker.process.run_queue import RunQueue
from tests.patience import patience, until
from tests.serving import LoopbackServer
from tests.worker.doubles import ScriptedCore, ScriptedPeers
from tests.worker.interval.driver import IntervalDriver
from tests.worker.log.driver import JOURNAL as LOG_JOURNAL
from tests.worker.log.driver import LogDriver

JOURNAL = "c.1.j1"


class Count(mw.Computation[tuple[str, str], int]):
    """The state counts the key's records."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Any]) -> None:
        ctx.state += 1


def asked(driver: IntervalDriver, event: Any) -> m.SnapshotHoldAnswer:
    """The core's answer."""
    driver.handle(event)
    (answer,) = driver.take(m.SnapshotHoldAnswer)
    return answer


@pytest.mark.guarantee("G12", section="6.1.2")
def test_a_frozen_interval_begins_no_commit() -> None:
    driver = IntervalDriver(Count())
    driver.deliver(("a", "x", 1))
    assert asked(driver, m.Freeze("s", None)).settled is False, "an append is in flight"
    driver.commit()
    answer = asked(driver, m.Freeze("s", None))
    assert (answer.held, answer.settled, answer.commit) == (True, True, 1)
    driver.deliver(("a", "x", 2), ("b", "x", 3))
    driver.watermark(10)
    assert not driver.take(m.AppendEntry)
    answer = asked(driver, m.Thaw("s", None))
    assert (answer.held, answer.settled, answer.commit) == (True, True, 1), "the answer is from before the next commit"
    driver.commit()
    assert driver.state.journal.committed == 2


def test_another_snapshot_does_not_thaw_an_interval() -> None:
    driver = IntervalDriver(Count())
    assert asked(driver, m.Freeze("s", None)).held
    driver.deliver(("a", "x", 1))
    assert not asked(driver, m.Thaw("other", None)).held
    assert not driver.take(m.AppendEntry)
    assert asked(driver, m.Thaw("s", None)).held
    assert driver.take(m.AppendEntry)


def test_an_interval_that_is_not_open_is_not_held() -> None:
    for early in (m.Freeze("s", None), m.PinJournal("s", None)):
        driver = IntervalDriver(Count(), early=[early])
        (answer,) = driver.take(m.SnapshotHoldAnswer)
        assert not answer.held
        driver.deliver(("a", "x", 1))
        assert driver.take(m.AppendEntry)


def test_a_lost_owner_answers_no_snapshot() -> None:
    driver = IntervalDriver(Count())
    driver.handle(m.Deposed("a successor"))
    driver.handle(m.Freeze("s", None))
    assert not driver.take(m.SnapshotHoldAnswer)


@pytest.mark.guarantee("G12", section="6.1.2")
def test_a_pinned_truncation_point_stays() -> None:
    driver = IntervalDriver(Count(), settings=IntervalSettings(checkpoint_entries=2))

    def work(count: int) -> list[Append]:
        heads = []
        for number in range(count):
            driver.deliver((f"key-{number}", "x", number))
            for write in driver.take(m.WriteParts):
                driver.handle(m.PartsWritten(write.number))
            for flush in driver.take(m.FlushStates):
                driver.handle(m.StatesFlushed(flush.number))
            (append,) = driver.take(m.AppendEntry)
            heads.append(append.append)
            driver.handle(m.Appended(append.append.commit))
        return heads

    moved = work(20)[-1].truncation_point
    assert moved > 0, "bases are written and named"
    # A base may be on its way, and the append in flight may name it.
    while not asked(driver, m.PinJournal("s", None)).settled:
        work(1)
    pinned = driver.state.journal.truncation_point
    assert {head.truncation_point for head in work(20)} == {pinned}
    driver.handle(m.UnpinJournal("other"))
    assert {head.truncation_point for head in work(5)} == {pinned}
    driver.handle(m.UnpinJournal("s"))
    assert work(20)[-1].truncation_point > pinned


def test_a_frozen_log_begins_no_commit() -> None:
    driver = LogDriver()
    driver.deliver([b"a"])
    driver.run()
    driver.handle(m.Freeze("s", None))
    assert driver.hold_answers == [m.SnapshotHoldAnswer(None, True, True, 1)], LOG_JOURNAL
    driver.deliver([b"b"])
    assert driver.core.next_deadline() is None
    driver.run()
    assert driver.core.state.committed == 1
    driver.handle(m.Thaw("s", None))
    driver.run()
    assert driver.core.state.committed == 2


# The service.


@asynccontextmanager
async def serving(core: ScriptedCore) -> AsyncIterator[Any]:
    host = CoreHost(JOURNAL, core, MemoryStore(), ScriptedPeers(), RunQueue(asyncio.get_running_loop()).share("t"))

    def find(journal: str, sequencer: int) -> CoreHost | None:
        return host if (journal, sequencer) == (JOURNAL, 5) else None

    service = JournalHoldService(find)
    add = partial(snapshot_pb2_grpc.add_JournalHoldServiceServicer_to_server, service)
    async with LoopbackServer(add) as address, open_channel(address) as channel:
        yield snapshot_pb2_grpc.JournalHoldServiceStub(channel)


def owned(sequencer: int = 5) -> list[wire.JournalOwner]:
    return [wire.JournalOwner(journal=JOURNAL, sequencer=sequencer)]


async def test_a_freeze_ends_when_nobody_thaws() -> None:
    seen: list[Any] = []

    def react(event: Any) -> list[Any]:
        seen.append(event)
        return [m.SnapshotHoldAnswer(event.request, True, True, 9)] if isinstance(event, m.Freeze | m.Thaw) else []

    async with serving(ScriptedCore(react)) as stub:
        request = wire.FreezeJournalsRequest(token="s", journals=owned(), hold_ms=50)
        answer = await stub.FreezeJournals(request, timeout=patience(5))
        assert list(answer.positions) == [
            wire.JournalPosition(journal=JOURNAL, sequencer=5, held=True, settled=True, commit=9)
        ]
        await until(lambda: any(isinstance(event, m.Thaw) for event in seen), patience(5))


async def test_a_freeze_waits_for_the_append_in_flight() -> None:
    count = 0

    def react(event: Any) -> list[Any]:
        nonlocal count
        count += 1
        return [m.SnapshotHoldAnswer(event.request, True, count > 3, 9)] if isinstance(event, m.Freeze) else []

    async with serving(ScriptedCore(react)) as stub:
        request = wire.FreezeJournalsRequest(token="s", journals=owned(), hold_ms=2_000)
        answer = await stub.FreezeJournals(request, timeout=patience(5))
        assert answer.positions[0].settled
        assert count >= 4


async def test_a_snapshot_of_another_owner_holds_nothing() -> None:
    async with serving(ScriptedCore()) as stub:
        request = wire.PinJournalsRequest(token="s", journals=owned(4), hold_ms=50)
        answer = await stub.PinJournals(request, timeout=patience(5))
        assert not answer.positions[0].held
        await stub.UnpinJournals(wire.UnpinJournalsRequest(token="s", journals=owned(4)), timeout=patience(5))
