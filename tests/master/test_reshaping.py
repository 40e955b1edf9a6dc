"""Moves, splits and merges: their changes, their refusals, and the release of parents (sections 6.2, 7.1; G11)."""

from __future__ import annotations

import pytest

from millwheel.master.messages import (
    CancelTopology,
    DrainTopology,
    IntervalName,
    Intervals,
    LoadsMeasured,
    MergeIntervals,
    MoveInterval,
    ReleaseParents,
    Request,
    SplitInterval,
    SubmitTopology,
    Transact,
    TransactionEnded,
)
from millwheel.master.settings import MasterSettings
from millwheel.model.catalog import Catalog
from millwheel.model.keys import KeyInterval
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.testing.store_effects import result_of

from .harness import Cluster, Master, topology

COUNTER = IntervalName("zeitgeist", "window-counter")
CODE = topology().code.digest


def running(points: tuple[bytes, ...] = (b"m",), workers: tuple[str, ...] = ("w1", "w2")) -> tuple[Cluster, Master]:
    cluster = Cluster()
    for worker in workers:
        cluster.join(worker)
    master = Master(cluster, settings=MasterSettings(split_points=points))
    master.call(SubmitTopology(topology(), "r1"))
    return cluster, master


def at(key: bytes) -> IntervalName:
    return IntervalName("zeitgeist", "window-counter", key=key)


def of(journal: str) -> IntervalName:
    return IntervalName(journal=journal)


def here(known: Catalog, key: bytes) -> catalog.IntervalRecord:
    found = known.locate(known.topologies["zeitgeist"].incarnations["window-counter"], key)
    assert found is not None
    return found


def bounds(known: Catalog) -> list[KeyInterval]:
    incarnation = known.topologies["zeitgeist"].incarnations["window-counter"]
    return list(known.maps[incarnation].intervals)


def make(master: Master, request: Request) -> list[catalog.IntervalRecord]:
    answer = master.call(request)
    assert isinstance(answer, Intervals)
    return list(answer.intervals)


def refused(master: Master, request: Request) -> RequestError:
    revision = master.cluster.state.revision
    with pytest.raises(RequestError) as caught:
        master.call(request)
    assert master.cluster.state.revision == revision, "a refused request changed something"
    return caught.value


def release(master: Master, *intervals: catalog.IntervalRecord) -> list[catalog.IntervalRecord]:
    return make(master, ReleaseParents({one.journal: one.sequencer for one in intervals}))


# Moves.


@pytest.mark.paper(section="7.1")
def test_a_move_changes_owner_and_sequencer_and_nothing_else() -> None:
    cluster, master = running()
    before = here(cluster.catalog(), b"a")
    (moved,) = make(master, MoveInterval(at(b"a"), "w2" if before.owner.worker_id == "w1" else "w1"))
    assert moved.journal == before.journal
    assert moved.keys == before.keys
    assert moved.sequencer > before.sequencer
    assert moved.owner.worker_id != before.owner.worker_id
    assert moved.owner_revision == cluster.catalog().registration(moved.owner.worker_id)
    assert here(cluster.catalog(), b"a") == moved
    assert not moved.parents


def test_a_move_without_a_target_goes_to_the_least_loaded_other() -> None:
    cluster, master = running(workers=("w1",))
    for worker in ("w2", "w3"):
        cluster.join(worker)
    master.run()
    make(master, MoveInterval(at(b"a"), "w2"))
    (moved,) = make(master, MoveInterval(at(b"z")))
    assert moved.owner.worker_id == "w3"


def test_a_move_by_load_uses_the_loads_owners_reported() -> None:
    cluster, master = running(workers=("w1", "w2", "w3"))
    known = cluster.catalog()
    mine = here(known, b"a").owner.worker_id
    others = [worker for worker in ("w1", "w2", "w3") if worker != mine]
    busy = {one.interval.journal: 0.4 for one in known.owned_by(others[0])}
    master.handle(LoadsMeasured(busy))
    (moved,) = make(master, MoveInterval(at(b"a")))
    assert moved.owner.worker_id == others[1]


def test_a_move_to_where_it_is_changes_no_owner() -> None:
    cluster, master = running()
    before = here(cluster.catalog(), b"a")
    (same,) = make(master, MoveInterval(at(b"a"), before.owner.worker_id))
    assert (same.sequencer, same.owner) == (before.sequencer, before.owner)


