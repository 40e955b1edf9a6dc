"""Mutations of comparisons, extrema and conditions in the master's core (section 7.1)."""

from __future__ import annotations

from millwheel.coordination import sequencers
from millwheel.master import assignment, change_plan, draining, garbage, injection_plans
from millwheel.master.assignment import IntervalAssigner
from millwheel.master.change_plan import PlanBuilder
from millwheel.master.core import MasterCore
from millwheel.master.draining import DrainWatch
from millwheel.master.services.injection import InjectionServicer
from millwheel.model.catalog import Catalog
from simulation.mutations.base import rewriting

__all__: list[str] = []

rewriting(
    "restarted-workers-own",
    "G3",
    "an interval of a worker that registered again is given out again",
    Catalog.lives,
    " and registration == self.registration(worker_id)",
    "",
    seeds=0,
    test="tests/master/test_ownership.py::test_a_new_leader_notices_a_worker_that_registered_again",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "updates-not-switched",
    "G3",
    "owners from before an update are given new sequencers",
    assignment,
    " and interval.sequencer >= switching",
    "",
    seeds=0,
    test="tests/master/test_updating.py::test_other_code_takes_over_on_the_same_owners",
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
    test="tests/master/test_ownership.py::test_intervals_are_spread_over_machines_then_processes",
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
    test="tests/master/test_ownership.py::test_workers_bound_to_a_package_get_only_its_intervals",
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
    test="tests/master/test_endings.py::test_injectors_have_their_grace_before_idleness_counts",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "drained-with-productions",
    "G1",
    "a drain waits for productions that are not ACKed",
    draining,
    " or seen.pending",
    "",
    seeds=0,
    test="tests/master/test_endings.py::test_a_drain_does_not_end_while_productions_are_unacked",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "drained-by-zombies",
    "G1",
    "a drain believes only the newest owner of an interval",
    draining,
    " or seen.sequencer != interval.sequencer",
    "",
    seeds=0,
    test="tests/master/test_endings.py::test_an_old_owners_report_does_not_end_a_drain",
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
    test="tests/master/test_endings.py::test_watermarks_do_not_end_a_drain_with_feedback",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "batch-cursors-go-back",
    "G1",
    "a query's cursor only rises",
    injection_plans.commit_batch,
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
    injection_plans.finish_injector,
    "record.sequencer != request.sequencer or ",
    "",
    seeds=0,
    test="tests/master/test_injecting.py::test_finished_is_final_until_the_stream_is_removed",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "retired-unfinished",
    "G8",
    "a process is retired when this life of it has finished",
    injection_plans.retire_injector,
    "not record.finished and record.sequencer != request.sequencer",
    "False",
    seeds=0,
    test="tests/master/test_injecting.py::test_a_process_that_started_during_the_check_is_not_retired",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "retired-unjournaled",
    "G7",
    "a process is retired when its end is in the authority's journal",
    InjectionServicer,
    " and await self._end_is_journaled(known, request, row.sequencer)",
    "",
    seeds=0,
    test="tests/master/test_services.py::test_a_process_is_retired_once_its_end_is_journaled",
    why="the end must be looked at between its report and the append: seed 399 is the first that does that",
)

rewriting(
    "silenced-by-nothing",
    "G7",
    "a removed stream's injectors are over up to all sequencers that were drawn",
    garbage.retire_streams,
    "= builder.drawn_before",
    "= 1",
    seeds=0,
    test="tests/master/test_endings.py::test_a_deposed_master_silences_no_returned_streams_injectors",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "removed-taken-for-garbage",
    "G9",
    "what removed computations have to deliver is kept",
    garbage.collect_garbage,
    "        referred.update(removed.incarnation for removed in record.removed)\n",
    "",
    seeds=0,
    test="tests/master/test_updating.py::test_a_removed_computation_delivers_and_leaves_the_watermark",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "restored-counter-trusted",
    "G3",
    "an authority's number comes from the block that it reserved, also if the counter was set back",
    sequencers.draw_sequencer,
    "max(drawn + 1, first)",
    "drawn + 1",
    seeds=0,
    test="tests/master/test_sequencer_allocation.py::test_a_restored_coordinator_draws_no_earlier_sequencer_again",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "block-not-used",
    "G3",
    "a master's numbers come from the block that it reserved, also if the counter was set back",
    MasterCore,
    "max(self._unusable, event.first - 1)",
    "self._unusable",
    seeds=0,
    test="tests/master/test_sequencer_allocation.py::test_a_master_draws_no_number_of_before_a_restore",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "planned-without-a-look",
    "G7",
    "a master that has reserved numbers makes sure that it still leads, before it has injectors forgotten",
    MasterCore,
    "event.last\n    return self._read_again(current)",
    "event.last\n    return self._begin_next(self._plan_again(current))",
    seeds=0,
    test="tests/master/test_endings.py::test_a_master_deposed_as_it_reserves_silences_no_one",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "any-read-taken-for-the-new-one",
    "G7",
    "what a master reads to make sure that it leads is read after it has reserved its numbers",
    MasterCore,
    "self._current(event.operation, _Phase.RELOADING)",
    "self._operation if self._operation and self._operation.phase is _Phase.RELOADING else None",
    seeds=0,
    test="tests/master/test_endings.py::test_a_master_deposed_as_it_reserves_silences_no_one",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "sequencers-go-back",
    "G3",
    "a new owner's sequencer is above the former one",
    change_plan,
    "now.sequencer > was.sequencer",
    "now.sequencer != was.sequencer",
    seeds=0,
    test="tests/master/test_ownership.py::test_no_plan_hands_an_interval_over_under_its_old_sequencer",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "drawn-again",
    "G3",
    "numbers that a failed transaction may have used are not drawn again",
    PlanBuilder.__init__,
    "max(known.drawn, unusable)",
    "known.drawn",
    seeds=0,
    test="tests/master/test_ownership.py::test_a_failed_submissions_journals_are_skipped_not_adopted",
    why="seeds were not tried: the test shows it by itself, in seconds",
)
