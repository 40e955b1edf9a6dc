"""The event log: an event exactly if its change took effect, numbers without gaps, a bound, and sums (section 7.1)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millwheel.master.event_log import ASSIGNED, MAX_EVENTS, assigned_text, owner_changes
from millwheel.master.event_watch import EventWatch
from millwheel.master.messages import (
    IntervalName,
    MergeIntervals,
    MoveInterval,
    OpenInjector,
    PauseTopology,
    RecordEvent,
    RequestReceived,
    ResumeTopology,
    SetTopologyQuota,
    SplitInterval,
    SubmitTopology,
    Transact,
    TransactionEnded,
    UpdateTopology,
)
from millwheel.master.settings import MasterSettings
from millwheel.model.time import seconds
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as cluster_wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.rpc.v1.common_pb2 import Endpoint
from tests.master.harness import Cluster, Master, topology


def started(intervals: int = 2, workers: Sequence[str] = ("a", "b")) -> tuple[Cluster, Master]:
    cluster = Cluster()
    for worker in workers:
        cluster.join(worker)
    settings = MasterSettings(intervals_per_computation=intervals, maps_per_transaction=1)
    master = Master(cluster, settings=settings)
    master.call(SubmitTopology(topology(), "first"), now=seconds(1))
    return cluster, master


def events(cluster: Cluster) -> list[catalog.EventRecord]:
    kept = cluster.catalog().events
    return [catalog.EventRecord.FromString(kept[number]) for number in sorted(kept)]


def with_code(spec: specs.TopologySpec) -> specs.TopologySpec:
    spec.code.digest = "cd" * 32
    return spec


def test_changes_of_a_topology_have_their_before_and_after() -> None:
    cluster, master = started()
    master.call(UpdateTopology(with_code(topology()), "u1"), now=seconds(2))
    master.call(PauseTopology("zeitgeist"), now=seconds(3))
    master.call(ResumeTopology("zeitgeist"), now=seconds(30))
    found = [one for one in events(cluster) if one.kind.startswith("topology.")]
    assert [one.kind for one in found] == [f"topology.{verb}" for verb in ("submitted", "updated", "paused", "resumed")]
    assert [one.at_us for one in found] == [seconds(1), seconds(2), seconds(3), seconds(30)]
    assert (found[0].topology, found[0].actor, found[0].before) == ("zeitgeist", "master", "")
    assert found[1].before.startswith("version 1, ")
    assert found[1].after == "version 2, code cdcdcdcdcdcd"
    assert (found[2].before, found[2].after) == ("running", "paused")


def test_a_rollback_says_which_version_it_is_again() -> None:
    cluster, master = started()
    master.call(UpdateTopology(with_code(topology()), "u1"), now=seconds(2))
    master.call(UpdateTopology(topology(), "u2"), now=seconds(3))
    updates = [one.text for one in events(cluster) if one.kind == "topology.updated"]
    assert updates == [
        "topology zeitgeist is updated: version 2",
        "topology zeitgeist is updated: version 3, the same as version 1",
    ]


def test_a_quota_is_an_event() -> None:
    cluster, master = started()
    master.call(SetTopologyQuota("zeitgeist", catalog.TopologyQuota(weight=2, records_per_second=5_000)))
    event = events(cluster)[-1]
    assert (event.kind, event.before, event.after) == ("topology.limited", "weight 1", "weight 2, 5,000 records/s")


def test_a_repeated_request_is_no_second_event() -> None:
    cluster, master = started()
    before = len(events(cluster))
    master.call(SubmitTopology(topology(), "first"))
    master.call(UpdateTopology(topology(), "same"))
    master.call(OpenInjector("zeitgeist/queries", "p"))
    with pytest.raises(RequestError):
        master.call(PauseTopology("none"))
    assert len(events(cluster)) == before


def test_reshapes_say_which_keys_and_owners() -> None:
    cluster, master = started(1, ["a"])
    cluster.join("b")
    master.run()
    name = IntervalName("zeitgeist", "window-counter")
    master.call(MoveInterval(name, "b"))
    master.call(SplitInterval(name, b"m"))
    moved, split = events(cluster)[-2:]
    assert (moved.kind, moved.actor, moved.topology, moved.subject) == (
        "interval.moved",
        "balancer",
        "zeitgeist",
        "window-counter",
    )
    assert (moved.before, moved.after) == ("['', +inf) at a", "['', +inf) at b")
    assert (split.kind, split.after) == ("interval.split", "['', 'm') at b; ['m', +inf) at b")
    with pytest.raises(RequestError, match="still rests on"):
        master.call(MergeIntervals(IntervalName("zeitgeist", "window-counter", key=b"")))
    assert events(cluster)[-1] == split, "a refused change is no event"


def test_the_caller_is_the_actor() -> None:
    cluster, master = started()
    master.handle(RequestReceived(99, PauseTopology("zeitgeist"), "10.0.0.7"))
    master.run()
    assert [one.actor for one in events(cluster) if one.kind == "topology.paused"] == ["10.0.0.7"]


def test_a_mass_reassignment_is_one_event() -> None:
    cluster, master = started(2_000, ["a"])
    cluster.join("b")
    cluster.leave("a")
    before, revision = len(events(cluster)), cluster.state.revision
    master.run()
    assert cluster.state.revision - revision >= 2, "it takes several transactions"
    (event,) = events(cluster)[before:]
    assert event.kind == ASSIGNED
    (change,) = event.owners
    assert (change.before, change.after) == ("a", "b")
    assert change.intervals >= 4_000
    assert event.text == f"{change.intervals:,} intervals go to other owners, because a no longer owns them"
    cluster.leave("b")
    cluster.join("a")
    master.tick(seconds(3_600))
    assert [one.kind for one in events(cluster)[before:]] == [ASSIGNED, ASSIGNED], "an hour later is another event"


def test_assignments_are_described_by_their_owners() -> None:
    """Regression: intervals without an owner went "to other owners", and several workers no longer "owns" them."""
    back = owner_changes([(("", "w1"), 9)])
    assert assigned_text(back) == "9 intervals get an owner"
    gone = owner_changes([(("w1", "w3"), 2), (("w2", "w3"), 1)])
    assert assigned_text(gone) == "3 intervals go to other owners, because w1, w2 no longer own them"
    one = owner_changes([(("w1", "w2"), 1)])
    assert assigned_text(one) == "1 interval goes to another owner, because w1 no longer owns it"
    assert assigned_text(owner_changes([(("", "w2"), 1)])) == "1 interval gets an owner"


def test_only_the_newest_events_are_kept() -> None:
    cluster, master = started()
    for number in range(MAX_EVENTS + 20):
        master.call(RecordEvent(catalog.EventRecord(kind="test.made", text=str(number))))
    found = events(cluster)
    assert len(found) == MAX_EVENTS
    last = found[-1].number
    assert [one.number for one in found] == list(range(last - MAX_EVENTS + 1, last + 1))
    assert found[-1].text == str(MAX_EVENTS + 19)


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_outcome_makes_one_event(applied: bool) -> None:
    cluster, master = started()
    ticket = master.ask(PauseTopology("zeitgeist"))
    lost = master.waiting.pop(0)
    assert isinstance(lost, Transact)
    if applied:
        assert cluster.transact(lost.compares, lost.puts, lost.deletes).committed
    master.handle(TransactionEnded(lost.operation, None))
    master.run()
    assert not isinstance(master.answers[ticket], RequestError)
    found = events(cluster)
    assert [one.kind for one in found].count("topology.paused") == 1
    assert [one.number for one in found] == list(range(1, len(found) + 1))


@pytest.mark.parametrize("applied", [True, False])
def test_an_observed_event_of_unknown_outcome_is_one(applied: bool) -> None:
    cluster, master = started()
    master.ask(RecordEvent(catalog.EventRecord(kind="worker.lost", subject="a", text="worker a is gone")))
    lost = master.waiting.pop(0)
    assert isinstance(lost, Transact)
    if applied:
        assert cluster.transact(lost.compares, lost.puts, lost.deletes).committed
    master.handle(TransactionEnded(lost.operation, None))
    master.run()
    assert [one.kind for one in events(cluster)].count("worker.lost") == 1


def test_a_deposed_leader_adds_no_event() -> None:
    cluster, master = started()
    before = events(cluster)
    ticket = master.ask(PauseTopology("zeitgeist"))
    Master(cluster, "other")
    master.run()
    assert isinstance(master.answers[ticket], RequestError)
    assert [one for one in events(cluster) if one.kind == "topology.paused"] == []
    assert events(cluster)[: len(before)] == before


# What no change explains.


def failing(computation: str) -> cluster_wire.ComputationFailures:
    return cluster_wire.ComputationFailures(
        topology="t", computation=computation, text=f"{computation} raises; next attempt in 1 s"
    )


def workers(*names: str) -> dict[str, catalog.WorkerRecord]:
    return {name: catalog.WorkerRecord() for name in names}


def kinds(found: Sequence[catalog.EventRecord]) -> list[tuple[str, str]]:
    return [(one.kind, one.subject) for one in found]


def test_workers_and_failures_are_noted_at_their_begin_and_end() -> None:
    watch = EventWatch({})
    assert kinds(watch.observe(workers("a"), [failing("c")])) == [("worker.joined", "a"), ("hooks.failing", "c")]
    assert watch.observe(workers("a"), [failing("c")]) == []
    assert kinds(watch.observe(workers("b"), [])) == [
        ("worker.lost", "a"),
        ("worker.joined", "b"),
        ("hooks.recovered", "c"),
    ]


def departed(name: str, started: int = 0) -> dict[str, catalog.WorkerRecord]:
    return {name: catalog.WorkerRecord(endpoint=Endpoint(worker_id=name, address="h:1"), started_at_us=started)}


def test_the_departure_of_an_earlier_life_says_nothing() -> None:
    """A version that does not know departures starts a worker again, and leaves the record."""
    watch, before = EventWatch({}), departed("a", started=1)
    watch.observe(departed("a", started=2), [], left=before)
    assert kinds(watch.observe({}, [], left=before)) == [("worker.lost", "a")]
    assert watch.left == {}
    watch.observe(departed("a", started=3), [], left=before)
    assert kinds(watch.observe({}, [], left=departed("a", started=3))) == [("worker.left", "a")]


def test_a_new_leader_knows_who_was_stopped_in_order() -> None:
    watch = EventWatch({})
    found = watch.observe(workers("a", "b"), [])
    found += watch.observe(workers("b"), [], left=departed("a"))
    assert kinds(found)[-1] == ("worker.left", "a")
    assert watch.left == {"a": "h:1"}
    log = {number: one.SerializeToString() for number, one in enumerate(found, 1)}
    assert EventWatch(log).left == {"a": "h:1"}
    found += watch.observe(workers("a", "b"), [])
    assert watch.left == {}
    log = {number: one.SerializeToString() for number, one in enumerate(found, 1)}
    assert EventWatch(log).left == {}
    found = watch.observe(workers("b"), [])
    assert kinds(found) == [("worker.lost", "a")]


def test_only_the_last_that_left_are_remembered() -> None:
    watch = EventWatch({})
    for number in range(1_002):
        watch.observe(workers(f"w{number}"), [])
        watch.observe({}, [], left=departed(f"w{number}"))
    watch.observe({}, [])
    assert list(watch.left) == [f"w{number}" for number in range(2, 1_002)]


def test_a_lost_lease_of_a_master_outlives_its_restart() -> None:
    lost = catalog.MasterRecord(interrupted_at_us=1_000_000, interruption="it did not get to run")
    watch = EventWatch({})
    (event,) = watch.observe({}, [], masters={"m1": lost, "m2": catalog.MasterRecord()})
    assert (event.kind, event.subject) == ("master.interrupted", "m1")
    assert event.text == "m1 lost its lease at 00:00:01 UTC: it did not get to run"
    assert watch.observe({}, [], masters={"m1": lost}) == []
    assert EventWatch({1: event.SerializeToString()}).observe({}, [], masters={"m1": lost}) == []
    again = catalog.MasterRecord(interrupted_at_us=2_000_000, interruption="it did not get to run")
    assert kinds(watch.observe({}, [], masters={"m1": again})) == [("master.interrupted", "m1")]


def test_a_failure_is_told_without_its_next_attempt() -> None:
    assert [one.text for one in EventWatch({}).observe({}, [failing("c")])] == ["c raises"]


def test_a_new_leader_goes_on_where_the_log_ends() -> None:
    first = EventWatch({})
    kept = [*first.observe(workers("a", "b"), [failing("c")]), *first.observe(workers("a", "b"), [])]
    log = {number: one.SerializeToString() for number, one in enumerate([*kept, *first.observe(workers("a"), [])], 1)}
    assert EventWatch(log).observe(workers("a"), []) == []
    assert kinds(EventWatch(log).observe({}, [failing("d")])) == [("worker.lost", "a"), ("hooks.failing", "d")]


def test_nothing_recovers_before_all_owners_have_reported() -> None:
    log = {1: EventWatch({}).observe({}, [failing("c")])[0].SerializeToString()}
    watch = EventWatch(log)
    assert watch.observe({}, [], lambda topology, computation: False) == [], "a new leader has no reports yet"
    assert watch.observe({}, [failing("c")], lambda topology, computation: False) == []
    assert watch.observe({}, [], lambda topology, computation: False) == [], "an interval has a new owner"
    assert kinds(watch.observe({}, [], lambda topology, computation: computation == "c")) == [("hooks.recovered", "c")]