def test_a_streams_log_moves_but_is_never_split_or_merged() -> None:
    cluster, master = running()
    known = cluster.catalog()
    journal = known.maps[known.logs["zeitgeist/dips"].incarnation].record.intervals[0].journal
    (moved,) = make(master, MoveInterval(of(journal)))
    assert moved.journal == journal
    error = refused(master, SplitInterval(of(journal), b"k"))
    assert (error.code, error.reason) == (FailureCode.FAILED_PRECONDITION, "IS_LOG")
    assert "logs are never split" in error.message
    assert "all the keys already" in refused(master, MergeIntervals(of(journal))).message


def test_a_worker_bound_to_other_code_gets_nothing() -> None:
    cluster, master = running()
    cluster.join("other", package="cd" * 32)
    master.run()
    error = refused(master, MoveInterval(at(b"a"), "other"))
    assert (error.code, error.reason) == (FailureCode.FAILED_PRECONDITION, "WORKER_UNFIT")
    assert "those that may run it: w1, w2" in error.remedy
    assert refused(master, SplitInterval(at(b"a"), b"b", "other")).reason == "WORKER_UNFIT"


# Splits.


@pytest.mark.guarantee("G11", section="7.1")
def test_a_split_covers_the_same_keys_and_names_its_start() -> None:
    cluster, master = running()
    before = here(cluster.catalog(), b"a")
    lower, upper = make(master, SplitInterval(at(b"a"), b"g"))
    assert bounds(cluster.catalog()) == [KeyInterval(b"", b"g"), KeyInterval(b"g", b"m"), KeyInterval(b"m", None)]
    for child in (lower, upper):
        assert [parent.journal for parent in child.parents] == [before.journal]
        assert child.parents[0].keys == before.keys
        assert child.sequencer > before.sequencer
        assert child.owner == before.owner, "children stay where the state is"
        assert not cluster.has_journal(child.journal), "the first owner of a child creates its journal"
    assert lower.journal != upper.journal != before.journal
    assert lower.sequencer != upper.sequencer
    assert cluster.has_journal(before.journal)
    assert cluster.catalog().journal_lives(before.journal)


def test_the_upper_half_goes_where_the_request_names() -> None:
    cluster, master = running()
    mine = here(cluster.catalog(), b"a").owner.worker_id
    other = "w2" if mine == "w1" else "w1"
    lower, upper = make(master, SplitInterval(at(b"a"), b"g", other))
    assert (lower.owner.worker_id, upper.owner.worker_id) == (mine, other)


@pytest.mark.parametrize(("key", "part"), [(b"m", "outside"), (b"z", "outside"), (b"", "nothing would be below")])
def test_a_key_that_does_not_divide_an_interval_is_refused(key: bytes, part: str) -> None:
    _, master = running()
    error = refused(master, SplitInterval(at(b"a"), key))
    assert (error.code, error.reason) == (FailureCode.INVALID_ARGUMENT, "KEY_OUTSIDE")
    assert part in error.message
    assert "['', 'm')" in error.message


def test_lineage_is_one_deep_until_the_owner_releases_parents() -> None:
    cluster, master = running()
    parent = here(cluster.catalog(), b"a").journal
    lower, _ = make(master, SplitInterval(at(b"a"), b"g"))
    for request in (
        SplitInterval(of(lower.journal), b"c"),
        MergeIntervals(of(lower.journal)),
        MergeIntervals(at(b"h")),
    ):
        error = refused(master, request)
        assert (error.code, error.reason) == (FailureCode.FAILED_PRECONDITION, "HAS_PARENTS")
        assert parent in error.message
        assert f"waits for its owner {lower.owner.worker_id}" in error.remedy


# Merges.


@pytest.mark.guarantee("G11", section="7.1")
def test_a_merge_makes_one_child_of_two_neighbours() -> None:
    cluster, master = running(points=(b"g", b"m"))
    known = cluster.catalog()
    left, right = here(known, b"a"), here(known, b"h")
    (child,) = make(master, MergeIntervals(at(b"a")))
    assert bounds(cluster.catalog()) == [KeyInterval(b"", b"m"), KeyInterval(b"m", None)]
    assert [parent.journal for parent in child.parents] == [left.journal, right.journal]
    assert [parent.keys for parent in child.parents] == [left.keys, right.keys]
    assert child.sequencer > max(left.sequencer, right.sequencer)
    assert child.owner == left.owner
    assert all(cluster.catalog().journal_lives(one.journal) for one in (left, right))


