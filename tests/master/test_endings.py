"""Draining and cancelling topologies, and what remains of them."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest

from millwheel.master.messages import (
    CancelTopology,
    CreateJournals,
    DrainTopology,
    Drop,
    EnsureLog,
    IntervalProgress,
    OpenInjector,
    Progress,
    ProgressObserved,
    Reload,
    ReserveNumbers,
    SnapshotLoaded,
    StoreFailed,
    SubmitTopology,
    Tick,
    Transact,
    TransactionEnded,
    UpdateTopology,
)
from millwheel.master.observer import Observer
from millwheel.model.catalog import Catalog
from millwheel.model.time import MAX_TIMESTAMP, hours, seconds
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as specs
from tests.kept import kept

from .harness import Cluster, Master, computation, external, source, topology

LATER = int(seconds(60))


def draining(spec: specs.TopologySpec | None = None) -> tuple[Cluster, Master]:
    cluster = Cluster()
    cluster.join("w1")
    master = Master(cluster)
    master.call(SubmitTopology(spec or topology(), "r1"), now=0)
    master.call(DrainTopology("zeitgeist"), now=0)
    master.core.step(ProgressObserved(Progress("zeitgeist")), 0)
    return cluster, master


def look(known: Catalog, *, work: int = 0, commit: int = 7, watermark: int = 5, stale: int = 0) -> Progress:
    """Report the same status for every interval, as the driver would."""
    incarnations = known.topologies["zeitgeist"].incarnations.values()
    intervals = {
        one.journal: IntervalProgress(one.sequencer - stale, commit, work, 0)
        for incarnation in incarnations
        for one in known.maps[incarnation].record.intervals
    }
    return Progress("zeitgeist", dict.fromkeys(incarnations, watermark), intervals)


def observe(master: Master, progress: Progress, now: int = LATER) -> int:
    master.handle(ProgressObserved(progress), now)
    master.run()
    return master.cluster.catalog().topologies["zeitgeist"].state


def test_a_draining_topology_is_looked_at_and_takes_no_injectors() -> None:
    _, master = draining()
    master.tick(LATER)
    assert master.observing == ["zeitgeist"]
    with pytest.raises(RequestError, match="is draining") as caught:
        master.call(OpenInjector("zeitgeist/queries", "p"))
    assert caught.value.code is FailureCode.FAILED_PRECONDITION


@pytest.mark.guarantee("G1", section="4.5")
def test_a_drain_ends_when_every_watermark_is_plus_infinity() -> None:
    cluster, master = draining()
    assert (
        observe(master, look(cluster.catalog(), work=3, watermark=MAX_TIMESTAMP), 0) == catalog.TOPOLOGY_STATE_DRAINED
    )


@pytest.mark.guarantee("G1")
def test_a_drain_does_not_end_while_one_watermark_is_unknown() -> None:
    cluster, master = draining()
    seen = look(cluster.catalog(), work=3, watermark=MAX_TIMESTAMP)
    watermarks = dict(list(seen.watermarks.items())[1:])
    progress = Progress("zeitgeist", watermarks, seen.intervals)
    assert observe(master, progress) == catalog.TOPOLOGY_STATE_DRAINING


@pytest.mark.guarantee("G1")
def test_watermarks_do_not_end_a_drain_with_feedback() -> None:
    spec = topology(
        streams=[source("zeitgeist/queries")],
        computations=[
            computation("a", {"zeitgeist/queries": "k", "back": "k"}, ["there"], ("back",)),
            computation("b", {"there": "k"}, ["back"]),
        ],
    )
    cluster, master = draining(spec)
    busy = look(cluster.catalog(), work=1, watermark=MAX_TIMESTAMP)
    assert observe(master, busy) == catalog.TOPOLOGY_STATE_DRAINING


@pytest.mark.guarantee("G1")
def test_a_drain_ends_after_two_equal_looks_at_idle_intervals() -> None:
    cluster, master = draining()
    known = cluster.catalog()
    assert observe(master, look(known)) == catalog.TOPOLOGY_STATE_DRAINING
    assert observe(master, look(known, commit=8)) == catalog.TOPOLOGY_STATE_DRAINING
    assert observe(master, look(known, work=1, commit=8)) == catalog.TOPOLOGY_STATE_DRAINING
    assert observe(master, look(known, commit=8)) == catalog.TOPOLOGY_STATE_DRAINING
    assert observe(master, look(known, commit=8)) == catalog.TOPOLOGY_STATE_DRAINED


@pytest.mark.guarantee("G1", section="4.1")
def test_a_drain_does_not_end_while_productions_are_unacked() -> None:
    """A receiver that refuses them leaves every commit number as it is."""
    cluster, master = draining()
    idle = look(cluster.catalog())
    intervals = {journal: IntervalProgress(one.sequencer, one.commit, 0, 1) for journal, one in idle.intervals.items()}
    for _ in range(3):
        pending = Progress("zeitgeist", idle.watermarks, intervals)
        assert observe(master, pending) == catalog.TOPOLOGY_STATE_DRAINING


@pytest.mark.guarantee("G1", section="6.2")
def test_an_old_owners_report_does_not_end_a_drain() -> None:
    cluster, master = draining()
    for _ in range(3):
        assert observe(master, look(cluster.catalog(), stale=1)) == catalog.TOPOLOGY_STATE_DRAINING


@pytest.mark.guarantee("G1")
def test_injectors_have_their_grace_before_idleness_counts() -> None:
    cluster, master = draining()
    for _ in range(3):
        assert observe(master, look(cluster.catalog()), 1_000) == catalog.TOPOLOGY_STATE_DRAINING
    assert any("injectors" in line for line in master.core.waiting_for("zeitgeist"))
    assert observe(master, look(cluster.catalog()), LATER) == catalog.TOPOLOGY_STATE_DRAINED


@pytest.mark.guarantee("G8", section="7.1")
def test_a_drain_begun_by_a_fast_clock_ends_by_the_successors() -> None:
    """Regression: the grace period began at the drain's start by the clock of that master.

    Its successor waited for an hour.
    """
    cluster = Cluster()
    cluster.join("w1")
    ahead = Master(cluster)
    ahead.call(SubmitTopology(topology(), "r1"), now=0)
    ahead.call(DrainTopology("zeitgeist"), now=int(hours(1)))
    master = Master(cluster)
    states = [observe(master, look(cluster.catalog()), int(seconds(at))) for at in (1, 3, 7)]
    assert states == [catalog.TOPOLOGY_STATE_DRAINING, catalog.TOPOLOGY_STATE_DRAINING, catalog.TOPOLOGY_STATE_DRAINED]


@pytest.mark.guarantee("G8")
def test_a_clock_set_back_does_not_delay_the_end_of_a_drain() -> None:
    cluster, _ = draining()
    master = Master(cluster)
    states = [observe(master, look(cluster.catalog()), int(seconds(at))) for at in (3_600, 1, 7)]
    assert states == [catalog.TOPOLOGY_STATE_DRAINING, catalog.TOPOLOGY_STATE_DRAINING, catalog.TOPOLOGY_STATE_DRAINED]


def test_a_drained_topology_keeps_state_and_logs_without_owners() -> None:
    cluster, master = draining()
    observe(master, look(cluster.catalog(), watermark=MAX_TIMESTAMP))
    cluster.join("w2")
    master.run()
    known = cluster.catalog()
    for incarnation in known.topologies["zeitgeist"].incarnations.values():
        (interval,) = known.maps[incarnation].record.intervals
        assert not interval.HasField("owner")
        assert cluster.has_journal(interval.journal)
    assert known.locate(known.logs["zeitgeist/dips"].incarnation, b"").owner.worker_id == "w1"  # type: ignore[union-attr]
    assert known.consumers("zeitgeist/windows") == ()


@pytest.mark.guarantee("G8")
def test_what_a_drain_waits_for_can_be_named() -> None:
    cluster, master = draining()
    reads = computation("r", {"zeitgeist/windows": "q", "zeitgeist/queries": "q"}, [])
    reader = topology("reader", [external("zeitgeist/queries")], [reads])
    master.call(SubmitTopology(reader, "r2"))
    observe(master, look(cluster.catalog(), work=3))
    reported = "\n".join(master.core.waiting_for("zeitgeist"))
    assert "computation window-counter: 3 records pending" in reported
    assert "stream zeitgeist/queries, which another topology still reads" in reported
    master.call(DrainTopology("reader"))
    observe(master, Progress("reader"))
    assert "computation r: 1 interval(s) that do not answer" in master.core.waiting_for("reader")


def test_a_stream_stays_open_while_any_reader_runs() -> None:
    _, master = draining()
    reader = topology("reader", [external("zeitgeist/queries")], [computation("r", {"zeitgeist/queries": "q"}, [])])
    master.call(SubmitTopology(reader, "r2"))
    assert master.call(OpenInjector("zeitgeist/queries", "p")).sequencer > 0


def test_a_second_drain_of_a_name_starts_afresh() -> None:
    cluster, master = draining()
    observe(master, look(cluster.catalog(), watermark=MAX_TIMESTAMP))
    master.call(CancelTopology("zeitgeist"))
    master.call(SubmitTopology(topology(), "r2"))
    master.call(DrainTopology("zeitgeist"))
    assert cluster.catalog().topologies["zeitgeist"].state == catalog.TOPOLOGY_STATE_DRAINING


@pytest.mark.guarantee("G8")
def test_repeated_drain_requests_do_not_delay_its_end() -> None:
    cluster, master = draining()
    for expected in (catalog.TOPOLOGY_STATE_DRAINING, catalog.TOPOLOGY_STATE_DRAINED):
        assert observe(master, look(cluster.catalog())) == expected
        assert master.call(DrainTopology("zeitgeist")).state == expected


def test_drain_and_cancel_may_be_repeated_and_name_unknown_names() -> None:
    cluster, master = draining()
    revision = cluster.state.revision
    master.call(DrainTopology("zeitgeist"))
    assert cluster.state.revision == revision
    master.call(CancelTopology("zeitgeist"))
    master.call(CancelTopology("zeitgeist"))
    with pytest.raises(RequestError, match="is cancelled, and only a running one"):
        master.call(DrainTopology("zeitgeist"))
    for request in (DrainTopology("zeitgiest"), CancelTopology("zeitgiest")):
        with pytest.raises(RequestError, match="did you mean 'zeitgeist'") as caught:
            master.call(request)
        assert caught.value.code is FailureCode.NOT_FOUND


@pytest.mark.paper(section="4.1")
def test_cancel_drops_a_streams_log_and_injectors_with_readers() -> None:
    cluster = Cluster()
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r1"))
    reads = computation("r", {"zeitgeist/queries": "q"}, ["other"])
    reader = topology("reader", [external("zeitgeist/queries")], [reads])
    master.call(SubmitTopology(reader, "r2"))
    master.call(OpenInjector("zeitgeist/queries", "p"))
    master.call(CancelTopology("zeitgeist"))
    known = cluster.catalog()
    assert set(known.logs) == {"reader/other", "reader/dead-letters"}
    assert known.injectors == {}
    assert known.groups_of("zeitgeist/queries") == (), "what reads it goes on, and gets nothing"
    master.call(CancelTopology("reader"))
    known = cluster.catalog()
    assert (known.logs, known.maps, known.injectors) == ({}, {}, {})


def test_a_stream_whose_last_reader_is_cancelled_gets_a_log() -> None:
    cluster = Cluster()
    master = Master(cluster)
    writer = topology("writer", [source("y")], [computation("w", {"y": "k"}, ["z"])])
    reader = topology("reader", [], [computation("r", {"writer/z": "k"}, [])])
    master.call(SubmitTopology(writer, "r1"))
    master.call(SubmitTopology(reader, "r2"))
    master.call(CancelTopology("writer"))
    master.call(SubmitTopology(writer, "r3"))
    assert "writer/z" not in cluster.catalog().logs
    master.call(CancelTopology("reader"))
    assert [one.log for one in cluster.catalog().consumers("writer/z")] == [True]


def test_a_new_leader_finishes_the_clearing_away_of_the_old_one() -> None:
    cluster = Cluster()
    old = Master(cluster, "old")
    old.call(SubmitTopology(topology(), "r1"))
    journals = [
        one.journal for interval_map in cluster.catalog().maps.values() for one in interval_map.record.intervals
    ]
    old.ask(CancelTopology("zeitgeist"))
    while not isinstance(old.waiting[0], Transact):
        old.step()
    old.step()
    assert cluster.has_journal(journals[0])
    Master(cluster, "new").run()
    assert not any(cluster.has_journal(journal) for journal in journals)
    assert cluster.catalog().maps == {}


def test_a_deposed_masters_garbage_collection_spares_a_used_log() -> None:
    cluster = Cluster()
    old = Master(cluster, "old")
    old.call(SubmitTopology(topology(), "r1"))
    old.ask(CancelTopology("zeitgeist"))
    while cluster.catalog().topologies["zeitgeist"].state != catalog.TOPOLOGY_STATE_CANCELLED:
        old.step()
    new = Master(cluster, "new")
    new.call(SubmitTopology(topology(), "r2"))
    old.run()
    known = cluster.catalog()
    assert all(
        cluster.has_journal(one.journal)
        for interval_map in known.maps.values()
        for one in interval_map.record.intervals
    )


@pytest.mark.guarantee("G7", section="6.2")
def test_a_deposed_master_silences_no_returned_streams_injectors() -> None:
    cluster = Cluster()
    old = Master(cluster, "old")
    old.call(SubmitTopology(topology(), "r1"))
    cluster.accepted["injector/zeitgeist/queries"] = old.call(OpenInjector("zeitgeist/queries", "p")).sequencer
    old.ask(CancelTopology("zeitgeist"))
    while not (old.waiting and isinstance(old.waiting[0], Drop) and old.waiting[0].injectors):
        old.step() if old.waiting else old.follow()
    new = Master(cluster, "new")
    new.run()
    assert cluster.accepted == {}
    new.call(SubmitTopology(topology(), "r2"))
    again = new.call(OpenInjector("zeitgeist/queries", "p")).sequencer
    cluster.accepted["injector/zeitgeist/queries"] = again
    old.run()
    assert cluster.accepted == {"injector/zeitgeist/queries": again}


@pytest.mark.guarantee("G7", section="6.2")
def test_a_master_deposed_as_it_reserves_silences_no_one() -> None:
    """Regression: the deposed master reserved numbers above its successor's.

    The authority then removed owners that the successor had started.
    """
    cluster = Cluster()
    first = Master(cluster, "first")
    first.call(SubmitTopology(topology(), "r1"))
    cluster.accepted["injector/zeitgeist/queries"] = first.call(OpenInjector("zeitgeist/queries", "p")).sequencer
    old = Master(cluster, "old")
    old.run()
    stale = cluster.state.list("")
    old.ask(CancelTopology("zeitgeist"))
    while not (old.waiting and isinstance(old.waiting[0], ReserveNumbers)):
        old.step() if old.waiting else old.follow()
    new = Master(cluster, "new")
    new.run()
    new.call(SubmitTopology(topology(), "r2"))
    again = new.call(OpenInjector("zeitgeist/queries", "p")).sequencer
    cluster.accepted["injector/zeitgeist/queries"] = again
    old.step()
    old.handle(SnapshotLoaded(stale))
    assert not any(isinstance(effect, Drop) for effect in old.waiting), "that was read before the numbers were reserved"
    old.run()
    assert cluster.accepted == {"injector/zeitgeist/queries": again}
    assert old.stepped_down


@pytest.mark.guarantee("G7", section="5.2")
def test_a_stream_returns_once_its_old_injectors_are_forgotten() -> None:
    cluster = Cluster()
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r1"))
    cluster.accepted["injector/zeitgeist/queries"] = master.call(OpenInjector("zeitgeist/queries", "p")).sequencer
    master.ask(CancelTopology("zeitgeist"))
    submission = master.ask(SubmitTopology(topology(), "r2"))
    failed = 0
    while submission not in master.answers and (master.waiting or master.follow()):
        if not master.waiting:
            continue
        first = master.waiting[0]
        if isinstance(first, Drop) and first.injectors:
            failed += 1
            master.waiting.pop(0)
            master.handle(StoreFailed(first.operation, "the authority is away", retry=False))
        else:
            master.step()
    refused = master.answers[submission]
    assert isinstance(refused, RequestError)
    assert "the authority is away" in str(refused)
    assert failed == 2
    master.call(SubmitTopology(topology(), "r3"))
    assert cluster.accepted == {}
    assert cluster.catalog().injectors == {}


def _cancel_while_the_authority_is_away(master: Master) -> None:
    """Cancel ``zeitgeist``, whose state cannot be removed yet."""
    _ask_while_the_authority_is_away(master, CancelTopology("zeitgeist"))


def _ask_while_the_authority_is_away(master: Master, request: CancelTopology | UpdateTopology) -> None:
    master.ask(request)
    while not (master.waiting and isinstance(master.waiting[0], Drop)):
        if master.waiting:
            master.step()
        else:
            assert master.follow(), "nothing is deleted"
    drop = master.waiting.pop(0)
    assert isinstance(drop, Drop)
    master.handle(StoreFailed(drop.operation, "the authority is away", retry=False))
    master.run()


@pytest.mark.guarantee("G7", section="7.1")
def test_a_returning_stream_has_a_new_log_beside_the_old_one() -> None:
    cluster = Cluster()
    cluster.join("w1")
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r1"))
    master.call(OpenInjector("zeitgeist/queries", "p"))
    _cancel_while_the_authority_is_away(master)
    former = {stream: log.incarnation for stream, log in cluster.catalog().logs.items()}
    assert set(former) == {"zeitgeist/dips", "zeitgeist/dead-letters"}
    master.ask(SubmitTopology(topology(), "r2"))
    while cluster.catalog().topologies["zeitgeist"].state != catalog.TOPOLOGY_STATE_RUNNING:
        master.step() if master.waiting else master.follow()
    known = cluster.catalog()
    assert set(known.logs) == set(former)
    for stream, log in known.logs.items():
        assert log.incarnation != former[stream]
        (owned,) = known.maps[log.incarnation]
        assert cluster.has_journal(owned.journal)
        assert owned.owner.worker_id == "w1"
        (ended,) = known.maps[former[stream]]
        assert not ended.HasField("owner")
    master.run()
    master.tick(int(seconds(3)))
    assert not set(cluster.catalog().maps) & set(former.values())


@pytest.mark.guarantee("G7", section="7.1")
def test_a_subscribers_log_does_not_come_back_with_its_stream() -> None:
    cluster = Cluster()
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r1"))
    master.call(EnsureLog("zeitgeist/windows"))
    master.call(OpenInjector("zeitgeist/queries", "p"))
    _cancel_while_the_authority_is_away(master)
    former = cluster.catalog().logs["zeitgeist/windows"].incarnation
    master.call(SubmitTopology(topology(), "r2"))
    assert "zeitgeist/windows" not in cluster.catalog().logs
    master.tick(int(seconds(3)))
    assert former not in cluster.catalog().maps
    assert master.call(EnsureLog("zeitgeist/windows")).created


@pytest.mark.guarantee("G7", section="7.1")
def test_a_stream_that_an_update_restores_has_a_new_log() -> None:
    cluster = Cluster()
    master = Master(cluster)
    with_clicks = topology(streams=[source("queries"), source("clicks")])
    master.call(SubmitTopology(with_clicks, "r1"))
    master.call(OpenInjector("zeitgeist/clicks", "p"))
    former = cluster.catalog().logs["zeitgeist/clicks"].incarnation
    _ask_while_the_authority_is_away(master, UpdateTopology(topology(), "r1"))
    master.call(UpdateTopology(with_clicks, "r2"))
    assert cluster.catalog().logs["zeitgeist/clicks"].incarnation != former
    master.tick(int(seconds(3)))
    assert former not in cluster.catalog().maps


def test_what_cannot_be_deleted_delays_no_call_and_is_retried() -> None:
    cluster = Cluster()
    master = Master(cluster)
    record = master.call(SubmitTopology(topology(), "r1"))
    _cancel_while_the_authority_is_away(master)
    cluster.join("w1")
    other = master.call(SubmitTopology(topology("other"), "r1"))
    assert set(cluster.catalog().maps) > {*record.incarnations.values(), *other.incarnations.values()}
    master.tick(int(seconds(3)))
    assert not set(cluster.catalog().maps) & set(record.incarnations.values())


@pytest.mark.guarantee("G7", section="7.2")
async def test_forgetting_fails_while_no_process_serves_the_shard() -> None:
    with pytest.raises(RequestError) as caught:
        await Observer().forget(Catalog(), "injector/zeitgeist/queries", 1)
    assert caught.value.code is FailureCode.UNAVAILABLE


def test_cancelled_topologies_are_forgotten_after_a_day() -> None:
    cluster = Cluster()
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r1"), now=0)
    master.call(CancelTopology("zeitgeist"), now=0)
    master.tick(int(hours(23)))
    assert "zeitgeist" in cluster.catalog().topologies
    master.tick(int(hours(25)))
    assert "zeitgeist" not in cluster.catalog().topologies


def test_a_core_that_fails_at_the_store_rests_until_an_event() -> None:
    cluster = Cluster()
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r1"))
    ticket = master.ask(EnsureLog("zeitgeist/windows"))
    create = master.waiting.pop(0)
    assert isinstance(create, CreateJournals)
    assert len(master.core.step(StoreFailed(create.operation, "down", retry=False), master.now)) == 1
    assert ticket not in master.answers


@pytest.mark.guarantee("G8", section="7.1")
def test_a_clock_that_is_set_back_keeps_nothing_waiting() -> None:
    _, master = draining()
    master.tick(int(hours(30)))
    looks = len(master.observing)
    master.tick(int(seconds(70)))
    master.tick(int(seconds(71)))
    assert len(master.observing) > looks, "the topology that drains is looked at"
    master.tick(int(hours(30)))
    master.ask(CancelTopology("zeitgeist"), now=int(hours(30)))
    transact = master.waiting.pop(0)
    assert isinstance(transact, Transact)
    assert isinstance(master.core.step(TransactionEnded(transact.operation, None), master.now)[0], Reload)
    assert not any(isinstance(one, Reload) for one in master.core.step(Tick(), seconds(80)))
    assert any(isinstance(one, Reload) for one in master.core.step(Tick(), seconds(83))), "it is read again"


@pytest.mark.guarantee("G13")
async def test_channels_to_removed_servers_are_closed() -> None:
    """In some networks, a worker that starts again has another address."""
    observer = Observer()
    for number in range(1, 50):
        observer.channel(f"10.0.0.{number}:7450")
        asked = observer.channel("10.0.0.100:7450")
        await observer.sweep()
        assert len(kept(observer, grpc.aio.Channel)) <= 3
    assert observer.channel("10.0.0.100:7450") is asked
    await observer.close()


@pytest.mark.guarantee("G13")
def test_a_drain_that_has_ended_leaves_nothing_behind() -> None:
    _, master = draining()
    drains: Any = master.core.housekeeping.drains
    through, waiting = drains._through, drains._waiting  # noqa: SLF001  # what is kept of ended ones shows nowhere else
    through.update(["long-ago", "zeitgeist"])
    waiting["long-ago"] = ["its injectors"]
    master.tick(int(seconds(5)))
    assert "long-ago" not in drains._through | drains._waiting.keys()  # noqa: SLF001  # what is kept of ended ones shows nowhere else


@pytest.mark.guarantee("G7", section="7.1")
def test_each_life_of_an_injected_stream_has_its_number() -> None:
    """Regression: the topology's submission time identified a life.

    Two updates begin another life without changing that time.
    """
    cluster = Cluster()
    master = Master(cluster)
    group = "injector/zeitgeist/queries"

    def floor() -> int | None:
        return cluster.catalog().injector_floors().get(group)

    whole = topology()
    without = topology()
    del without.streams[:]
    without.streams.append(source("zeitgeist/other"))
    del without.computations[:]
    without.computations.append(computation("w", {"zeitgeist/other": "k"}, []))
    master.call(SubmitTopology(whole, "r1"))
    first = floor()
    opened = master.call(OpenInjector("zeitgeist/queries", "p")).sequencer
    reads = computation("r", {"zeitgeist/queries": "q"}, ["other"])
    master.call(SubmitTopology(topology("reader", [external("zeitgeist/queries")], [reads]), "r2"))
    assert first is not None
    assert first <= opened
    assert floor() == first, "a reader begins no life"
    lives = cluster.catalog().injector_lives()
    master.call(UpdateTopology(without, "u1", 0))
    assert floor() is None
    master.call(UpdateTopology(whole, "u2", 0))
    second = floor()
    assert second is not None
    assert second > opened
    assert cluster.catalog().injector_lives() != lives
    assert master.call(OpenInjector("zeitgeist/queries", "p")).sequencer >= second
    master.call(CancelTopology("zeitgeist"))
    master.call(SubmitTopology(whole, "r3"))
    third = floor()
    assert third is not None
    assert third > second
