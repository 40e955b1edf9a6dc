"""Mutations of comparisons, extrema and conditions in the master's core (section 7.1)."""

from __future__ import annotations

from millwheel.master import assignment, draft, draining, garbage, injecting, sequencer_allocation
from millwheel.master.assignment import IntervalAssigner
from millwheel.master.draft import Draft
from millwheel.master.draining import DrainWatch
from millwheel.master.services.injection import InjectionServicer
from simulation.mutations.base import rewriting

__all__: list[str] = []

rewriting(
    "restarted-workers-own",
    "G3",
    "an interval of a worker that registered again is given out again",
    IntervalAssigner.lives,
    " and registration == self._known.registration(worker)",
    "",
    seeds=0,
    test="tests/master/test_ownership.py::test_6_2_a_new_leader_sees_that_a_worker_registered_anew_while_nobody_led",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "updates-not-switched",
    "G3",
    "owners from before an update are given new sequencers",
    assignment._assign_chunk,
    " and interval.sequencer >= switching",
    "",
    seeds=0,
    test="tests/master/test_updating.py::test_g11_other_code_is_taken_over_under_fresh_sequencers_by_the_same_owners_and_keeps_its_incarnation_4_1",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "most-loaded-chosen",
    "G11",
    "the least loaded worker is given an interval",
    IntervalAssigner.choose,
    "min(fit, key=self._rank)",
    "max(fit, key=self._rank)",
    seeds=0,
    test="tests/master/test_ownership.py::test_intervals_are_spread_over_machines_first_and_then_over_their_processes",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "packages-mixed",
    "G11",
    "a worker that is bound to a package runs no other",
    assignment.may_run,
    " or worker.package == code",
    " or bool(worker.package)",
    seeds=0,
    test="tests/master/test_ownership.py::test_workers_bound_to_a_package_get_its_intervals_and_no_others",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "drained-at-once",
    "G1",
    "a drain gives injectors a while to hand over what they hold",
    DrainWatch.observe,
    "again and graced",
    "again",
    seeds=0,
    test="tests/master/test_endings.py::test_g1_injectors_have_their_grace_before_idleness_counts",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "drained-with-productions",
    "G1",
    "a drain waits for productions that are not ACKed",
    draining._quiet_commits,
    " or seen.pending",
    "",
    seeds=0,
    test="tests/master/test_endings.py::test_g1_a_drain_does_not_end_while_productions_are_unacknowledged_4_1",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "drained-by-zombies",
    "G1",
    "a drain believes only the newest owner of an interval",
    draining._quiet_commits,
    " or seen.sequencer != interval.sequencer",
    "",
    seeds=0,
    test="tests/master/test_endings.py::test_g1_the_word_of_an_old_owner_does_not_end_a_drain_6_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "cycles-end-with-their-inputs",
    "G1",
    "a drain does not take the watermark's word where records go in a circle",
    DrainWatch.observe,
    " and not _has_feedback(record)",
    "",
    seeds=0,
    test="tests/master/test_endings.py::test_g1_watermarks_do_not_end_the_drain_of_a_topology_with_feedback",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "batch-cursors-go-back",
    "G1",
    "a query's cursor only rises",
    injecting.commit_batch,
    "request.batch > committed",
    "request.batch != committed",
    seeds=0,
    test="tests/master/test_injecting.py::test_batch_cursors_never_go_back_and_outlive_topologies",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "zombies-finish",
    "G3",
    "a process finishes under its newest sequencer alone",
    injecting.finish_injector,
    "record.sequencer != request.sequencer or ",
    "",
    seeds=0,
    test="tests/master/test_injecting.py::test_finished_is_final_until_the_stream_is_gone",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "retired-unfinished",
    "G8",
    "a process is retired when this life of it has finished",
    injecting.retire_injector,
    "not record.finished and record.sequencer != request.sequencer",
    "False",
    seeds=0,
    test="tests/master/test_injecting.py::test_g7_a_process_that_began_while_it_was_looked_at_is_not_retired_5_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "retired-unjournaled",
    "G7",
    "a process is retired when its end is in the authority's journal",
    InjectionServicer._is_over,
    " and await self._end_is_journaled(known, request, row.sequencer)",
    "",
    seeds=0,
    test="tests/master/test_services.py::test_g7_a_process_is_retired_when_its_end_is_in_the_authoritys_journal_5_2",
    why="the end must be looked at between its report and the append: seed 399 is the first that does that",
)

rewriting(
    "silenced-by-nothing",
    "G7",
    "a removed stream's injectors are over up to all sequencers that were drawn",
    garbage.retire_streams,
    "= known.drawn",
    "= 1",
    seeds=0,
    test="tests/master/test_endings.py::test_g7_a_deposed_master_does_not_silence_the_injectors_of_a_stream_that_has_come_back_6_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "leaving-taken-for-litter",
    "G9",
    "what removed computations have to deliver is kept",
    garbage.collect_garbage,
    "        referred.update(leaving.incarnation for leaving in record.leaving)\n",
    "",
    seeds=0,
    test="tests/master/test_updating.py::test_g7_a_removed_computation_takes_nothing_and_leaves_the_watermark_once_it_has_delivered_7_1",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "counter-left-behind",
    "G3",
    "a counter that was set back is raised above all that was drawn",
    sequencer_allocation.raise_counter,
    "drawn >= remembered",
    "drawn >= 0",
    seeds=0,
    test="tests/master/test_sequencer_allocation.py::test_g3_sequencers_of_before_are_not_drawn_again_from_a_restored_coordinator_6_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "counter-raised-too-little",
    "G3",
    "a raised counter passes what may have been drawn unremembered",
    sequencer_allocation.raise_counter,
    "str(remembered + _MAX_UNRECORDED_DRAWS)",
    "str(remembered)",
    seeds=0,
    test="tests/master/test_sequencer_allocation.py::test_g3_sequencers_of_before_are_not_drawn_again_from_a_restored_coordinator_6_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "sequencers-go-back",
    "G3",
    "a new owner's sequencer is above the former one",
    draft._may_follow,
    "now.sequencer > was.sequencer",
    "now.sequencer != was.sequencer",
    seeds=0,
    test="tests/master/test_ownership.py::test_6_2_no_draft_hands_an_interval_over_under_its_old_sequencer",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "drawn-again",
    "G3",
    "numbers that a failed transaction may have used are not drawn again",
    Draft.__init__,
    "max(known.drawn, burned)",
    "known.drawn",
    seeds=0,
    test="tests/master/test_ownership.py::test_leftover_journals_of_a_failed_submission_are_passed_over_not_adopted",
    why="seeds were not tried: the test shows it by itself, in seconds",
)