def test_the_last_interval_has_nothing_to_merge_with() -> None:
    _, master = running()
    error = refused(master, MergeIntervals(at(b"z")))
    assert (error.code, error.reason) == (FailureCode.FAILED_PRECONDITION, "NO_NEIGHBOUR")
    assert error.remedy == "name the interval before it"


# Release of parents.


@pytest.mark.paper(section="6.2")
def test_parents_and_journals_go_when_every_child_released_them() -> None:
    cluster, master = running()
    parent = here(cluster.catalog(), b"a").journal
    lower, upper = make(master, SplitInterval(at(b"a"), b"g"))
    release(master, lower)
    assert not here(cluster.catalog(), b"a").parents
    assert here(cluster.catalog(), b"h").parents
    assert cluster.has_journal(parent), "the other child still reads it"
    release(master, upper)
    assert not here(cluster.catalog(), b"h").parents
    assert not cluster.has_journal(parent)
    assert not cluster.catalog().retired
    assert not cluster.catalog().journal_lives(parent)
    again = make(master, SplitInterval(at(b"a"), b"c"))
    assert [one.parents[0].journal for one in again] == [lower.journal] * 2


def test_a_merged_child_releases_both_parents() -> None:
    cluster, master = running(points=(b"g", b"m"))
    known = cluster.catalog()
    parents = [here(known, key).journal for key in (b"a", b"h")]
    (child,) = make(master, MergeIntervals(at(b"a")))
    release(master, child)
    assert not any(cluster.has_journal(parent) for parent in parents)
    assert not here(cluster.catalog(), b"a").parents


@pytest.mark.paper(section="6.2")
def test_a_deposed_owners_report_of_its_parents_is_ignored() -> None:
    cluster, master = running()
    lower, _ = make(master, SplitInterval(at(b"a"), b"g"))
    other = "w2" if lower.owner.worker_id == "w1" else "w1"
    make(master, MoveInterval(of(lower.journal), other))
    assert release(master, lower) == []
    assert here(cluster.catalog(), b"a").parents


def test_a_dead_masters_undropped_journal_goes_to_the_next() -> None:
    cluster, master = running()
    parent = here(cluster.catalog(), b"a").journal
    children = make(master, SplitInterval(at(b"a"), b"g"))
    master.ask(ReleaseParents({one.journal: one.sequencer for one in children}))
    while not isinstance(master.waiting[0], Transact):
        master.step()
    master.step()
    assert set(cluster.catalog().retired) == {parent}
    assert cluster.has_journal(parent)
    Master(cluster, "next").run()
    assert not cluster.has_journal(parent)
    assert not cluster.catalog().retired


def test_a_cancelled_topology_leaves_no_parents_journal() -> None:
    cluster, master = running()
    parent = here(cluster.catalog(), b"a").journal
    lower, _ = make(master, SplitInterval(at(b"a"), b"g"))
    result_of(cluster.store.create_journal(lower.journal))
    master.call(CancelTopology("zeitgeist"))
    assert not cluster.has_journal(parent)
    assert not cluster.has_journal(lower.journal)


# Each change takes effect once.


def test_a_repeated_request_is_the_same_request() -> None:
    for request in (
        MoveInterval(at(b"a"), request_id="r"),
        SplitInterval(at(b"a"), b"g", request_id="r"),
        MergeIntervals(at(b"a"), request_id="r"),
    ):
        cluster, master = running()
        first = make(master, request)
        revision = cluster.state.revision
        assert make(master, request) == first
        assert make(Master(cluster, "next"), request) == first
        assert cluster.catalog().revision <= revision + 2, "only the election changed anything"


def test_one_request_id_for_two_verbs_names_two_requests() -> None:
    _, master = running()
    make(master, MoveInterval(at(b"a"), request_id="r"))
    assert len(make(master, SplitInterval(at(b"a"), b"g", request_id="r"))) == 2


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_outcome_is_settled_by_reading_again(applied: bool) -> None:
    for request in (
        MoveInterval(at(b"a"), request_id="r"),
        SplitInterval(at(b"a"), b"g", request_id="r"),
        MergeIntervals(at(b"a"), request_id="r"),
    ):
        cluster, master = running()
        ticket = master.ask(request)
        while not isinstance(master.waiting[0], Transact):
            master.step()
        lost = master.waiting.pop(0)
        assert isinstance(lost, Transact)
        if applied:
            assert cluster.transact(lost.compares, lost.puts, lost.deletes).committed
        drawn = cluster.catalog().drawn
        master.handle(TransactionEnded(lost.operation, None))
        master.run()
        answer = master.answers[ticket]
        assert isinstance(answer, Intervals)
        assert len(answer.intervals) == (2 if isinstance(request, SplitInterval) else 1)
        assert (cluster.catalog().drawn > drawn) is not applied


