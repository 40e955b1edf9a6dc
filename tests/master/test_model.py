"""Random histories of submissions, workers and masters, with messages delayed at will (sections 6.2, 7.1; G11)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millwheel.master.messages import (
    CancelTopology,
    CommitBatch,
    Drop,
    IntervalName,
    MergeIntervals,
    MoveInterval,
    OpenInjector,
    ReleaseParents,
    Reply,
    Request,
    SplitInterval,
    SubmitTopology,
    Transact,
    TransactionEnded,
)
from millwheel.master.settings import MasterSettings
from millwheel.model.catalog import ACTIVE_STATES
from millwheel.model.interval_map import check_coverage, interval_from_proto
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.testing.store_effects import result_of

from .harness import Cluster, Master, computation, source, topology

NAMES = st.sampled_from(["one", "two", "three"])
WORKERS = st.sampled_from(["w1", "w2", "w3"])
KEYS = st.sampled_from([b"", b"4", b"A", b"P", b"c", b"p", b"z"])


class Masters(RuleBasedStateMachine):
    """Several masters believe that they lead, and one does. Only its changes may take effect."""

    @initialize()
    def start(self) -> None:
        self.cluster = Cluster()
        self.settings = MasterSettings(intervals_per_computation=3, maps_per_transaction=2)
        self.masters = [Master(self.cluster, "m0", self.settings)]
        self.highest: dict[str, int] = {}
        self.owner: dict[str, tuple[int, str, int]] = {}
        self.drawn = 0
        self.children: set[str] = set()
        self.independent: set[str] = set()

    @rule()
    def a_new_master_is_elected(self) -> None:
        if len(self.masters) < 4:
            self.masters.append(Master(self.cluster, f"m{len(self.masters)}", self.settings))

    @rule(worker=WORKERS)
    def a_worker_joins(self, worker: str) -> None:
        self.cluster.join(worker)

    @rule(worker=WORKERS)
    def a_worker_goes(self, worker: str) -> None:
        self.cluster.leave(worker)

    def _ask(self, who: int, request: Request) -> None:
        self.masters[who % len(self.masters)].ask(request)

    @rule(who=st.integers(0, 3), name=NAMES, request=st.sampled_from(["r1", "r2"]))
    def somebody_submits(self, who: int, name: str, request: str) -> None:
        spec = topology(name, [source("in")], [computation(f"{name}-c", {"in": "k"}, [f"{name}-out"])])
        self._ask(who, SubmitTopology(spec, request))

    @rule(who=st.integers(0, 3), name=NAMES)
    def somebody_cancels(self, who: int, name: str) -> None:
        self._ask(who, CancelTopology(name))

    @rule(who=st.integers(0, 3), process=st.sampled_from(["p", "q"]))
    def somebody_injects(self, who: int, process: str) -> None:
        self._ask(who, OpenInjector("in", process))

    @rule(who=st.integers(0, 3), batch=st.integers(0, 5))
    def somebody_commits_a_batch(self, who: int, batch: int) -> None:
        self._ask(who, CommitBatch("query", batch))

    @rule(who=st.integers(0, 3), name=NAMES, key=KEYS, worker=WORKERS)
    def somebody_moves(self, who: int, name: str, key: bytes, worker: str) -> None:
        self._ask(who, MoveInterval(IntervalName(name, f"{name}-c", key=key), worker, f"{worker}{key!r}"))

    @rule(who=st.integers(0, 3), name=NAMES, key=KEYS, worker=st.sampled_from(["", "w1", "w3"]))
    def somebody_splits(self, who: int, name: str, key: bytes, worker: str) -> None:
        self._ask(who, SplitInterval(IntervalName(name, f"{name}-c", key=key), key, worker, f"{key!r}"))

    @rule(who=st.integers(0, 3), name=NAMES, key=KEYS)
    def somebody_merges(self, who: int, name: str, key: bytes) -> None:
        self._ask(who, MergeIntervals(IntervalName(name, f"{name}-c", key=key)))

    @rule()
    def owners_open_their_intervals(self) -> None:
        """The first owner of a child creates its journal.

        Its parents' journals exist until the child is independent.
        """
        for interval_map in self.cluster.catalog().maps.values():
            for interval in interval_map:
                if interval.HasField("owner") and not self.cluster.has_journal(interval.journal):
                    assert interval.parents
                    assert all(self.cluster.has_journal(parent.journal) for parent in interval.parents)
                    result_of(self.cluster.store.create_journal(interval.journal))

    @rule(who=st.integers(0, 3), some=st.integers(1, 3))
    def owners_let_go_of_parents(self, who: int, some: int) -> None:
        master = self.masters[who % len(self.masters)]
        # The view of this master, which may be old.
        children = [one for interval_map in master.core.catalog.maps.values() for one in interval_map if one.parents]
        open_ones = {one.journal: one.sequencer for one in children if self.cluster.has_journal(one.journal)}
        chosen = dict(sorted(open_ones.items())[:some])
        self.independent.update(chosen)
        self._ask(who, ReleaseParents(chosen))

    @rule(who=st.integers(0, 3), steps=st.integers(1, 4))
    def an_effect_is_performed(self, who: int, steps: int) -> None:
        index = who % len(self.masters)
        master = self.masters[index]
        for _ in range(min(steps, len(master.waiting))):
            stale = index < len(self.masters) - 1
            kind = type(master.waiting[0])
            before = self.cluster.state.revision
            master.step()
            if stale and kind is Transact:
                assert self.cluster.state.revision == before, "a deposed master's transaction took effect"

    @rule(who=st.integers(0, 3))
    def a_change_is_heard_of(self, who: int) -> None:
        self.masters[who % len(self.masters)].follow()

    @rule(who=st.integers(0, 3))
    def a_transactions_outcome_is_lost(self, who: int) -> None:
        master = self.masters[who % len(self.masters)]
        if master.waiting and isinstance(master.waiting[0], Transact):
            lost = master.waiting.pop(0)
            assert isinstance(lost, Transact)
            self.cluster.transact(lost.compares, lost.puts, lost.deletes)
            master.handle(TransactionEnded(lost.operation, None))

    @rule()
    def the_leader_finishes_what_it_has(self) -> None:
        leader = self.masters[-1]
        leader.run()
        known = self.cluster.catalog()
        for name, record in known.topologies.items():
            for incarnation in record.incarnations.values():
                interval_map = known.maps.get(incarnation)
                if record.state == catalog.TOPOLOGY_STATE_CANCELLED:
                    assert interval_map is None
                    continue
                assert interval_map is not None, f"{name} has lost its intervals"
                for interval in interval_map.record.intervals:
                    assert interval.parents or self.cluster.has_journal(interval.journal)
                    if record.state in ACTIVE_STATES and known.workers:
                        assert interval.owner_revision == known.registration(interval.owner.worker_id) > 0
        assert not known.retired

    @invariant()
    def g11_every_key_is_covered_once_and_sequencers_only_grow(self) -> None:
        known = self.cluster.catalog()
        assert known.drawn >= self.drawn
        self.drawn = known.drawn
        for incarnation, interval_map in known.maps.items():
            check_coverage(incarnation, interval_map.intervals)
            for interval in interval_map.record.intervals:
                held = (interval.sequencer, interval.owner.worker_id, interval.owner_revision)
                before = self.owner.get(interval.journal, held)
                assert held[0] >= before[0]
                assert held[0] <= known.drawn
                changed = held[1:] != before[1:] and held[1]
                assert not changed or held[0] > before[0], "a new owner under an old sequencer"
                self.owner[interval.journal] = held
        referred = [one for record in known.topologies.values() for one in record.incarnations.values()]
        assert len(set(referred)) == len(referred)

    @invariant()
    def journals_that_are_needed_are_there_and_lineage_is_one_deep(self) -> None:
        known = self.cluster.catalog()
        living = {one for _, record in known.live_topologies() for one in record.incarnations.values()}
        for incarnation, interval_map in known.maps.items():
            named = {parent.journal: parent.keys for interval in interval_map for parent in interval.parents}
            assert not named.keys() & {interval.journal for interval in interval_map}
            assert not named.keys() & known.retired.keys()
            assert named.keys() & self.children <= self.independent, "it starts from one that needs another still"
            self.children.update(interval.journal for interval in interval_map if interval.parents)
            if incarnation in living:
                assert all(self.cluster.has_journal(journal) for journal in named)
            for interval in interval_map:
                parents = [interval_from_proto(parent.keys) for parent in interval.parents]
                mine = interval_from_proto(interval.keys)
                assert all(parent.overlaps(mine) for parent in parents)
                if parents:
                    assert KeyInterval(parents[0].start, parents[-1].end).intersection(mine) == mine

    @invariant()
    def nothing_that_lives_is_dropped(self) -> None:
        known = self.cluster.catalog()
        living = {record.incarnation for record in known.logs.values()}
        for _, topology_record in known.live_topologies():
            living.update(topology_record.incarnations.values())
        for master in self.masters:
            for effect in master.waiting:
                if isinstance(effect, Drop):
                    assert not living & set(effect.incarnations)
                    for journal in effect.journals:
                        assert not known.journal_lives(journal) or journal.rpartition(".j")[0] not in living

    @invariant()
    def what_was_answered_has_happened(self) -> None:
        drawn = [one.answer for master in self.masters for one in master.waiting if isinstance(one, Reply)]
        for answer in drawn:
            if isinstance(answer, catalog.InjectorRecord):
                assert answer.sequencer <= self.cluster.catalog().drawn


TestMasters = Masters.TestCase
TestMasters.settings = settings(max_examples=60, stateful_step_count=40)


class Owners(Masters):
    """The same, of one topology whose intervals change hands all the time."""

    @initialize()
    def start(self) -> None:
        super().start()
        for worker in ("w1", "w2"):
            self.cluster.join(worker)
        self._ask(0, SubmitTopology(topology("one", [source("in")], [computation("one-c", {"in": "k"}, [])]), "r0"))
        self.masters[0].run()

    @rule(key=KEYS, verb=st.sampled_from(["move", "split", "merge"]))
    def the_leader_reshapes(self, key: bytes, verb: str) -> None:
        name = IntervalName("one", "one-c", key=key)
        requests: dict[str, Request] = {
            "move": MoveInterval(name),
            "split": SplitInterval(name, key),
            "merge": MergeIntervals(name),
        }
        self._ask(len(self.masters) - 1, requests[verb])
        self.masters[-1].run()

    @rule()
    def owners_open_and_let_go(self) -> None:
        self.owners_open_their_intervals()
        self.owners_let_go_of_parents(len(self.masters) - 1, 2)

    @rule(worker=WORKERS)
    def a_worker_comes_back(self, worker: str) -> None:
        self.cluster.leave(worker)
        self.cluster.join(worker)


TestOwners = pytest.mark.guarantee("G11")(Owners.TestCase)
TestOwners.settings = settings(max_examples=60, stateful_step_count=40)
