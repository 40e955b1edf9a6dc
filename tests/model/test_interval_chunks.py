"""Interval maps in chunks, against a plain list of intervals (section 7.1; G11)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millwheel.coordination.state import CoordinatorState
from millwheel.master.change_plan import PlanBuilder
from millwheel.model import interval_chunks
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_chunks import (
    CoverageError,
    MapEdit,
    check_coverage,
    interval_from_proto,
    interval_to_proto,
)
from millwheel.model.interval_map import IntervalMap, initial_intervals
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1 import catalog_pb2 as catalog

NAME = IncarnationId("c.1")


def interval(
    keys: KeyInterval, journal: str, owner: str = "w", parents: tuple[str, ...] = ()
) -> catalog.IntervalRecord:
    made = catalog.IntervalRecord(keys=interval_to_proto(keys), journal=journal, sequencer=1, owner_revision=7)
    made.owner.worker_id = owner
    made.owner.address = f"{owner}:1"
    for parent in parents:
        made.parents.add(journal=parent, keys=made.keys)
    return made


def whole(count: int) -> catalog.IntervalMapRecord:
    record = catalog.IntervalMapRecord(computation="c", topology="t")
    record.intervals.extend(interval(keys, f"{NAME}.j{at}") for at, keys in enumerate(initial_intervals(count)))
    return record


@contextmanager
def small_chunks() -> Iterator[None]:
    """Chunks of 3 to 8 intervals, so that small maps show what large ones do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interval_chunks, "MAX_INTERVALS_PER_CHUNK", 8)
        patch.setattr(interval_chunks, "MIN_INTERVALS_PER_CHUNK", 3)
        yield


class Maps(RuleBasedStateMachine):
    """Intervals move, split and merge, one or several to a transaction; a catalog follows."""

    @initialize(count=st.integers(1, 40))
    def begin(self, count: int) -> None:
        self.patch = small_chunks()
        self.patch.__enter__()
        self.state, self.followed, self.received = CoordinatorState(), Catalog(), 0
        self.behind = Catalog()
        self.named = count
        record = whole(count)
        self.model = list(record.intervals)
        self.builder = PlanBuilder(self.followed)
        self.builder.put_map(NAME, record)
        self.commit()

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.__exit__(None, None, None)

    def commit(self) -> None:
        plan = self.builder.plan()
        transition = self.state.decide(plan.compares, plan.puts, plan.deletes, 0.0)
        assert transition is not None
        self.state.apply(transition)
        for changes in self.state.changes_after("", self.received):
            self.followed.apply(changes)
        self.received = self.state.revision
        self.builder = PlanBuilder(self.followed)

    def name(self) -> str:
        self.named += 1
        return f"{NAME}.j{self.named}"

    def put(self, at: int, count: int, new: list[catalog.IntervalRecord]) -> None:
        assert self.builder.put_intervals(NAME, new) == (self.model[at : at + count] != new)
        self.model[at : at + count] = new

    @rule(at=st.integers(0, 1000), owner=st.sampled_from(["v", "w", "x"]))
    def move(self, at: int, owner: str) -> None:
        at %= len(self.model)
        moved = catalog.IntervalRecord()
        moved.CopyFrom(self.model[at])
        moved.sequencer += 1
        moved.owner.worker_id = owner
        self.put(at, 1, [moved])

    @rule(at=st.integers(0, 1000))
    def split(self, at: int) -> None:
        at %= len(self.model)
        keys = interval_from_proto(self.model[at].keys)
        middle = keys.start + b"m"
        if middle in keys:
            parent = self.model[at].journal
            halves = (KeyInterval(keys.start, middle), KeyInterval(middle, keys.end))
            self.put(at, 1, [interval(half, self.name(), parents=(parent,)) for half in halves])

    @rule(at=st.integers(0, 1000), count=st.integers(2, 12))
    def merge(self, at: int, count: int) -> None:
        at %= len(self.model)
        gone = self.model[at : at + count]
        keys = KeyInterval(gone[0].keys.start, interval_from_proto(gone[-1].keys).end)
        self.put(at, len(gone), [interval(keys, self.name(), parents=tuple(one.journal for one in gone))])

    @rule()
    def commit_the_plan(self) -> None:
        self.commit()
        assert list(self.followed.maps[NAME]) == self.model

    @rule()
    def a_catalog_reads_everything_again(self) -> None:
        """This catalog has followed up to some revision, and knows no later change."""
        self.commit()
        self.behind.load(self.state.list(""))
        assert list(self.behind.maps[NAME]) == self.model
        assert self.behind.maps[NAME].chunks is not self.followed.maps[NAME].chunks

    @rule(at=st.integers(0, 1000))
    def put_the_whole_map_with_one_change(self, at: int) -> None:
        self.commit()
        record = catalog.IntervalMapRecord(computation="c", topology="t", intervals=self.model)
        changed = record.intervals[at % len(self.model)]
        changed.sequencer += 1
        self.builder.put_map(NAME, record)
        self.model = list(record.intervals)
        assert len(self.builder.plan().puts) + len(self.builder.plan().deletes) <= 3

    @invariant()
    def g11_at_every_revision_the_chunks_cover_every_key_once(self) -> None:
        listed = Catalog()
        listed.load(self.state.list(""))
        interval_map = listed.maps[NAME]
        check_coverage(NAME, interval_map.intervals)
        assert list(interval_map) == list(self.followed.maps[NAME])
        assert interval_map.origin == ("c", "t")
        for chunk in interval_map.chunks:
            assert len(chunk.intervals) <= 8

    @invariant()
    def look_ups_say_what_the_intervals_say(self) -> None:
        interval_map = self.followed.maps[NAME]
        intervals = list(interval_map)
        assert len(interval_map) == len(intervals)
        by_owner: dict[tuple[str, int], set[str]] = {}
        for one in intervals:
            by_owner.setdefault((one.owner.worker_id, one.owner_revision), set()).add(one.journal)
            assert interval_map.of_journal(one.journal) == one
            assert interval_map.locate(one.keys.start) == one
        assert {owner: set(found) for owner, found in interval_map.owned.items()} == by_owner
        journals = {one.journal for one in intervals} | {parent.journal for one in intervals for parent in one.parents}
        numbers = {chunk.number: chunk for chunk in interval_map.chunks}
        for journal in [f"{NAME}.j{number}" for number in range(self.named + 1)]:
            home = interval_map.home(journal)
            assert (home is not None) == (journal in journals) == self.followed.journal_lives(journal)
            if home is not None:
                held = numbers[home].intervals
                assert any(journal in {one.journal, *(parent.journal for parent in one.parents)} for one in held)


