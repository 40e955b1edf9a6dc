"""Mutations of comparisons, extrema and conditions in the duplicate check, part 2 (section 6.1.1)."""

from __future__ import annotations

from millwheel.worker.admission import DeliveryAdmission
from millwheel.worker.dedup.batches import BatchQuery
from millwheel.worker.dedup.dedup import Dedup
from millwheel.worker.shell.notices import HostNotices
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
    " and not source.pending.ids",
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
    seeds=0,
    test="tests/worker/interval/test_stream_lives.py::test_a_new_life_repeats_the_ids_of_the_former_one",
    why="seeds were not tried: the test shows it by itself, in seconds",
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
    DeliveryAdmission.check,
    "self._ids.expect_opaque(delivery.sender.group)",
    "pass",
    seeds=0,
    test="tests/worker/interval/test_ids.py::test_earlier_broadcasts_apply_to_the_first_opaque_ids",
    why="seeds were not tried: the test shows it by itself, in seconds",
)
