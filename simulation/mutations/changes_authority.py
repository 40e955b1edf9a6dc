"""Mutations of comparisons, extrema and conditions in the low watermark authority's core (section 7.2)."""

from __future__ import annotations

from millwheel.authority.calls import AuthorityCalls
from millwheel.authority.core import AuthorityCore
from millwheel.authority.injected import InjectorComputation
from millwheel.authority.keyed import KeyedComputation
from millwheel.authority.pending import Pending
from millwheel.authority.placement import PlacementPolicy
from millwheel.authority.registry import Registry
from simulation.mutations.base import rewriting

__all__: list[str] = []

rewriting(
    "one-sequencer-twice",
    "G4",
    "one sequencer is not accepted for other keys beside those that it has",
    KeyedComputation.accept,
    "largest.sequencer >= sequencer",
    "largest.sequencer > sequencer",
    seeds=0,
    test="tests/authority/test_intervals.py::test_g4_an_acceptance_that_overlaps_a_larger_sequencer_is_refused",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "larger-share-inherited",
    "G7",
    "a new owner starts from the smallest value of its keys",
    KeyedComputation.accept,
    "min(share.watermark for share in over)",
    "max(share.watermark for share in over)",
    seeds=0,
    test="tests/authority/test_intervals.py::test_g7_a_merged_interval_starts_from_the_smaller_value_7_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "older-processes-accepted",
    "G4",
    "the authority accepts no process below the sequencer that it knows",
    InjectorComputation.accept,
    "last.sequencer > sequencer",
    "last.sequencer < 0",
    seeds=0,
    test="tests/authority/test_injectors.py::test_g4_an_older_process_of_the_same_name_is_refused_6_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "unreceived-reports-answered",
    "G7",
    "a process gets the answer that its report counts only when the report has come",
    InjectorComputation.accept,
    "last.last_report >= report_number",
    "last.last_report >= 0",
    seeds=0,
    test="tests/authority/test_injectors.py::test_g7_to_be_accepted_again_is_answered_when_the_end_of_idleness_is_journaled_5_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "older-expectations",
    "G7",
    "an older list of expected processes changes nothing",
    InjectorComputation.expect,
    "0 < as_of < self.expected_as_of",
    "as_of < 0",
    seeds=0,
    test="tests/authority/test_injectors.py::test_g7_what_a_paused_master_had_read_of_the_expected_set_takes_nobody_out_of_it_5_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "one-finished-for-all",
    "G7",
    "a stream ends when all of its processes have finished",
    InjectorComputation.smallest,
    " if idle else ",
    " if len(idle) == len(self._processes) else ",
    seeds=0,
    test="tests/authority/test_injectors.py::test_g7_finished_and_idle_processes_together_leave_the_value_at_the_last_promise_5_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "promises-leave-with-the-idle",
    "G8",
    "what a process promises counts before it is idle",
    InjectorComputation.report,
    "self._promised = max(self._promised, self.smallest())",
    "pass",
    seeds=0,
    test="tests/authority/test_injectors.py::test_g8_what_a_process_promises_counts_before_it_is_idle_5_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "finished-ones-go-on",
    "G7",
    "a process that has finished stays finished",
    InjectorComputation.report,
    " or share.watermark == MAX_TIMESTAMP",
    "",
    seeds=0,
    test="tests/authority/test_injectors.py::test_a_finished_process_is_plus_infinity_and_that_is_final_5_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "moved-before-their-changes",
    "G7",
    "values follow the changes that they rest on into the journal",
    Pending.take,
    "if not self.changes:",
    "if True:",
    seeds=0,
    test="tests/authority/test_restart.py::test_g4_nothing_counts_before_the_acceptance_it_rests_on_is_journaled",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "last-of-a-life",
    "G7",
    "the last sequencer of a removed life is refused",
    Registry.is_over,
    "sequencer <= self.ended.get(name, 0)",
    "sequencer < self.ended.get(name, 0)",
    seeds=0,
    test="tests/authority/test_injectors.py::test_g4_an_injector_of_a_streams_earlier_life_has_no_say_in_the_next_6_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "lives-end-earlier",
    "G7",
    "how far a removed life went only rises",
    Registry.remove,
    "max(up_to, self.ended.pop(name, 0))",
    "min(up_to, self.ended.pop(name, up_to))",
    seeds=0,
    test="tests/authority/test_injectors.py::test_g4_a_delayed_removal_brings_no_process_of_a_later_life_back_6_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "removed-twice",
    "G7",
    "a removal that is repeated leaves the next life alone",
    AuthorityCalls._remove,
    "0 < up_to <= self._registry.ended.get(computation, 0)",
    "False",
    seeds=0,
    test="tests/authority/test_injectors.py::test_g7_a_delayed_removal_leaves_the_expected_set_of_a_streams_next_life_alone_7_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "last-sequencer-outlives",
    "G8",
    "a removal covers the sequencer that it names",
    AuthorityCore.outlives,
    "accepted > sequencer",
    "accepted >= sequencer",
    seeds=0,
    test="tests/authority/test_shell.py::test_g7_a_removal_that_was_held_up_spares_an_injector_that_has_come_back_6_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "authority-deleted-one-too-far",
    "G7",
    "the entry after an authority's base stays",
    AuthorityCore._name_parts,
    "snapshot.commit + 1",
    "snapshot.commit + 2",
    seeds=0,
    test="tests/authority/test_injectors.py::test_g7_a_report_that_was_held_up_over_a_restart_puts_nobody_back_to_idleness_5_2",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "bases-of-unjournaled",
    "G7",
    "a base shows nothing that the journal does not know",
    AuthorityCore._next_append,
    "self._snapshot_due() and not self._pending.changes",
    "self._snapshot_due()",
    seeds=0,
    test="tests/authority/test_restart.py::test_g4_nothing_counts_before_the_acceptance_it_rests_on_is_journaled",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "shards-to-and-fro",
    "G8",
    "one shard more than others is no reason to give one up",
    PlacementPolicy._give_up,
    "excess < 2",
    "excess < 1",
    seeds=0,
    test="tests/authority/test_placement.py::test_one_shard_more_than_others_is_not_uneven",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "uneven-at-once",
    "G8",
    "shards are given up only when others had fewer for a while",
    PlacementPolicy._give_up,
    "now - self._uneven_since < self._delays.settle",
    "False",
    seeds=0,
    test="tests/authority/test_placement.py::test_shards_are_given_up_to_one_that_comes_back_once_it_has_lasted",
    why="seeds were not tried: the test shows it by itself, in seconds",
)
