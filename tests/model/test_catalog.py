"""The catalog: one read model, the same whether it was listed or followed (sections 4.2, 7.1; G11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.coordination.contract import KeyChange, Put
from millwheel.coordination.state import CoordinatorState
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId, injector_group
from millwheel.model.interval_map import CoverageError, IntervalMap, initial_intervals, interval_to_proto
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as specs


def interval_map(incarnation: str, intervals: list[KeyInterval], owner: str = "") -> catalog.IntervalMapRecord:
    record = catalog.IntervalMapRecord(computation=incarnation)
    for index, interval in enumerate(intervals):
        added = record.intervals.add(keys=interval_to_proto(interval), journal=f"{incarnation}.j{index}")
        if owner:
            added.owner.worker_id = owner
    return record


def contents(known: Catalog) -> dict[str, object]:
    found = {
        name: value
        for name, value in vars(known).items()
        if name not in ("shape_version", "tables", "_listed", "_digests")
    }
    found["maps"] = {name: table.record for name, table in known.maps.items()}
    return found


VALUES = {
    keys.topology_key("t/1"): catalog.TopologyRecord(spec=specs.TopologySpec(name="t/1")),
    keys.chunk_key(IncarnationId("c.1"), 0): interval_map("c.1", [KeyInterval()]),
    keys.log_key("s"): catalog.StreamLogRecord(stream="s", incarnation=IncarnationId("s.log.2")),
    keys.worker_key("w%1"): catalog.WorkerRecord(started_at_us=5),
    keys.authority_key(0): catalog.AuthorityRecord(shard=0),
    keys.injector_key("s", "p/q"): catalog.InjectorRecord(stream="s", process="p/q", sequencer=3),
    keys.batch_key("q"): catalog.BatchCursorRecord(query="q", committed_batch=4),
}
PUTS = {key: record.SerializeToString() for key, record in VALUES.items()} | {keys.SEQUENCER: b"17", "else/where": b"?"}
STEPS = st.lists(st.tuples(st.sets(st.sampled_from(sorted(PUTS)), min_size=1), st.booleans()), max_size=20)


@given(STEPS, st.integers(0, 20))
def test_a_followed_catalog_equals_a_listed_one_from_any_start(steps: list[tuple[set[str], bool]], begin: int) -> None:
    state, followed, received = CoordinatorState(), Catalog(), 0
    for index, (touched, deletes) in enumerate(steps):
        puts = [] if deletes else [Put(key, PUTS[key]) for key in sorted(touched)]
        transition = state.decide((), puts, sorted(touched) if deletes else (), 0.0)
        assert transition is not None
        state.apply(transition)
        if index == begin:
            followed.load(state.list(""))
            before = repr(contents(followed))
            # The watch lags behind the reading: nothing old may come back, not even for a moment.
            for changes in state.changes_after("", 0):
                assert not followed.apply(changes)
                assert repr(contents(followed)) == before
        for changes in state.changes_after("", received):
            followed.apply(changes)
        received = state.revision
    listed = Catalog()
    listed.load(state.list(""))
    assert contents(followed) == contents(listed)


@pytest.mark.paper(section="6.2")
def test_a_registration_is_known_by_the_revision_that_created_it() -> None:
    known = Catalog()
    key = keys.worker_key("w")
    value = PUTS[keys.worker_key("w%1")]
    known.apply([KeyChange(key, value, 3)])
    known.apply([KeyChange(key, value, 5)])
    assert (known.registration("w"), known.modified(key)) == (3, 5)
    known.apply([KeyChange(key, None, 6)])
    assert (known.registration("w"), known.modified(key)) == (0, 0)
    known.apply([KeyChange(key, value, 8)])
    assert known.registration("w") == 8


def test_the_shape_grows_with_what_concerns_ownership_alone() -> None:
    known = Catalog()
    known.apply([KeyChange(keys.batch_key("q"), PUTS[keys.batch_key("q")], 1), KeyChange(keys.SEQUENCER, b"3", 1)])
    before = known.shape_version
    known.apply([KeyChange(keys.worker_key("w"), b"", 2)])
    assert known.shape_version == before + 1


def test_a_lapsed_registrations_intervals_are_not_the_workers() -> None:
    known = Catalog()
    record = interval_map("c.1", [KeyInterval(b"", b"m"), KeyInterval(b"m")], "w")
    record.intervals[0].owner_revision = 3
    record.intervals[1].owner_revision = 8
    known.apply([KeyChange(keys.chunk_key(IncarnationId("c.1"), 0), record.SerializeToString(), 9)])
    assert [one.interval.journal for one in known.owned_by("w")] == ["c.1.j0", "c.1.j1"]
    assert [one.interval.journal for one in known.owned_by("w", 8)] == ["c.1.j1"]
    assert known.owned_by("other") == []
    assert known.journal_lives("c.1.j1")
    assert not known.journal_lives("c.1.j2")


@pytest.mark.paper(section="4.5")
def test_senders_of_a_stream_are_its_producers_and_its_injectors() -> None:
    spec = specs.TopologySpec(name="t", streams=[specs.StreamSpec(name="in", injected=True)])
    spec.streams.add(name="elsewhere", external=True)
    spec.computations.add(name="a", outputs=["out"], late_policy=specs.LATE_POLICY_DIVERT, late_stream="late")
    spec.computations.add(name="b", outputs=["in"], late_stream="unused")
    record = catalog.TopologyRecord(spec=spec, state=catalog.TOPOLOGY_STATE_RUNNING)
    record.incarnations.update({"a": IncarnationId("a.1"), "b": IncarnationId("b.2")})
    known = Catalog()
    known.apply([KeyChange(keys.topology_key("t"), record.SerializeToString(), 1)])
    assert known.groups_of("in") == ("b.2", injector_group("in"))
    assert known.groups_of("late") == ("a.1",)
    assert known.groups_of("t/dead-letters") == ("a.1", "b.2")
    assert known.groups_of("unused") == ()
    assert set(known.streams()) == {"in", "out", "late", "t/dead-letters"}
    assert known.computation("b.2") == (record, spec.computations[1])


@pytest.mark.paper(section="4.5")
def test_dead_letters_are_sent_by_those_whose_policy_writes_them() -> None:
    spec = specs.TopologySpec(name="t")
    spec.computations.add(name="a").failure_policy.action = specs.FAILURE_ACTION_DEAD_LETTER
    spec.computations.add(name="b").failure_policy.action = specs.FAILURE_ACTION_STOP
    record = catalog.TopologyRecord(spec=spec, state=catalog.TOPOLOGY_STATE_RUNNING)
    record.incarnations.update({"a": IncarnationId("a.1"), "b": IncarnationId("b.2")})
    known = Catalog()
    known.apply([KeyChange(keys.topology_key("t"), record.SerializeToString(), 1)])
    assert known.groups_of("t/dead-letters") == ("a.1",)


SPLITS = st.sets(st.binary(min_size=1, max_size=3), max_size=8)


@pytest.mark.guarantee("G11")
@given(SPLITS, st.binary(max_size=4))
def test_a_key_is_found_in_the_one_interval_that_holds_it(splits: set[bytes], key: bytes) -> None:
    intervals = initial_intervals(1, splits)
    table = IntervalMap(IncarnationId("c"), interval_map("c", intervals))
    (only,) = [index for index, interval in enumerate(intervals) if key in interval]
    found = table.locate(key)
    assert found is not None
    assert found.journal == f"c.j{only}"


@pytest.mark.guarantee("G11")
@given(SPLITS.filter(bool), st.data())
def test_gaps_overlaps_and_missing_ends_are_refused(splits: set[bytes], data: st.DataObject) -> None:
    intervals = initial_intervals(1, splits)
    index = data.draw(st.integers(0, len(intervals) - 1))
    for broken in (
        intervals[:index] + intervals[index + 1 :],
        [*intervals[: index + 1], intervals[index], *intervals[index + 1 :]],
        list(reversed(intervals)),
    ):
        with pytest.raises(CoverageError):
            IntervalMap(IncarnationId("c"), interval_map("c", broken))


@given(st.integers(1, 2_000))
def test_initial_intervals_spread_over_printable_text(count: int) -> None:
    intervals = initial_intervals(count)
    assert len(intervals) == count
    starts = [interval.start for interval in intervals]
    assert starts == sorted(set(starts))
    assert all(0x20 <= byte <= 0x7E for start in starts for byte in start)


@pytest.mark.parametrize("count", [0, -1, 10_000])
def test_numbers_of_intervals_out_of_reach_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="give a number from 1"):
        initial_intervals(count)
    with pytest.raises(ValueError, match="the empty key"):
        initial_intervals(1, [b""])


def test_a_deletion_that_the_listing_already_shows_is_no_change() -> None:
    state = CoordinatorState()
    for puts, deletes in (([Put("workers/w", b"")], ()), ([], ("workers/w",))):
        transition = state.decide((), puts, deletes, 0.0)
        assert transition is not None
        state.apply(transition)
    known = Catalog()
    known.load(state.list(""))
    assert not any(known.apply(changes) for changes in state.changes_after("", 0))
