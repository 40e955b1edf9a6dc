"""Mutations of comparisons, extrema and conditions in the duplicate check, part 2 (section 6.1.1)."""

from __future__ import annotations

from millwheel.worker.dedup.batches import BatchQuery
from millwheel.worker.dedup.dedup import Dedup
from millwheel.worker.dedup.known_sequencers import SequencerMap
from millwheel.worker.dedup.opaque import OpaqueSource
from millwheel.worker.dedup.tables import Tables
from millwheel.worker.id_segments import AdmissionState
from millwheel.worker.process.notices import HostNotices
from simulation.mutations.base import rewriting

__all__: list[str] = []

rewriting(
    "batch-in-progress-known",
    "G1",
    "the newest batch that has begun is compared by its ids",
    BatchQuery.check,
    "batch < self.completed",
    "batch <= self.completed",
    seeds=0,
    test="tests/worker/dedup/test_scenarios.py::test_a_retired_query_is_forgotten_when_its_records_are_in",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "smaller-batch-inherited",
    "G1",
    "a merged interval takes the larger completed batch of its parents",
    BatchQuery.inherit,
    "max(self.completed, parent.completed)",
    "min(self.completed, parent.completed)",
    seeds=0,
    test="tests/worker/dedup/test_scenarios.py::test_merged_receivers_take_the_larger_completed_batch",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "ids-in-two-runs",
    "G1",
    "an id that is committed again ends with its last commit",
    OpaqueSource,
    "not self.exact.isdisjoint(ids)",
    "False",
    seeds=0,
    test="tests/worker/dedup/test_scenarios.py::test_an_id_committed_again_is_kept_by_its_last_commit",
    why="one seed of some thousands has such copies, and a takeover in time",
)

rewriting(
    "earlier-time-inherited",
    "G1",
    "of two times of an id that parents of a merge have, the larger one counts",
    OpaqueSource,
    "max(run.collect, collect)",
    "run.collect",
    seeds=0,
    test="tests/worker/dedup/test_scenarios.py::test_of_two_times_of_a_merged_id_the_larger_counts",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "slackless",
    "G1",
    "ids are kept for the slack behind the watermark",
    Dedup.advance,
    "watermark - slack",
    "watermark",
    seeds=0,
    test="tests/worker/dedup/test_keeping_ids.py::test_an_id_is_kept_until_the_horizon_passes_its_record",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "retired-in-flight",
    "G1",
    "a sequence is not forgotten while records of it are not committed",
    Dedup.retire,
    "(source is not None and source.pending) or ",
    "",
    seeds=0,
    test="tests/worker/dedup/test_keeping_ids.py::test_a_sequence_with_records_on_their_way_is_not_forgotten",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "lives-share-ids",
    "G1",
    "what is known of an injector group belongs to one life of its stream",
    Dedup.begin_life,
    "tables.end_former_life(group)",
    "pass",
    seeds=25,
    test="tests/worker/interval/test_stream_lives.py::test_a_new_life_repeats_the_ids_of_the_former_one",
    why="a stream must come back to a topology that reads it: one seed of twenty has that",
)

rewriting(
    "injectors-ahead-of-the-catalog",
    "G1",
    "an interval gets records of a new life when it has received that life",
    HostNotices.knows,
    "record.sequencer < sender.sequencer",
    "False",
    seeds=0,
    test="tests/worker/test_worker.py::test_a_host_gets_no_record_of_an_injector_it_is_behind",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "first-opaque-ids-without-past",
    "G1",
    "what was broadcast before the first opaque ids of a group applies to them",
    AdmissionState,
    "self.advance(group, self._inputs.latest.get(group, MIN_TIMESTAMP))",
    "self.advance(group, MIN_TIMESTAMP)",
    seeds=0,
    test="tests/worker/interval/test_ids.py::test_earlier_broadcasts_apply_to_the_first_opaque_ids",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "removed-computations-ids-kept",
    "G13",
    "the ids of a removed computation are dropped",
    Tables.retire,
    "self.opaque.pop(name, None)",
    "None",
    seeds=0,
    test="tests/worker/interval/test_former_senders.py::test_ids_of_a_removed_weak_computation_are_forgotten",
    why="seeds were tried for four minutes and showed nothing; the test shows it in seconds",
)

rewriting(
    "removed-computations-sequencers-kept",
    "G13",
    "the sequencers of a removed computation are dropped",
    SequencerMap.forget,
    "self._keys.pop(group, None)",
    "self._keys.get(group)",
    seeds=0,
    test="tests/worker/interval/test_former_senders.py::test_ids_of_a_removed_weak_computation_are_forgotten",
    why="of the seeds from 1 on, number 29 shows it; the test shows it in seconds",
)

rewriting(
    "removed-computations-records-taken",
    "G1",
    "opaque ids of a computation of which nothing is known are looked up",
    AdmissionState.expect_opaque,
    "if sender.keys is not None:",
    "if False:",
    seeds=0,
    test="tests/worker/interval/test_former_senders.py::test_ids_of_a_removed_weak_computation_are_forgotten",
    why="a delivery must arrive long after the computation was removed: the test shows it in seconds",
)

rewriting(
    "feedback-ids-kept",
    "G13",
    "an interval receives the watermarks of an injected feedback stream",
    HostNotices,
    "beside = frozenset(slack) - groups",
    "beside = frozenset()",
    seeds=0,
    test="tests/worker/test_worker.py::test_watermarks_come_of_all_whose_ids_are_kept",
    why="no simulated feedback stream is injected: the test shows it in seconds",
)

rewriting(
    "ids-of-former-inputs-kept",
    "G13",
    "an interval receives the watermarks of all living groups whose ids it has",
    HostNotices,
    "if not living and not gone:",
    "if True:",
    seeds=0,
    test="tests/worker/test_worker.py::test_watermarks_come_of_all_whose_ids_are_kept",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "ids-of-gone-streams-kept",
    "G13",
    "an interval drops the ids of an injected stream that is gone",
    HostNotices,
    "injected - living",
    "injected & living",
    seeds=0,
    test="tests/worker/test_worker.py::test_watermarks_come_of_all_whose_ids_are_kept",
    why="seeds were not tried: the test shows it by itself, in seconds",
)