def test_what_was_decided_on_an_older_owners_load_is_not_done() -> None:
    cluster, master = running()
    old = here(cluster.catalog(), b"a")
    make(master, MoveInterval(at(b"a")))
    for request in (
        MoveInterval(of(old.journal), expected=old.sequencer),
        SplitInterval(of(old.journal), b"g", expected=old.sequencer),
        MergeIntervals(of(old.journal), expected=old.sequencer),
    ):
        assert refused(master, request).code is FailureCode.ABORTED


@pytest.mark.paper(section="6.2")
def test_a_deposed_masters_split_changes_nothing() -> None:
    cluster, old = running()
    old.ask(SplitInterval(at(b"a"), b"g"))
    while not isinstance(old.waiting[0], Transact):
        old.step()
    Master(cluster, "next").run()
    revision = cluster.state.revision
    old.run()
    assert cluster.state.revision == revision
    assert len(bounds(cluster.catalog())) == 2


@pytest.mark.paper(section="7.1")
def test_a_split_without_living_owners_waits_for_one() -> None:
    cluster, master = running()
    for worker in ("w1", "w2"):
        cluster.leave(worker)
    master.run()
    lower, upper = make(master, SplitInterval(at(b"a"), b"g"))
    assert not lower.HasField("owner")
    assert lower.sequencer > 0
    cluster.join("w3")
    master.run()
    known = cluster.catalog()
    assert {here(known, key).owner.worker_id for key in (b"a", b"h")} == {"w3"}
    assert here(known, b"h").sequencer > upper.sequencer
    assert here(known, b"h").parents == upper.parents, "who opens it late starts from the same journal"


# Wrong names.


def test_unknown_names_are_reported_with_the_nearest() -> None:
    _, master = running()
    for name, code, part in (
        (IntervalName("zeitgist", "window-counter", key=b"a"), FailureCode.NOT_FOUND, "did you mean 'zeitgeist'"),
        (IntervalName("zeitgeist", "window-countr", key=b"a"), FailureCode.NOT_FOUND, "did you mean 'window-counter'"),
        (of("window-counter.1.j9999"), FailureCode.NOT_FOUND, "it never was, or was split or merged"),
        (of("nonsense"), FailureCode.NOT_FOUND, "no interval has journal 'nonsense'"),
        (COUNTER, FailureCode.INVALID_ARGUMENT, "has 2 intervals, and none of them is named"),
        (at(b"k" * 5_000), FailureCode.INVALID_ARGUMENT, "a key of 5,000 bytes"),
    ):
        error = refused(master, MoveInterval(name))
        assert error.code is code
        assert part in error.message
    error = refused(master, MoveInterval(at(b"a"), "w3"))
    assert (error.code, error.reason) == (FailureCode.NOT_FOUND, "WORKER_UNKNOWN")
    assert "registered: w1, w2" in error.remedy


def test_the_only_interval_needs_no_further_name() -> None:
    cluster, master = running(points=())
    assert len(bounds(cluster.catalog())) == 1
    assert len(make(master, SplitInterval(COUNTER, b"g"))) == 2


def test_without_another_worker_nothing_moves() -> None:
    _, master = running(workers=("w1",))
    error = refused(master, MoveInterval(at(b"a")))
    assert (error.code, error.reason) == (FailureCode.FAILED_PRECONDITION, "NO_OTHER_WORKER")


def test_intervals_of_a_topology_that_has_ended_stay_as_they_are() -> None:
    _, master = running()
    master.call(DrainTopology("zeitgeist"))
    assert len(make(master, SplitInterval(at(b"a"), b"g"))) == 2
    master.call(CancelTopology("zeitgeist"))
    error = refused(master, MoveInterval(at(b"z")))
    assert (error.code, error.reason) == (FailureCode.FAILED_PRECONDITION, "NOT_RUNNING")
