"""A host performs its core's effects, settles uncertain calls, and answers every delivery."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from millwheel.coordination.contract import CoordinatorUnavailableError
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.clock import wall_now
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import Append, CorruptValueError, PartId, SequencerRefusedError, StateRow
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    AnswerDelivery,
    Appended,
    AppendEntry,
    AsyncHook,
    CheckSequence,
    CopyParts,
    Deposed,
    FenceJournal,
    FlushStates,
    HookFinished,
    Opened,
    OpenFailed,
    PartsMissing,
    PartsWritten,
    ReadSegments,
    ReadStates,
    SequenceChecked,
    StatesFlushed,
    StatesRead,
    Tick,
    WriteParts,
)
from millwheel.worker.process import event_host
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.run_queue import RunQueue
from tests.faulty_store import FaultyStore, QueueingStore
from tests.patience import patience, until
from tests.worker.doubles import Answers, ScriptedCore, ScriptedPeers, delivery

NOT_OWNER = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER
ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
JOURNAL = "c.1.j1"
INCARNATION = IncarnationId("c.1")


class Rig:
    """A host around a scripted core, on a journal that sequencer 1 holds."""

    def __init__(
        self,
        react: Callable[[Any], Sequence[Any]] = lambda event: (),
        clock: Callable[[], int] = wall_now,
        store: type[FaultyStore] = FaultyStore,
    ) -> None:
        self.store = store()
        self.peers = ScriptedPeers()
        self.core = ScriptedCore(react)
        self.queue = RunQueue(asyncio.get_running_loop()).share("t")
        self.host = CoreHost(JOURNAL, self.core, self.store, self.peers, self.queue, clock=clock)

    async def open(self) -> None:
        await self.store.create_journal(JOURNAL)
        await self.store.fence(JOURNAL, 1)

    async def perform(self, *instructions: Any) -> None:
        """Let the core return these effects, and wait for their results."""
        self.core.react = lambda event: instructions if type(event) is Tick else ()
        self.host.post(Tick())
        before = len(self.core.events)
        await until(lambda: len(self.core.events) > before + 1 or self.peers.lost_hosts)


class HeldStore(FaultyStore):
    """Every write waits until the store is released."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting, self.released = asyncio.Event(), asyncio.Event()

    async def _hold(self) -> None:
        self.waiting.set()
        await self.released.wait()

    async def append(self, journal: str, append: Any) -> None:
        await self._hold()
        await super().append(journal, append)

    async def write_states(self, computation: str, journal: str, sequencer: int, states: Sequence[StateRow]) -> None:
        await self._hold()
        await super().write_states(IncarnationId(computation), journal, sequencer, states)

    async def write_part(self, journal: str, part: PartId, blob: bytes) -> None:
        await self._hold()
        await super().write_part(journal, part, blob)


def entry(commit: int) -> AppendEntry:
    return AppendEntry(JOURNAL, Append(1, commit, 0, (), b"entry %d" % commit, True))


async def test_a_host_counts_each_refusal_and_no_ack() -> None:
    rig, counted = Rig(), list[DeliveryOutcome.ValueType]()
    rig.host = CoreHost(
        JOURNAL, rig.core, rig.store, rig.peers, rig.queue, refused=lambda _, outcome: counted.append(outcome)
    )
    sent = delivery(1, channel=Answers())
    rig.core.react = lambda event: [AnswerDelivery(sent, ACKED), AnswerDelivery(sent, NOT_OWNER)]
    rig.host.post(sent)
    await until(lambda: counted)
    assert counted == [NOT_OWNER]


@pytest.mark.guarantee("G2", section="6.1.2")
@pytest.mark.parametrize("script", [[], ["lost"], ["unsure"], ["lost", "unsure"], ["unsure", "lost", "lost"]])
@pytest.mark.parametrize("store", [FaultyStore, QueueingStore])
async def test_an_append_of_unknown_outcome_is_repeated_until_known(
    store: type[FaultyStore], script: list[str]
) -> None:
    rig = Rig(store=store)
    await rig.open()
    rig.store.script = list(script)
    await rig.perform(entry(1))
    assert [event.commit for event in rig.core.of(Appended)] == [1]
    assert rig.core.of(Deposed) == []
    assert await rig.store.read_entries(JOURNAL, 1, 1) == [b"entry 1"]