TestMaps = pytest.mark.guarantee("G11")(Maps.TestCase)
TestMaps.settings = settings(max_examples=40, stateful_step_count=30)


@pytest.mark.paper(section="7.1")
@given(st.integers(1, 9_000), st.data())
@settings(max_examples=20)
def test_a_move_writes_one_chunk_in_a_map_of_any_size(count: int, data: st.DataObject) -> None:
    interval_map = IntervalMap(NAME, whole(count))
    edit = MapEdit(NAME, interval_map.chunks)
    moved = catalog.IntervalRecord()
    moved.CopyFrom(list(interval_map)[data.draw(st.integers(0, count - 1))])
    moved.sequencer = 99
    assert edit.replace([moved])
    written, deleted = edit.changes()
    assert (len(written), deleted) == (1, [])
    assert len(written[0].intervals) <= interval_chunks.MAX_INTERVALS_PER_CHUNK
    assert not edit.replace([moved])


def test_chunks_that_shrink_are_joined() -> None:
    """Every second boundary is removed, again and again.

    Without joining, each interval would end in a chunk of its own.
    """
    intervals = list(whole(1_024).intervals)
    edit = MapEdit(NAME, IntervalMap(NAME, whole(1_024)).chunks)
    for _ in range(6):
        for at in range(len(intervals) // 2):
            keys = KeyInterval(intervals[at].keys.start, interval_from_proto(intervals[at + 1].keys).end)
            intervals[at : at + 2] = [interval(keys, f"{NAME}.m{at}")]
            edit.replace([intervals[at]])
    assert len(intervals) == 16
    written, deleted = edit.changes()
    assert len(written) == 1
    assert deleted == [1, 2, 3]


def test_with_the_longest_keys_a_chunk_stays_within_its_bytes() -> None:
    points = [b"%04d" % number + b"k" * 4_092 for number in range(300)]
    record = catalog.IntervalMapRecord()
    record.intervals.extend(interval(keys, f"{NAME}.j{at}") for at, keys in enumerate(initial_intervals(1, points)))
    interval_map = IntervalMap(NAME, record)
    assert list(interval_map) == list(record.intervals)
    for chunk in interval_map.chunks:
        assert sum(one.ByteSize() for one in chunk.intervals) <= interval_chunks.MAX_CHUNK_BYTES


@pytest.mark.guarantee("G11")
def test_what_does_not_fit_where_it_is_put_is_refused() -> None:
    edit = MapEdit(NAME, IntervalMap(NAME, whole(600)).chunks)
    start, end = b"0", b"1"
    with pytest.raises(CoverageError, match="does not begin and end where its intervals do"):
        edit.replace([interval(KeyInterval(start + b"x", end), "j")])
    with pytest.raises(CoverageError, match="overlap or leave a gap"):
        edit.replace([interval(KeyInterval(start, end), "j"), interval(KeyInterval(b"2"), "k")])
    with pytest.raises(CoverageError, match="no intervals at all"):
        edit.replace([])
    assert edit.changes() == ([], [])


@pytest.mark.guarantee("G3")
def test_a_journal_keeps_its_keys() -> None:
    known = Catalog()
    state = CoordinatorState()
    builder = PlanBuilder(known)
    builder.put_map(NAME, whole(2))
    transition = state.decide((), builder.plan().puts, (), 0.0)
    assert transition is not None
    state.apply(transition)
    known.load(state.list(""))
    record = catalog.IntervalMapRecord()
    record.CopyFrom(known.maps[NAME].record)
    record.intervals[0].keys.end = record.intervals[1].keys.start = b"z"
    with pytest.raises(ValueError, match="other keys need another journal"):
        PlanBuilder(known).put_map(NAME, record)


def test_a_map_read_again_is_taken_in_only_as_far_as_it_differs() -> None:
    state, known = CoordinatorState(), Catalog()

    def commit(builder: PlanBuilder) -> None:
        plan = builder.plan()
        transition = state.decide(plan.compares, plan.puts, plan.deletes, 0.0)
        assert transition is not None
        state.apply(transition)

    builder = PlanBuilder(known)
    builder.put_map(NAME, whole(1_000))
    commit(builder)
    known.load(state.list(""))
    before = list(known.maps[NAME].chunks)
    moved = catalog.IntervalRecord()
    moved.CopyFrom(before[2].intervals[0])
    moved.sequencer = 9
    builder = PlanBuilder(known)
    builder.put_intervals(NAME, [moved])
    commit(builder)
    known.load(state.list(""))
    after = list(known.maps[NAME].chunks)
    assert [old is new for old, new in zip(before, after, strict=True)] == [True, True, False, True]
    assert known.locate(NAME, before[2].start) == moved
    transition = state.decide((), (), [entry.key for entry in state.list("").entries], 0.0)
    assert transition is not None
    state.apply(transition)
    known.load(state.list(""))
    assert known.maps == {}


def test_chunks_that_share_a_key_are_named() -> None:
    interval_map = IntervalMap(NAME)
    for number, keys in enumerate([KeyInterval(b"", b"m"), KeyInterval(b"k")]):
        interval_map.update({number: catalog.IntervalMapRecord(intervals=[interval(keys, f"j{number}")])})
    with pytest.raises(CoverageError, match="chunks 0 and 1 overlap"):
        interval_map.locate(b"a")


def test_a_map_removed_chunk_by_chunk_has_no_removed_interval() -> None:
    interval_map = IntervalMap(NAME, whole(600))
    first, *rest = interval_map.chunks
    interval_map.update({first.number: None})
    assert interval_map.locate(b"") is None
    assert interval_map.locate(rest[0].start) == rest[0].intervals[0]
    assert interval_map.of_journal(first.intervals[0].journal) is None
    interval_map.update({chunk.number: None for chunk in rest})
    assert (len(interval_map), list(interval_map), interval_map.locate(b"a")) == (0, [], None)
