"""A worker's intervals: each is dropped, refused or fails to be built by itself (7.1, 6.2)."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from millwheel.client.watermark_streams import PendingOf
from millwheel.coordination.contract import KeyChange, Put
from millwheel.errors import NotInstalledError
from millwheel.model.catalog import OwnedInterval
from millwheel.model.catalog_keys import SEQUENCER, chunk_key, injector_key, topology_key, worker_key
from millwheel.model.deliveries import Sender
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2
from millwheel.rpc.v1.common_pb2 import Endpoint
from millwheel.sdk.errors import PackageError, UsageError
from millwheel.sdk.loading import unload_package
from millwheel.sdk.package import build_package
from millwheel.worker.dedup import Dedup, OpaqueIds
from millwheel.worker.messages import (
    AsyncHook,
    CatalogChanged,
    Deposed,
    GroupWatermarks,
    PrepareRelease,
    ReleasePrepared,
    Report,
    SequenceChecked,
    Tick,
)
from millwheel.worker.owner import OwnerPhase
from millwheel.worker.process import notices
from millwheel.worker.process.building import Built
from millwheel.worker.process.destinations import HostChannel
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.hosts import Hosted
from millwheel.worker.process.registration import Registration
from millwheel.worker.process.watermarks import OnRefused
from millwheel.worker.process.worker import Worker, WorkerSettings
from tests.coordination.memory import MemoryCoordinator
from tests.faulty_store import FaultyStore
from tests.patience import patience, until
from tests.worker.doubles import ScriptedCore


class Quiet:
    """An authority that sends no broadcasts by itself."""

    on_refused: OnRefused

    def connect(self, on_refused: OnRefused, _: PendingOf) -> Quiet:
        self.on_refused = on_refused
        return self

    async def close(self) -> None:
        return

    def forget(self, computation: str, keys: KeyInterval) -> None:
        return

    async def accept(self, computation: str, keys: KeyInterval, sequencer: int) -> int:
        return 0

    def report(self, report: Report) -> None:
        return

    async def watch(self, computations: Iterable[str]) -> AsyncIterator[GroupWatermarks]:
        await asyncio.Event().wait()
        yield GroupWatermarks({})


async def nothing(digest: str) -> bytes:
    raise PackageError("there are no packages here")


def worker(directory: Path, authority: Quiet | None = None, coordinator: MemoryCoordinator | None = None) -> Worker:
    settings = WorkerSettings("w1", "here:1", directory, lease=5.0)
    return Worker(settings, FaultyStore(), coordinator or MemoryCoordinator(), (authority or Quiet()).connect, nothing)


def owned(journal: str, sequencer: int) -> OwnedInterval:
    return OwnedInterval(IncarnationId("c.1"), catalog.IntervalRecord(journal=journal, sequencer=sequencer))


def hosted(of: Worker, journal: str, sequencer: int) -> ScriptedCore:
    core = ScriptedCore()
    host = CoreHost(journal, core, FaultyStore(), of.ownership.peers, of.hosts.queue.share("t"))
    built = Built(core, ())  # type: ignore[arg-type]
    of.hosts.hosted[journal] = Hosted(host, owned(journal, sequencer), built, HostChannel(host))
    return core


def knows(core: ScriptedCore, sequences: Iterable[str] = (), groups: Iterable[str] = ()) -> None:
    """Let a core know these senders. It drops a sender when the worker reports its end."""
    dedup = core.state.dedup = Dedup(ALL_KEYS, "c.1.j1")
    for sequence in sequences:
        dedup.admit(sequence)
    for group in groups:
        dedup.advance(group, 1, 0)

    def forget(event: Any) -> Sequence[Any]:
        if isinstance(event, SequenceChecked) and not event.alive:
            dedup.retire(event.sequence)
        return ()

    core.react = forget


@pytest.mark.guarantee("G8")
async def test_an_interval_lost_while_others_close_is_closed_once(tmp_path: Path) -> None:
    """A worker that wakes meets the end of its lease and its deposition at once.

    Regression: an error ended the task that registers it.
    """
    one = worker(tmp_path)
    first, _ = hosted(one, "c.1.j1", 4), hosted(one, "c.1.j2", 5)

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)

    first.react = lambda event: [AsyncHook(1, slow())] if type(event) is Tick else ()
    one.hosts.hosted["c.1.j1"].host.post(Tick())
    await asyncio.sleep(0.01)
    second = one.hosts.hosted["c.1.j2"].host
    dropping = asyncio.create_task(one.ownership.drop_all())
    await asyncio.sleep(0)
    second.post(Deposed("a successor holds the journal"))
    await asyncio.wait_for(dropping, patience(5))
    assert one.hosts.hosted == {}


@pytest.mark.paper(section="7.1")
async def test_an_ended_lease_releases_all_at_once_though_a_hook_runs(
    tmp_path: Path,
) -> None:
    """Regression: each interval waited up to five seconds for the hooks of those before it, and still served."""
    one = worker(tmp_path)
    first, _ = hosted(one, "c.1.j1", 4), hosted(one, "c.1.j2", 5)
    end = asyncio.Event()

    async def stubborn() -> None:
        while not end.is_set():
            with suppress(asyncio.CancelledError):
                await end.wait()

    first.react = lambda event: [AsyncHook(1, stubborn())] if type(event) is Tick else ()
    one.hosts.hosted["c.1.j1"].host.post(Tick())
    await asyncio.sleep(0.01)
    dropping = asyncio.create_task(one.ownership.drop_all())
    try:
        await asyncio.sleep(0.01)
        assert one.hosts.hosted == {}
        assert not dropping.done()
    finally:
        end.set()
        await asyncio.wait_for(dropping, patience(5))


@pytest.mark.guarantee("G4", section="6.2")
async def test_a_refusal_of_a_former_owners_report_spares_the_present(tmp_path: Path) -> None:
    """The report under the former sequencer can be refused when the next owner already serves in the same process.

    Regression: the present owner was deposed, and no one had the interval.
    """
    authority = Quiet()
    one = worker(tmp_path, authority)
    hosted(one, "c.1.j1", 6)
    authority.on_refused("c.1", ALL_KEYS, 5)
    await asyncio.sleep(0.01)
    assert "c.1.j1" in one.hosts.hosted
    authority.on_refused("c.1", ALL_KEYS, 6)
    await until(lambda: not one.hosts.hosted)


@pytest.mark.guarantee("G8")
async def test_an_interval_that_cannot_be_built_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: the worker did not open later assignments of the catalog, and followed no low watermarks."""
    one = worker(tmp_path)

    def build(interval: OwnedInterval) -> Built:
        if interval.interval.journal == "c.1.j1":
            raise UsageError("topology 't' has no computation 'c'")
        return Built(ScriptedCore(), ())  # type: ignore[arg-type]

    monkeypatch.setattr(one.catalog, "owned_by", lambda *_: [owned("c.1.j1", 4), owned("c.1.j2", 5)])
    monkeypatch.setattr(one.hosts.builder, "build", build)
    for _ in range(3):
        await one.follower.catch_up()
        assert one.follower.next_attempt is not None, "it is to be tried again"
    assert list(one.hosts.hosted) == ["c.1.j2"]
    assert "has no computation 'c'" in one.ownership.absence(owned("c.1.j1", 4))
    ((place, absent),) = one.ownership.absent().items()
    assert (place, "has no computation 'c'" in absent.why) == (("c.1.j1", 4), True), "the report to the masters has it"
    monkeypatch.setattr(one.hosts.builder, "build", lambda _: Built(ScriptedCore(), ()))  # type: ignore[arg-type]
    await one.follower.catch_up()
    assert not one.ownership.absent()
    assert caplog.text.count("it cannot be built") == 1
    one.follower.close()
    await one.ownership.drop_all()