@pytest.mark.parametrize("store", [FaultyStore, QueueingStore])
async def test_a_host_says_that_it_repeats_a_call_as_long_as_it_does(store: type[FaultyStore]) -> None:
    rig = Rig(store=store)
    await rig.open()
    rig.store.script = ["lost"] * 3
    assert not rig.host.retried.repeated
    performing = asyncio.ensure_future(rig.perform(entry(1)))
    await until(lambda: rig.host.retried.repeated)
    await performing
    assert not rig.host.retried.repeated
    assert rig.host.retried.last_error


@pytest.mark.guarantee("G3", section="6.2")
@pytest.mark.parametrize("store", [FaultyStore, QueueingStore])
async def test_an_append_that_a_successor_refuses_ends_the_owner(store: type[FaultyStore]) -> None:
    rig = Rig(store=store)
    await rig.open()
    rig.store.script = ["unsure"]
    await rig.store.fence(JOURNAL, 2)
    await rig.perform(entry(1))
    assert rig.core.of(Appended) == []
    assert len(rig.core.of(Deposed)) == 1
    ((host, _),) = rig.peers.lost_hosts
    assert host.fault == ""


@pytest.mark.guarantee("G3", section="6.2")
@pytest.mark.parametrize("store", [FaultyStore, QueueingStore])
async def test_our_commit_number_by_another_sequencer_is_not_ours(store: type[FaultyStore]) -> None:
    rig = Rig(store=store)
    await rig.open()
    rig.store.script = ["lost", "deposed"]
    await rig.perform(entry(1))
    assert rig.core.of(Appended) == []
    assert len(rig.core.of(Deposed)) == 1


@pytest.mark.guarantee("G3", section="6.2")
@pytest.mark.parametrize("store", [FaultyStore, QueueingStore])
async def test_a_refusal_after_no_silence_is_never_ours(store: type[FaultyStore]) -> None:
    """Another process has appended under this sequencer and number: nothing of this append is in the journal."""
    rig = Rig(store=store)
    await rig.open()
    await rig.store.append(JOURNAL, Append(1, 1, 0, (), b"another's", True))
    await rig.perform(entry(1))
    assert rig.core.of(Appended) == []
    assert len(rig.core.of(Deposed)) == 1


@pytest.mark.guarantee("G1", section="6.1.2")
async def test_an_append_that_ends_after_its_host_posts_nothing() -> None:
    for script in ([], ["lost"], ["deposed"]):
        rig = Rig(store=QueueingStore)
        await rig.open()
        rig.store.script = list(script)
        rig.store.gate.clear()
        rig.core.react = lambda event: [entry(1)] if type(event) is Tick else ()
        rig.host.post(Tick())
        await until(lambda store=rig.store: store.in_flight)  # type: ignore[misc]
        await rig.host.close()
        rig.store.gate.set()
        await until(lambda store=rig.store: not store.in_flight)  # type: ignore[misc]
        await asyncio.sleep(0)
        assert len(rig.store.appends) == 1
        assert (rig.core.of(Appended), rig.core.of(Deposed), rig.peers.lost_hosts) == ([], [], [])


async def test_an_append_that_the_store_cannot_make_ends_the_host() -> None:
    rig = Rig(store=QueueingStore)
    rig.core.react = lambda event: [entry(1)] if type(event) is Tick else ()
    rig.host.post(Tick())  # there is no such journal
    await until(lambda: rig.peers.lost_hosts)
    assert rig.core.of(Appended) == []


