"""Mutations of comparisons, extrema and conditions in the low watermark authority's core (section 7.2)."""

from __future__ import annotations

from millwheel.authority.calls import AuthorityCalls
from millwheel.authority.catalog_members import CatalogMembers
from millwheel.authority.core import AuthorityCore
from millwheel.authority.group import Group
from millwheel.authority.injected import InjectorGroup
from millwheel.authority.keyed import KeyedGroup
from millwheel.authority.placement import PlacementPolicy
from millwheel.authority.registry import Registry
from millwheel.authority.service import WatermarkServicer
from simulation.mutations.base import rewriting

__all__: list[str] = []

rewriting(
    "one-sequencer-twice",
    "G4",
    "one sequencer is not accepted for other keys beside those that it has",
    KeyedGroup.accept,
    "largest.sequencer >= sequencer",
    "largest.sequencer > sequencer",
    seeds=0,
    test="tests/authority/test_intervals.py::test_an_acceptance_overlapping_a_larger_sequencer_is_refused",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "larger-share-inherited",
    "G7",
    "a new owner starts from the smallest value of its keys",
    KeyedGroup.accept,
    "min(state.watermark for state in over)",
    "max(state.watermark for state in over)",
    seeds=0,
    test="tests/authority/test_intervals.py::test_a_merged_interval_starts_from_the_smaller_value",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "older-processes-accepted",
    "G4",
    "the authority accepts no process below the sequencer that it knows",
    InjectorGroup.accept,
    "last.sequencer > sequencer",
    "last.sequencer < 0",
    seeds=0,
    test="tests/authority/test_injectors.py::test_an_older_process_of_the_same_name_is_refused",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "unreceived-reports-answered",
    "G7",
    "a process gets the answer that its report counts only when the report has come",
    InjectorGroup.accept,
    "last.last_report >= report_number",
    "last.last_report >= 0",
    seeds=0,
    test="tests/authority/test_injectors.py::test_reacceptance_is_answered_once_idle_end_is_journaled",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "older-expectations",
    "G7",
    "an older list of expected processes changes nothing",
    InjectorGroup.expect,
    "0 < as_of < self.expected_as_of",
    "as_of < 0",
    seeds=0,
    test="tests/authority/test_injectors.py::test_a_paused_masters_expected_set_removes_no_process",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "one-finished-for-all",
    "G7",
    "a stream ends when all of its processes have finished",
    InjectorGroup,
    " if idle else ",
    " if len(idle) == len(self._states) else ",
    seeds=0,
    test="tests/authority/test_injectors.py::test_finished_and_idle_processes_keep_the_last_promise",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "promises-leave-with-the-idle",
    "G8",
    "what a process promises counts before it is idle",
    InjectorGroup,
    "self._promised = max(self._promised, self.smallest())",
    "pass",
    seeds=0,
    test="tests/authority/test_injectors.py::test_what_a_process_promises_counts_before_it_is_idle",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "finished-ones-go-on",
    "G7",
    "a process that has finished stays finished",
    Group.report,
    "if self.of_processes and state.watermark == MAX_TIMESTAMP:",
    "if False:",
    seeds=0,
    test="tests/authority/test_injectors.py::test_a_finished_process_is_plus_infinity_and_that_is_final",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "moved-before-their-changes",
    "G7",
    "values follow the changes that they rest on into the journal",
    AuthorityCore,
    "if self._unjournaled.changes:\n            return content",
    "if False:\n            return content",
    seeds=0,
    test="tests/authority/test_restart.py::test_nothing_counts_before_its_acceptance_is_journaled",
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
    test="tests/authority/test_injectors.py::test_an_injector_of_an_earlier_incarnation_is_refused",
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
    test="tests/authority/test_injectors.py::test_a_delayed_removal_restores_no_later_process",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "removed-twice",
    "G7",
    "a removal that is repeated leaves the next life alone",
    AuthorityCalls,
    "0 < up_to <= self._registry.ended.get(group, 0)",
    "False",
    seeds=0,
    test="tests/authority/test_injectors.py::test_a_delayed_removal_keeps_the_next_streams_expected_set",
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
    test="tests/authority/test_shard.py::test_a_delayed_removal_spares_an_injector_that_is_back",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "authority-deleted-one-too-far",
    "G7",
    "the entry after an authority's base stays",
    AuthorityCore,
    "snapshot.commit + 1",
    "snapshot.commit + 2",
    seeds=0,
    test="tests/authority/test_injectors.py::test_a_report_delayed_over_a_restart_makes_no_process_idle",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "bases-of-unjournaled",
    "G7",
    "a base shows nothing that the journal does not know",
    AuthorityCore,
    "self._snapshot_due() and not self._unjournaled.changes",
    "self._snapshot_due()",
    seeds=0,
    test="tests/authority/test_restart.py::test_nothing_counts_before_its_acceptance_is_journaled",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "shards-to-and-fro",
    "G8",
    "one shard more than others is no reason to give one up",
    PlacementPolicy,
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
    PlacementPolicy,
    "now - self._uneven_since < self._delays.settle",
    "False",
    seeds=0,
    test="tests/authority/test_placement.py::test_shards_are_returned_to_one_that_is_back_and_stays",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "members-of-anyone",
    "G13",
    "a shard keeps members of the catalog only",
    WatermarkServicer.AcceptSequencer,
    "if not shard.knows(request.group, member, request.sequencer):",
    "if False:",
    seeds=0,
    test="tests/authority/test_catalog_members.py::test_members_that_do_not_exist_make_no_groups",
    why="simulated processes announce themselves only when the catalog has them",
)

rewriting(
    "shares-without-bound",
    "G13",
    "a group has a bounded number of members",
    KeyedGroup.accept,
    "count > max(MAX_MEMBERS, len(self._states))",
    "False",
    seeds=0,
    test="tests/authority/test_intervals.py::test_a_group_is_not_cut_into_any_number_of_shares",
    why="no computation has so many intervals in a seed",
)

rewriting(
    "sequencers-invented",
    "G4",
    "an injector process offers no sequencer that no master drew for it",
    CatalogMembers,
    "if sequencer > drawn:",
    "if False:",
    seeds=0,
    test="tests/authority/test_catalog_members.py::test_a_stream_gets_no_process_that_no_master_opened",
    why="simulated processes offer what a master drew",
)