async def test_an_interval_that_stays_down_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: after ten successive errors, only the worker's log showed them. The cluster was healthy."""
    monkeypatch.setattr(Registration, "renew_from_scratch", lambda self: None)
    one = worker(tmp_path)
    for sequencer in range(11):
        hosted(one, "c.1.j1", sequencer)
        host = one.hosts.hosted["c.1.j1"].host
        host.fault = "internal error: KeyError: 'x'"
        one.ownership.lost(host, "KeyError: 'x'")
        assert len(one.ownership.absent()) == (sequencer == 10), "an interval that is opened again soon is not absent"
    ((place, absent),) = one.ownership.absent().items()
    assert place == ("c.1.j1", 10)
    assert absent.why == "KeyError: 'x'; too many errors in succession: it stays down until this worker restarts"
    await one.ownership.drop_all()


async def test_what_is_not_installed_here_is_no_damage(tmp_path: Path) -> None:
    """Nothing is to be restored: the interval waits for a worker that has the library."""
    one = worker(tmp_path)

    def open_journal(event: Any) -> Sequence[Any]:
        raise NotInstalledError("journal c.1.j1, entry 3: install openmillwheel[arrow] at this worker")

    hosted(one, "c.1.j1", 4).react = open_journal
    one.hosts.hosted["c.1.j1"].host.post(Tick())
    await until(lambda: not one.hosts.hosted)
    assert not one.ownership.quarantined
    one.ownership.start([owned("c.1.j1", 4)])
    assert "install openmillwheel[arrow]" in one.ownership.absent()["c.1.j1", 4].why
    await one.ownership.drop_all()