@pytest.mark.guarantee("G12", section="6.1.2")
@pytest.mark.parametrize(
    ("instruction", "done"),
    [
        (entry(1), Appended),
        (WriteParts(JOURNAL, 1, {PartId("meta", 1, 0): b"base"}), PartsWritten),
        (FlushStates(INCARNATION, JOURNAL, 1, 1, [StateRow(b"k", 0, b"state")]), StatesFlushed),
        (CopyParts(JOURNAL, 1, [(JOURNAL, PartId("ids", 1, 0), PartId("ids", 2, 0))]), PartsWritten),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
async def test_a_write_is_reported_when_the_store_has_acknowledged_it(instruction: Any, done: type) -> None:
    """After this report, a core deletes the rows that the write replaces."""
    rig = Rig()
    held = rig.store = HeldStore()
    rig.host = CoreHost(JOURNAL, rig.core, held, rig.peers, rig.queue)
    await rig.open()
    await FaultyStore.write_part(held, JOURNAL, PartId("ids", 1, 0), b"ids")
    rig.core.react = lambda event: [instruction] if type(event) is Tick else []
    rig.host.post(Tick())
    await held.waiting.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert rig.core.of(done) == []
    held.released.set()
    await until(lambda: rig.core.of(done))


async def test_opening_reads_what_the_head_names_or_reports_why_not() -> None:
    rig = Rig()
    await rig.open()
    await rig.store.append(JOURNAL, Append(1, 1, 0, (), b"one", True))
    await rig.perform(FenceJournal(JOURNAL, 7))
    (opened,) = rig.core.of(Opened)
    assert (opened.head.sequencer, opened.head.commit, opened.entries) == (7, 1, [b"one"])
    for journal, sequencer, part in [(JOURNAL, 3, "sequencer 7"), ("never.1.j1", 9, "never.1.j1")]:
        other = Rig()
        other.host = CoreHost(journal, other.core, rig.store, other.peers, other.queue)
        await other.perform(FenceJournal(journal, sequencer))
        (failed,) = other.core.of(OpenFailed)
        assert part in failed.reason
        assert other.peers.lost_hosts[0][0].fault == "", "another takeover would meet the same"


@pytest.mark.guarantee("G3", section="6.2")
@pytest.mark.parametrize("fences", [["lost"], ["unsure"], ["lost", "unsure", "lost"]])
async def test_a_fence_of_unknown_outcome_is_repeated_and_may_be_ours(fences: list[str]) -> None:
    """Regression: the repetition was refused because of our own sequencer, and the interval given up, although no
    one else had it."""
    rig = Rig()
    await rig.open()
    await rig.store.append(JOURNAL, Append(1, 1, 0, (), b"one", True))
    rig.store.fences = list(fences)
    await rig.perform(FenceJournal(JOURNAL, 7))
    (opened,) = rig.core.of(Opened)
    assert (opened.head.sequencer, opened.head.commit, opened.entries) == (7, 1, [b"one"])


@pytest.mark.guarantee("G3", section="6.2")
async def test_an_uncertain_fence_passed_by_a_successors_is_lost() -> None:
    rig = Rig()
    await rig.open()

    class Overtaken(FaultyStore):
        async def read_head(self, journal: str) -> Any:
            await self.fence(journal, 8)
            return await super().read_head(journal)

    store = Overtaken()
    await store.create_journal(JOURNAL)
    store.fences = ["unsure"]
    rig.host = CoreHost(JOURNAL, rig.core, store, rig.peers, rig.queue)
    await rig.perform(FenceJournal(JOURNAL, 7))
    assert rig.core.of(Opened) == []
    (failed,) = rig.core.of(OpenFailed)
    assert "sequencer 8" in failed.reason


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_missing_id_segments_are_reported_to_the_core_only() -> None:
    """The segments may have been collected during the read. Regression: the interval was given up for good."""
    rig = Rig()
    await rig.open()
    gone = PartId("segment/ids/c.1.j1/1", 1, 4)
    await rig.perform(ReadSegments(JOURNAL, [gone]))
    (missing,) = rig.core.of(PartsMissing)
    assert list(missing.parts) == [gone]
    assert "missing" in missing.why
    assert not rig.peers.lost_hosts


@pytest.mark.guarantee("G8")
async def test_a_hook_that_swallows_its_cancellation_delays_no_closing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: the worker waited for the hook. So did following the catalog and renewing the lease."""
    monkeypatch.setattr("millwheel.worker.process.host.CLOSE_SECONDS", 0.05)
    started, release = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    rig = Rig()
    rig.core.react = lambda event: [AsyncHook(1, stubborn())] if type(event) is Tick else ()
    rig.host.post(Tick())
    await until(started.is_set)
    async with asyncio.timeout(patience(5)):
        await rig.host.close()
    assert "1 hooks go on" in caplog.text
    release.set()
    await asyncio.sleep(0.01)


@pytest.mark.guarantee("G4", section="6.2")
async def test_acceptance_is_posted_and_refusal_ends_the_owner() -> None:
    rig = Rig()
    rig.peers.accepts = [42]
    request = AcceptSequencer(INCARNATION, rig.core.keys, 1)
    await rig.perform(request)
    assert [event.watermark for event in rig.core.of(Accepted)] == [42]
    rig = Rig()
    rig.peers.accepts = [SequencerRefusedError("c.1", 5, 0)]
    await rig.perform(request)
    assert len(rig.core.of(Deposed)) == 1


@pytest.mark.guarantee("G13", section="6.2")
async def test_earlier_owners_leftovers_are_deleted_at_a_takeover() -> None:
    """Regression: each takeover left unnamed parts of bases, and parts whose deletion was due."""
    rig = Rig()
    await rig.open()
    named, unnamed, mine, successors = (PartId("meta", number, 1) for number in range(4))
    for part in (named, unnamed, mine, successors):
        await rig.store.write_part(JOURNAL, part, b"")
    await rig.store.append(JOURNAL, Append(1, 1, 1, (named,), b"one", True))
    await rig.store.fence(JOURNAL, 2)
    rig.peers.accepts = [77]
    await rig.perform(AcceptSequencer(INCARNATION, rig.core.keys, 2))
    await until(lambda: list(rig.store.journals[JOURNAL].parts) == [named, mine, successors])
    assert not rig.peers.lost_hosts


async def test_a_coordinator_that_is_away_is_asked_again() -> None:
    rig = Rig()
    rig.peers.lives = [CoordinatorUnavailableError("no quorum"), False]
    await rig.perform(CheckSequence("u.1.j1"))
    assert [(event.sequence, event.alive) for event in rig.core.of(SequenceChecked)] == [("u.1.j1", False)]
    assert not rig.peers.lost_hosts


@pytest.mark.guarantee("G1")
async def test_every_delivery_is_answered_when_the_host_closes() -> None:
    rig = Rig()
    answers = Answers()
    kept = [delivery(token, channel=answers) for token in range(1, 4)]
    rig.core.react = lambda event: [AnswerDelivery(event, ACKED)] if event is kept[0] else ()
    for one in kept:
        rig.host.post(one)
    await until(lambda: len(rig.core.events) == 3)
    queued = delivery(4, channel=answers)
    rig.host.post(queued)
    await rig.host.close()
    after = delivery(5, channel=answers)
    rig.host.post(after)
    await asyncio.sleep(0.01)
    last = {token: outcome for token, outcome, _, _ in answers.got if token != 1}
    assert last == dict.fromkeys((2, 3, 4, 5), NOT_OWNER)
    assert (1, ACKED, [], "") in answers.got
    assert len(rig.core.events) == 3, "a closed host handles nothing"


async def test_settled_deliveries_are_not_kept() -> None:
    rig = Rig(lambda event: [AnswerDelivery(event, ACKED)])
    answers = Answers()
    for token in range(100):
        rig.host.post(delivery(token, channel=answers))
    await until(lambda: len(rig.core.events) == 100)
    rig.core.events.clear()
    await rig.host.close()
    assert len(answers.got) == 100


@pytest.mark.parametrize("where", ["handle", "perform", "task"])
async def test_an_internal_error_gives_the_interval_up_and_is_reported(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    answers = Answers()
    waiting = delivery(1, channel=answers)
    rig.host.post(waiting)
    await until(lambda: rig.core.events)

    def react(event: Any) -> Sequence[Any]:
        if where == "handle":
            raise AssertionError("contradiction")
        if where == "perform":
            return ["no instruction"]
        return [CheckSequence("x")]

    rig.peers.lives = [AssertionError("contradiction")]
    rig.core.react = react
    with caplog.at_level(logging.CRITICAL):
        rig.host.post(Tick())
        await until(lambda: rig.peers.lost_hosts)
    ((host, reason),) = rig.peers.lost_hosts
    assert host is rig.host
    assert host.fault == reason
    assert reason.startswith("internal error: ")
    assert [(token, outcome) for token, outcome, _, _ in answers.got] == [(1, NOT_OWNER)]
    seen = len(rig.core.events)
    rig.host.post(Tick())
    await asyncio.sleep(0.01)
    assert len(rig.core.events) == seen
    assert len(rig.peers.lost_hosts) == 1


async def test_a_damaged_row_is_reported_with_its_key_others_are_read() -> None:
    """Regression: the damaged row ended the interval with all its keys."""

    class Damaged(FaultyStore):
        async def read_states(self, computation: str, keys: Sequence[bytes]) -> Any:
            for key in keys:
                if key in (b"3", b"4"):
                    raise CorruptValueError(f"row of key {key!r}", "checksum does not hold")
            return [StateRow(key, 1, key) for key in keys]

    rig = Rig()
    rig.host = CoreHost(JOURNAL, rig.core, Damaged(), rig.peers, rig.queue)
    keys = [b"%d" % number for number in range(7)]
    await rig.perform(ReadStates(INCARNATION, keys))
    await until(lambda: rig.core.of(StatesRead))
    (read,) = rig.core.of(StatesRead)
    assert [row.key if row is not None else None for row in read.rows] == [
        key if key not in read.damaged else None for key in keys
    ]
    assert read.damaged == {
        b"3": "row of key b'3': checksum does not hold",
        b"4": "row of key b'4': checksum does not hold",
    }
    assert rig.peers.lost_hosts == []


@pytest.mark.parametrize("where", ["handle", "copy", "append"])
async def test_a_damaged_value_ends_the_interval_without_takeover(where: str) -> None:
    """Each next owner would find the same value."""
    error = CorruptValueError("part 'segment/1' of journal x", "checksum does not hold")

    class Damaged(FaultyStore):
        async def read_parts(self, journal: str, parts: Sequence[PartId]) -> Any:
            raise error

        async def append(self, journal: str, append: Append) -> None:
            raise error

    rig = Rig()
    rig.host = CoreHost(JOURNAL, rig.core, Damaged(), rig.peers, rig.queue)
    part = PartId("segment/1", 1, 1)
    if where == "handle":

        def react(event: Any) -> Sequence[Any]:
            raise error

        rig.core.react = react
        rig.host.post(Tick())
    elif where == "copy":
        await rig.perform(CopyParts(JOURNAL, 1, [("x", part, part)]))
    else:
        await rig.perform(AppendEntry(JOURNAL, Append(1, 1, 0, (), b"")))
    await until(lambda: rig.peers.lost_hosts)
    ((host, reason),) = rig.peers.lost_hosts
    assert host is rig.host
    assert reason == host.damage == str(error)
    assert host.fault == ""


async def test_an_alarm_rings_once_at_its_time() -> None:
    rig = Rig()
    rig.core.alarm = wall_now() + 30_000

    def react(event: Any) -> Sequence[Any]:
        if rig.core.alarm is not None and wall_now() >= rig.core.alarm:
            rig.core.alarm = None
        return ()

    rig.core.react = react
    rig.host.start()
    await asyncio.sleep(0.01)
    assert rig.core.of(Tick) == []
    await asyncio.sleep(0.1)
    assert len(rig.core.of(Tick)) == 1
    rig.core.alarm = wall_now() + 30_000
    rig.host.post(Appended(1))
    await asyncio.sleep(0.005)
    await rig.host.close()
    await asyncio.sleep(0.06)
    assert len(rig.core.of(Tick)) == 1, "a closed host's alarm is off"


@pytest.mark.guarantee("G8", section="4.6")
async def test_an_alarm_rings_soon_after_the_wall_clock_jumps_past_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine was suspended, or its clock was set. The loop's clock has not advanced."""
    ahead = 0
    monkeypatch.setattr(event_host, "MAX_SLEEP_SECONDS", 0.02)
    rig = Rig(clock=lambda: wall_now() + ahead)
    rig.core.alarm = wall_now() + 3_600_000_000
    rig.host.start()
    await asyncio.sleep(0.1)
    assert rig.core.of(Tick) == [], "nothing is due, and nothing is woken for it"
    ahead = 3_600_000_000
    await until(lambda: rig.core.of(Tick))
    await rig.host.close()


async def test_asynchronous_hooks_report_how_they_ended() -> None:
    async def well() -> None:
        await asyncio.sleep(0)

    async def badly() -> None:
        raise ValueError("no")

    async def half() -> object:
        return asyncio.sleep(0)

    rig = Rig()
    await rig.perform(AsyncHook(1, well()))
    await rig.perform(AsyncHook(2, badly()))
    await rig.perform(AsyncHook(3, half()))
    ended = {event.hook: event.error for event in rig.core.of(HookFinished)}
    assert ended[1] is None
    assert isinstance(ended[2], ValueError)
    assert "half returned coroutine, and a hook returns None: nothing awaits it" in str(ended[3])


async def test_a_hook_cancelled_before_it_begins_is_no_users_fault() -> None:
    """Regression: Python warned that the user's coroutine "was never awaited"."""
    rig = Rig()
    await rig.open()
    closing: list[asyncio.Task[None]] = []

    async def hook() -> None:
        raise AssertionError("it began after all")

    def react(event: Any) -> Sequence[Any]:
        closing.append(asyncio.create_task(rig.host.close()))
        return [AsyncHook(1, hook())]

    rig.core.react = react
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        rig.host.post(Tick())
        await until(lambda: closing and closing[0].done())
        gc.collect()
    assert not reported
