"""Mutations of comparisons, extrema and conditions in the duplicate check, part 1 (section 6.1.1)."""

from __future__ import annotations

from millwheel.worker.dedup import known_sequencers
from millwheel.worker.dedup.dedup import Dedup
from millwheel.worker.dedup.known_sequencers import SequencerMap
from millwheel.worker.dedup.opaque import OpaqueSource
from millwheel.worker.dedup.positions import PositionSource
from simulation.mutations.base import rewriting

__all__: list[str] = []

rewriting(
    "same-sender-refused",
    "G8",
    "a sender under the sequencer that is known is accepted",
    Dedup,
    "known.highest(sender.group, span) > sender.sequencer",
    "known.highest(sender.group, span) >= sender.sequencer",
)

rewriting(
    "uncovered-sequences-taken",
    "G1",
    "a sequence is looked up where a part of the keys does not know it",
    Dedup,
    "source is None or not source.complete",
    "source is None",
    seeds=0,
    test="tests/worker/dedup/test_scenarios.py::test_a_merge_asks_again_where_a_parent_retired_the_sequence",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "stale-copies-taken",
    "G1",
    "a copy whose id may have been forgotten is sent again",
    Dedup,
    "sender.watermark < source.horizon",
    "sender.watermark < MIN_TIMESTAMP",
    seeds=0,
    test="tests/worker/dedup/test_scenarios.py::test_a_merged_receiver_keeps_the_higher_horizon",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "late-ids-forgotten-early",
    "G1",
    "an id is kept past the largest watermark that its record came with",
    Dedup,
    "least = max(",
    "least = min(",
    seeds=0,
    test="tests/worker/dedup/test_keeping_ids.py::test_an_id_is_kept_until_the_horizon_passes_its_record",
    why="seeds were tried for a minute and showed nothing; the test shows it in seconds",
)

rewriting(
    "taken-ids-forgotten-early",
    "G1",
    "ids that are committed together are kept as long as the longest",
    Dedup.take,
    "max(collect, verdict.collect_from)",
    "collect",
    seeds=0,
    test="tests/worker/dedup/test_keeping_ids.py::test_an_id_is_kept_until_the_horizon_passes_its_record",
    why="seeds were tried for a minute and showed nothing; the test shows it in seconds",
)

rewriting(
    "late-ids-born-forgotten",
    "G1",
    "a late record's id is kept past the receiver's known watermark",
    OpaqueSource.check,
    "max(max(timestamps), self.watermark, least)",
    "max(timestamps)",
    seeds=0,
    test="tests/worker/dedup/test_keeping_ids.py::test_an_id_is_kept_until_the_horizon_passes_its_record",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "runs-forgotten-early",
    "G1",
    "a run of ids is kept as long as its longest",
    OpaqueSource.remember,
    "max(runs[-1].collect, collect)",
    "min(runs[-1].collect, collect)",
    seeds=0,
    test="tests/worker/dedup/test_keeping_ids.py::test_a_run_of_ids_is_kept_as_long_as_its_longest",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "ids-forgotten-at-the-horizon",
    "G1",
    "an id whose time is exactly the horizon is kept",
    OpaqueSource.forget,
    "run.collect < horizon",
    "run.collect <= horizon",
    seeds=0,
    test="tests/worker/dedup/test_keeping_ids.py::test_an_id_is_kept_until_the_horizon_passes_its_record",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "segments-forgotten-at-the-horizon",
    "G1",
    "a segment whose time is exactly the horizon is kept",
    OpaqueSource.forget,
    "segment.collect < horizon",
    "segment.collect <= horizon",
    seeds=0,
    test="tests/worker/dedup/test_keeping_ids.py::test_an_id_is_kept_until_the_horizon_passes_its_record",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "segments-forgotten-early",
    "G1",
    "a segment is kept as long as its longest id",
    OpaqueSource.seal,
    "max(run.collect for run in runs)",
    "min(run.collect for run in runs)",
    seeds=0,
    test="tests/worker/dedup/test_keeping_ids.py::test_a_segment_is_kept_as_long_as_its_longest_id",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "smaller-horizon-inherited",
    "G1",
    "a merged interval forgets ids up to the larger horizon of its parents",
    OpaqueSource.inherit,
    "self.horizon = max(",
    "self.horizon = min(",
    seeds=0,
    test="tests/worker/dedup/test_scenarios.py::test_a_merged_receiver_keeps_the_higher_horizon",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "mark-itself-taken-for-known",
    "G1",
    "the position at a sender's mark is not known by the mark",
    PositionSource,
    "position < piece.mark",
    "position <= piece.mark",
    seeds=0,
    test="tests/worker/dedup/test_position_edges.py::test_a_position_is_known_exactly_if_it_is_committed",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "least-mark-for-all",
    "G1",
    "a batch is fresh as a whole only above the marks of all keys",
    PositionSource.check,
    "max(piece.mark for piece in pieces)",
    "min(piece.mark for piece in pieces)",
    seeds=0,
    test="tests/worker/dedup/test_position_edges.py::test_a_position_is_known_exactly_if_it_is_committed",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "top-unchecked",
    "G1",
    "the largest position that is known is compared, too",
    PositionSource,
    "lowest <= self.top",
    "lowest < self.top",
    seeds=0,
    test="tests/worker/dedup/test_scenarios.py::test_a_source_that_others_continue_outlives_its_retirement",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "top-forgotten",
    "G1",
    "positions are forgotten when the mark has passed all of them",
    PositionSource,
    "mark > self.top",
    "mark >= self.top",
    seeds=0,
    test="tests/worker/dedup/test_position_edges.py::test_a_position_is_known_exactly_if_it_is_committed",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "highest-mark-for-all",
    "G1",
    "positions are forgotten by the smallest mark of all keys",
    PositionSource,
    "min(piece.mark",
    "max(piece.mark",
    seeds=0,
    test="tests/worker/dedup/test_position_edges.py::test_a_position_is_known_exactly_if_it_is_committed",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "senders-lowered",
    "G3",
    "what is known of a producing key's sequencer only rises",
    known_sequencers,
    "[max(old, value) for",
    "[value for",
    seeds=0,
    test="tests/worker/dedup/test_keeping_ids.py::test_what_is_known_of_sequencers_never_falls",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "injectors-lowered",
    "G3",
    "what is known of an injector's sequencer only rises",
    SequencerMap.learn,
    "self._injectors.get(span, 0) >= sequencer",
    "self._injectors.get(span, 0) == sequencer",
    seeds=0,
    test="tests/worker/dedup/test_keeping_ids.py::test_what_is_known_of_sequencers_never_falls",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "current-senders-kept",
    "G3",
    "a higher sequencer ends what was found to be current",
    SequencerMap.learn,
    "    self.current.clear()\n",
    "",
    seeds=0,
    test="tests/worker/dedup/test_scenarios.py::test_collection_learns_the_broadcasts_sequencers_first",
    why="seeds were not tried: the test shows it by itself, in seconds",
)