@pytest.mark.guarantee("G13", section="6.1.1")
async def test_ended_journals_are_forgotten_after_a_takeover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a sender that was retired while an interval opened stayed in its memory and base for ever."""
    monkeypatch.setattr(notices, "SETTLED_AFTER_SECONDS", 0.01)
    coordinator = MemoryCoordinator()
    one = worker(tmp_path, coordinator=coordinator)
    core = ScriptedCore()
    knows(core, sequences=("u.1.j1", "u.1.j2"))
    lives = catalog.IntervalMapRecord(intervals=[catalog.IntervalRecord(journal="u.1.j2", sequencer=1)])
    await coordinator.transact((), [Put(chunk_key(IncarnationId("u.1"), 0), lives.SerializeToString())])
    monkeypatch.setattr(one.hosts.builder, "build", lambda interval: Built(core, ()))  # type: ignore[arg-type]
    started, _ = one.ownership.start([owned("c.1.j1", 4)])
    one.notices.started(*started)
    await until(lambda: core.of(SequenceChecked))
    assert core.of(SequenceChecked) == [SequenceChecked("u.1.j1", False)]
    await one.ownership.drop_all()


@pytest.mark.guarantee("G13", section="7.1")
async def test_what_removed_computations_had_sent_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "SETTLED_AFTER_SECONDS", 0.01)
    coordinator = MemoryCoordinator()
    one = worker(tmp_path, coordinator=coordinator)
    core = hosted(one, "c.1.j1", 4)
    knows(core, sequences=("u.1.j2",), groups=("u.1",))
    key = chunk_key(IncarnationId("u.1"), 0)
    lives = catalog.IntervalMapRecord(intervals=[catalog.IntervalRecord(journal="u.1.j2", sequencer=1)])
    await coordinator.transact((), [Put(key, lives.SerializeToString())])
    for _ in range(2):
        one.catalog.load(await coordinator.list(""))
        one.notices.notify()
    await asyncio.sleep(0.05)
    assert not core.of(SequenceChecked)
    await coordinator.transact((), [], [key])
    one.catalog.load(await coordinator.list(""))
    one.notices.notify()
    await until(lambda: core.of(SequenceChecked))
    assert core.of(SequenceChecked) == [SequenceChecked("u.1.j2", False), SequenceChecked("u.1", False)]
    await one.ownership.drop_all()


@pytest.mark.guarantee("G13", section="6.1.1")
async def test_what_has_pending_records_is_forgotten_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the check ran once. A record of a failing hook then kept all ids of its sender for ever."""
    monkeypatch.setattr(notices, "SETTLED_AFTER_SECONDS", 0.01)
    one = worker(tmp_path)
    core = hosted(one, "c.1.j1", 4)
    knows(core, groups=("u.1",))
    dedup = core.state.dedup
    verdict = dedup.check(OpaqueIds([b"x" * 16]), [b"k"], [1], Sender("u.1.j1", 3, ALL_KEYS, "u.1"))
    one.notices.forget_dead_later(*one.hosts.hosted.values())
    await until(lambda: len(core.of(SequenceChecked)) > 1)
    assert dedup.computations() == ["u.1"]
    dedup.committed(dedup.take([(verdict, None)]))
    await until(lambda: not dedup.computations())
    await one.ownership.drop_all()


@pytest.mark.guarantee("G13", section="6.1.1")
@pytest.mark.parametrize("phase", [OwnerPhase.OPENING, OwnerPhase.ACCEPTING])
async def test_an_interval_that_opens_for_long_is_looked_at_later(
    phase: OwnerPhase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the check came before the interval served, and found no sender. Later the interval learned it."""
    monkeypatch.setattr(notices, "SETTLED_AFTER_SECONDS", 0.01)
    one = worker(tmp_path)
    core = hosted(one, "c.1.j1", 4)
    core.phase = phase
    one.notices.forget_dead_later(*one.hosts.hosted.values())
    await asyncio.sleep(0.05)
    knows(core, groups=("u.1",))
    core.phase = OwnerPhase.SERVING
    await until(lambda: core.of(SequenceChecked))
    await one.ownership.drop_all()


@pytest.mark.guarantee("G13", section="6.1.1")
async def test_watermarks_come_of_all_whose_ids_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an injected feedback stream, and of a stream that an update took from the inputs, never came."""
    monkeypatch.setattr(notices, "SETTLED_AFTER_SECONDS", 0.01)
    one = worker(tmp_path)
    core = hosted(one, "c.1.j1", 4)
    of = one.hosts.hosted["c.1.j1"]
    of.built = Built(core, ("t/in",), feedback=("t/back",))  # type: ignore[arg-type]
    streams = [
        topology_pb2.StreamSpec(name=f"t/{name}", injected=True, id_slack_us=9) for name in ("in", "back", "left")
    ]
    record = catalog.TopologyRecord(spec=topology_pb2.TopologySpec(name="t", streams=streams))
    record.state = catalog.TOPOLOGY_STATE_RUNNING
    owners = catalog.IntervalMapRecord(intervals=[catalog.IntervalRecord(journal="u.1.j2", sequencer=1)])
    changes = [KeyChange(topology_key("t"), record.SerializeToString(), 1)]
    changes.append(KeyChange(SEQUENCER, b"41", 1))
    one.catalog.apply([*changes, KeyChange(chunk_key(IncarnationId("u.1"), 0), owners.SerializeToString(), 1)])
    for groups in ((), ("u.1", "gone.1", "injector/t/left", "injector/t/gone")):
        knows(core, groups=groups)
        one.notices.notify()
        await until(lambda: core.of(CatalogChanged))
        (changed,) = core.of(CatalogChanged)
        core.events.clear()
        left = {"u.1", "injector/t/left"} if groups else set()
        assert changed.groups == {"injector/t/in"}
        assert changed.beside == {"injector/t/back"} | left
        assert changed.slack == dict.fromkeys(changed.groups | changed.beside - {"u.1"}, 9)
        assert changed.lives == ({"injector/t/gone": 42} if groups else {})
        assert of.groups == changed.groups | changed.beside
    knows(core, groups=("injector/t/left",))
    of.groups = frozenset()
    one.notices.forget_dead_later(of)  # as after the opening, which recovers ids
    await until(lambda: core.of(CatalogChanged))
    await one.notices.watch.close()
    await one.ownership.drop_all()


async def test_an_interval_is_not_notified_twice_of_one_change(tmp_path: Path) -> None:
    one = worker(tmp_path)
    core = hosted(one, "c.1.j1", 4)

    async def noticed(expected: int) -> int:
        one.notices.notify()
        await until(lambda: len(core.of(CatalogChanged)) >= expected)
        for _turn in range(20):
            await asyncio.sleep(0)
        return len(core.of(CatalogChanged))

    assert [await noticed(1), await noticed(1)] == [1, 1]
    one.catalog.retired["u.1.j1"] = IncarnationId("u.1")
    assert (await noticed(2), core.of(CatalogChanged)[-1].retired) == (2, {"u.1.j1"})
    one.catalog.retired_queries["q"] = 1
    assert [await noticed(3), await noticed(4)] == [3, 4], "a late delivery may restore what a retired query had"
    another = hosted(one, "c.1.j2", 5)
    await noticed(5)
    await until(lambda: another.of(CatalogChanged))  # a new owner knows nothing yet
    await one.ownership.drop_all()


@pytest.mark.guarantee("G8")
async def test_a_sender_that_joins_is_known_by_earlier_broadcasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender may be idle, and already followed here for another interval. So no broadcast of it will come."""
    one = worker(tmp_path)
    core, senders = hosted(one, "c.1.j1", 4), {"a.1"}
    monkeypatch.setattr(one.hosts.builder, "groups", lambda inputs: frozenset(senders))
    one.notices.notify()
    one.notices.watch.publish(GroupWatermarks({"b.1": 7}))
    monkeypatch.setattr(one.notices.watch, "known", lambda _: GroupWatermarks({"b.1": 7}))
    senders.add("b.1")
    one.notices.notify()
    await until(lambda: len(core.of(CatalogChanged)) == 2)
    assert core.events[-2].groups == {"a.1", "b.1"}
    assert core.events[-1] == GroupWatermarks({"b.1": 7})
    one.notices.notify()
    one.notices.watch.publish(GroupWatermarks({"b.1": 8}))
    await until(lambda: core.events[-1] == GroupWatermarks({"b.1": 8}))
    assert [type(event) for event in core.events].count(GroupWatermarks) == 3
    await one.notices.watch.close()
    await one.ownership.drop_all()


@pytest.mark.guarantee("G7", section="5.2")
async def test_a_new_interval_learns_nothing_of_a_senders_former_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog jumps over a cancellation and a new submission.

    Regression: new intervals began at the end of the former life.
    """

    class Ended(Quiet):
        ended = True

        async def watch(self, computations: Iterable[str]) -> AsyncIterator[GroupWatermarks]:
            if self.ended:
                yield GroupWatermarks({"injector/s": MAX_TIMESTAMP})
            await asyncio.Event().wait()

    authority = Ended()
    one = worker(tmp_path, authority)
    lives = {"injector/s": (("t", 5),)}
    monkeypatch.setattr(one.hosts.builder, "groups", lambda inputs: frozenset(lives))
    monkeypatch.setattr(one.catalog, "injector_lives", lambda: dict(lives))
    former = hosted(one, "c.1.j1", 4)
    one.notices.notify()
    await until(lambda: former.of(GroupWatermarks) and former.events[-1].values)
    late = hosted(one, "c.1.j2", 5)
    one.notices.notify()
    await until(lambda: late.of(GroupWatermarks))
    assert late.events[-1].values == {"injector/s": MAX_TIMESTAMP}
    lives["injector/s"] = (("t", 9),)
    authority.ended = False
    new = hosted(one, "c.2.j1", 6)
    one.notices.notify()
    await until(lambda: new.of(GroupWatermarks))
    assert new.of(GroupWatermarks) == [GroupWatermarks({})]
    await one.notices.watch.close()
    await one.ownership.drop_all()


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_a_host_gets_no_record_of_an_injector_it_is_behind(tmp_path: Path) -> None:
    """A stream's new life is in the same or an older revision.

    Regression: the host took its first records for known ones.
    """
    one = worker(tmp_path)
    hosted(one, "c.1.j1", 4)
    host = one.hosts.hosted["c.1.j1"].host
    key = injector_key("t/s", "p")

    def opened(sequencer: int, revision: int) -> None:
        record = catalog.InjectorRecord(stream="t/s", process="p", sequencer=sequencer)
        one.catalog.apply([KeyChange(key, record.SerializeToString(), revision)])

    def known(sequencer: int) -> bool:
        return one.notices.knows(host, Sender("injector/t/s/p", sequencer, None, "injector/t/s"))

    assert one.notices.knows(host, Sender("b.1.j1", 3, ALL_KEYS, "b.1"))
    assert not known(3)
    opened(3, 1)
    assert not known(3), "the host has not received this catalog"
    known_senders = one.hosts.hosted["c.1.j1"].known_senders
    known_senders["injector/t/s/p"] = 2
    one.notices.notify()
    assert known_senders == {}, "who is known is judged again by each catalog"
    assert known(3)
    assert not known(7), "the catalog is behind"
    opened(7, 2)
    assert not known(7)
    one.notices.notify()
    assert known(7)
    await one.notices.watch.close()
    await one.ownership.drop_all()


@pytest.mark.guarantee("G3", section="6.2")
async def test_what_ended_with_a_registration_is_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog shows the interval as this worker's until the end of the lease is known.

    A second opening whose fence times out would take the first fence for its own, and meet appends that are still in
    flight.
    """
    one = worker(tmp_path)
    hosted(one, "c.1.j1", 4)
    given = [owned("c.1.j1", 4)]
    monkeypatch.setattr(one.catalog, "owned_by", lambda *_: given)
    monkeypatch.setattr(one.hosts.builder, "build", lambda interval: Built(ScriptedCore(), ()))  # type: ignore[arg-type]
    await one.ownership.drop_all()
    await one.follower.catch_up()
    assert one.follower.next_attempt is None
    assert one.hosts.hosted == {}
    given[:] = [owned("c.1.j1", 5)]
    await one.follower.catch_up()
    assert one.follower.next_attempt is None
    assert list(one.hosts.hosted) == ["c.1.j1"]
    await one.ownership.drop_all()


@pytest.mark.guarantee("G3", section="7.1")
async def test_of_two_processes_of_one_name_one_opens_its_assignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: both opened it, under one sequencer.

    Neither knew whose journal it was, and records went to the other one.
    """
    coordinator = MemoryCoordinator()
    one = worker(tmp_path, coordinator=coordinator)
    key = worker_key("w1")
    monkeypatch.setattr(one.hosts.builder, "build", lambda interval: Built(ScriptedCore(), ()))  # type: ignore[arg-type]
    await one.start()
    before = await coordinator.get(key)
    assert before is not None
    endpoint = Endpoint(worker_id="w1", address="here:1")
    put = Put(key, catalog.WorkerRecord(endpoint=endpoint, started_at_us=1).SerializeToString())
    await coordinator.transact((), (), [key])
    revision = (await coordinator.transact((), [put])).revision
    given = catalog.IntervalRecord(journal="c.1.j1", sequencer=4, owner=endpoint, owner_revision=revision)
    chunk = catalog.IntervalMapRecord(intervals=[given])
    await coordinator.transact((), [Put(chunk_key(IncarnationId("c.1"), 0), chunk.SerializeToString())])
    await until(lambda: "c.1" in one.catalog.maps)
    await asyncio.sleep(0.01)
    assert one.hosts.hosted == {}
    assert "this worker owns nothing" in caplog.text
    assert "worker.id" in caplog.text
    await coordinator.transact((), (), [key])
    await until(lambda: one.catalog.registration("w1") > revision)
    await one.close()


@pytest.mark.guarantee("G8", section="7.1")
async def test_what_waits_for_code_begins_when_that_is_there(tmp_path: Path) -> None:
    """Regression: it began only at the next attempt, half a minute later, if the code came slowly."""
    (tmp_path / "late.py").write_text("import millwheel as mw\n\ntopology = mw.Topology('late')\n")
    made, comes = build_package(f"{tmp_path / 'late.py'}:topology"), asyncio.Event()

    async def fetch(digest: str) -> bytes:
        await comes.wait()
        return made.data

    coordinator = MemoryCoordinator()
    one = Worker(
        WorkerSettings("w1", "here:1", tmp_path, lease=5.0), FaultyStore(), coordinator, Quiet().connect, fetch
    )
    one.follower.failures = 1_000
    code = topology_pb2.CodeReference(digest=made.digest, entry_point=made.entry_point)
    spec = topology_pb2.TopologySpec(name="late", code=code, computations=[topology_pb2.ComputationSpec(name="c")])
    record = catalog.TopologyRecord(spec=spec, state=catalog.TOPOLOGY_STATE_RUNNING)
    await coordinator.transact((), [Put(topology_key("late"), record.SerializeToString())])
    await one.start()
    try:
        await until(lambda: one.follower.next_attempt is not None)
        comes.set()
        await until(lambda: one.follower.next_attempt is None)
        assert one.programs.has(code)
    finally:
        await one.close()
        unload_package(made.digest)


@pytest.mark.paper(section="7.1")
async def test_a_stopping_worker_prepares_its_intervals_for_others(tmp_path: Path) -> None:
    one = Worker(
        WorkerSettings("w1", "here:1", tmp_path, lease=5.0, hand_over=0.3),
        FaultyStore(),
        MemoryCoordinator(),
        Quiet().connect,
        nothing,
    )
    ready, hangs = hosted(one, "c.1.j1", 4), hosted(one, "c.1.j2", 5)
    ready.react = lambda event: [ReleasePrepared(event.request, 0, 9)] if type(event) is PrepareRelease else ()
    began = asyncio.get_running_loop().time()
    await one.close()
    assert len(ready.of(PrepareRelease)) == len(hangs.of(PrepareRelease)) == 1
    assert 0.2 < asyncio.get_running_loop().time() - began < 3, "one that is never ready is not waited for for ever"
    assert one.hosts.hosted == {}


async def test_a_closed_interval_leaves_memory_at_once(tmp_path: Path) -> None:
    one = worker(tmp_path)
    core: Any = hosted(one, "c.1.j1", 4)
    core.part = core
    one.notices.forget_dead_later(*one.hosts.hosted.values())
    left = weakref.ref(core)
    del core
    await one.follower.catch_up()
    assert one.hosts.hosted == {}
    gc.collect()  # the parts of a core refer to each other
    assert left() is None, "a timer of it is set still"
    await one.close()
