"""Mutations of snapshots: of the cut, and of what its owners hold (sections 6.1, 6.2)."""

from __future__ import annotations

from millwheel.client.injector.process import InjectorProcess
from millwheel.client.injector.session import InjectorSession
from millwheel.master import forks, injection_plans
from millwheel.master.restores import RestoresInProgress
from millwheel.snapshots import claims, creating, cut, forking, restoring
from millwheel.snapshots.files import FileSeries
from millwheel.worker import names
from millwheel.worker.dedup import renaming
from millwheel.worker.interval.commits.commits import CommitPipeline
from millwheel.worker.interval.saved_keys import SavedKeys
from millwheel.worker.journal_base import JournalBase
from millwheel.worker.process import programs
from simulation.mutations.base import rewriting

__all__: list[str] = []

_WHY = "simulated clusters take no snapshots: the test shows it by itself, in seconds"

rewriting(
    "cut-with-deposed-owners",
    "G3",
    "a cut is void if a journal has a newer owner",
    cut,
    "head.sequencer != owners.sequencers[journal]",
    "False",
    seeds=0,
    test="tests/snapshots/test_cut_model.py::test_each_cut_is_consistent_at_any_moment",
    why=_WHY,
)

rewriting(
    "cut-without-second-question",
    "G1",
    "a cut is void if an owner went on before all stood still",
    cut,
    "after is None or not after.held or not after.settled or after.commit != before.commit",
    "False",
    seeds=0,
    test="tests/snapshots/test_cut_model.py::test_each_cut_is_consistent_at_any_moment",
    why=_WHY,
)

rewriting(
    "frozen-intervals-commit",
    "G12",
    "a frozen interval begins no commit",
    CommitPipeline.try_commit,
    "blocked or self._journal.frozen",
    "blocked",
    seeds=0,
    test="tests/worker/test_snapshot_holds.py::test_a_frozen_interval_begins_no_commit",
    why=_WHY,
)

rewriting(
    "pinned-bases-named",
    "G12",
    "no base is named while a snapshot reads",
    JournalBase.wants_append,
    " and not self.pinned",
    "",
    seeds=0,
    test="tests/worker/test_snapshot_holds.py::test_a_pinned_truncation_point_stays",
    why=_WHY,
)

rewriting(
    "saved-timers-that-were-deleted",
    "G12",
    "a reader of a journal shows no spilled copy of a timer that a tombstone deletes",
    SavedKeys.__init__,
    "row[6] >= voids.get(row[:3], row[6])",
    "True",
    seeds=0,
    test="tests/worker/interval/test_saved_keys.py::test_a_reader_finds_what_the_owner_committed",
    why="simulated clusters have no reader of journals: the test shows it by itself, in seconds",
)

rewriting(
    "saved-pages-as-keys",
    "G12",
    "a reader of a journal takes no page of a growing state for a key",
    SavedKeys.apply,
    "if not is_page_key(row[0])",
    "if True",
    seeds=0,
    test="tests/snapshots/test_state_pages.py::test_pages_of_growing_states_are_no_keys",
    why=_WHY,
)

rewriting(
    "truncated-while-rows-are-read",
    "G12",
    "a snapshot is void if a journal was truncated while its rows were read",
    creating,
    "head.truncation_point != before[journal].truncation_point",
    "False",
    seeds=0,
    test="tests/snapshots/test_in_clusters.py::test_a_journal_that_was_truncated_meanwhile_fails_it",
    why=_WHY,
)

rewriting(
    "restored-ids-of-former-journals",
    "G1",
    "the ids of a restored journal name the fresh journals of their senders",
    renaming,
    "_renamed(positions, names)",
    "positions",
    seeds=0,
    test="tests/snapshots/test_renaming.py::test_renamed_ids_are_those_of_the_fresh_journals",
    why=_WHY,
)

rewriting(
    "restore-of-a-former-term",
    "G1",
    "a restore whose data another term may drop makes no topology",
    RestoresInProgress.check,
    "not self._continues(known, request.number)",
    "False",
    seeds=0,
    test="tests/master/test_restoring.py::test_a_new_master_drops_what_a_restore_has_left",
    why=_WHY,
)

rewriting(
    "restores-left-behind",
    "G12",
    "what a dead master's restore has written is dropped",
    RestoresInProgress.collect,
    "sorted(known.restores.items())",
    "()",
    seeds=0,
    test="tests/master/test_restoring.py::test_a_new_master_drops_what_a_restore_has_left",
    why=_WHY,
)

rewriting(
    "chunks-deleted-while-written",
    "G12",
    "no chunk is deleted while a snapshot is written",
    claims,
    "datetime.now(UTC) - at < COUNTS_FOR",
    "False",
    seeds=0,
    test="tests/snapshots/test_incremental.py::test_two_claims_never_hold_in_any_order",
    why=_WHY,
)

rewriting(
    "claim-of-paused-process-dropped",
    "G12",
    "the claim of a process counts until the process is gone",
    claims,
    "holder.is_gone()",
    "True",
    seeds=0,
    test="tests/snapshots/test_incremental.py::test_a_claim_ends_with_its_process",
    why=_WHY,
)

rewriting(
    "hashed-within-the-forks-name",
    "G1",
    "ids of a fork's records are hashed within the original's name",
    InjectorProcess.open,
    "self._ids.hash_within(self._session.routing.id_stream)",
    "pass",
    seeds=0,
    test="tests/injectors/test_driver.py::test_ids_are_hashed_within_the_name_of_the_routing",
    why=_WHY,
)

rewriting(
    "foreign-hashes-sent",
    "G1",
    "nothing is sent to consumers that know other hashes",
    InjectorSession.take_routing,
    "known is not None and routing.id_stream != known.id_stream",
    "False",
    seeds=0,
    test="tests/injectors/test_driver.py::test_ids_are_hashed_within_the_name_of_the_routing",
    why=_WHY,
)

rewriting(
    "fork-hashes-within-its-originals-name-alone",
    "G1",
    "a fork of a fork hashes within the first one's name",
    forking,
    "manifest.topology.fork.id_topology or original",
    "original",
    seeds=0,
    test="tests/snapshots/test_fork_names.py::test_forks_of_forks_hash_within_the_first_name",
    why=_WHY,
)

rewriting(
    "fork-with-former-processes",
    "G1",
    "a fork's journals name its own injectors",
    names.RestoredNames.group,
    "is_injector(name) and name not in self._names",
    "False",
    seeds=0,
    test="tests/snapshots/test_fork_names.py::test_a_fork_knows_the_records_of_its_original",
    why=_WHY,
)

rewriting(
    "fork-with-former-queries",
    "G1",
    "a fork has batches of queries of its own",
    names.RestoredNames.query,
    "parts is not None and parts[1] == self._original",
    "False",
    seeds=0,
    test="tests/snapshots/test_fork_names.py::test_a_fork_knows_the_records_of_its_original",
    why=_WHY,
)

rewriting(
    "old-clients-feed-forks",
    "G1",
    "a client that hashes within a fork's name is refused",
    injection_plans,
    "not knows_id_stream and known",
    "False and known",
    seeds=0,
    test="tests/master/test_forks.py::test_a_client_from_before_forks_is_refused_by_name",
    why=_WHY,
)

rewriting(
    "forks-in-older-clusters",
    "G1",
    "a cluster whose processes may not know forks has none",
    forks,
    "known.format < FORKS",
    "False",
    seeds=0,
    test="tests/master/test_forks.py::test_a_cluster_of_an_older_format_has_no_forks",
    why=_WHY,
)

rewriting(
    "forks-with-former-readers",
    "G1",
    "a fork has no name of which others know ids",
    forks,
    "not renamed",
    "True",
    seeds=0,
    test="tests/master/test_forks.py::test_a_name_that_others_still_read_is_refused",
    why=_WHY,
)

rewriting(
    "code-under-its-own-name",
    "G1",
    "a fork's code runs under the fork's name",
    programs,
    "self.topology if own else self.topology.named(name)",
    "self.topology",
    seeds=0,
    test="tests/worker/test_programs.py::test_a_program_runs_under_the_names_of_original_and_fork",
    why=_WHY,
)

rewriting(
    "fork-with-its-originals-life",
    "G1",
    "a fork's receivers know its life by its own number",
    renaming,
    "since <= sequencer < TERMINAL_SEQUENCER",
    "False",
    seeds=0,
    test="tests/snapshots/test_fork_names.py::test_a_forks_receivers_know_its_life_by_its_number",
    why=_WHY,
)

rewriting(
    "fork-continues-a-former-life",
    "G1",
    "readers of an earlier topology of the name see a new life",
    forking.begin_lives,
    "dict.fromkeys(record.injected_since, number)",
    "{}",
    seeds=0,
    test="tests/snapshots/test_fork_names.py::test_a_forks_injected_streams_begin_lives",
    why=_WHY,
)

rewriting(
    "horizons-outlive-their-injectors",
    "G1",
    "a restored group of injectors is below no horizon",
    renaming,
    'kind == "horizon" and is_injector(row[1])',
    "False",
    seeds=0,
    test="tests/snapshots/test_fork_names.py::test_a_fresh_injector_is_below_no_restored_horizon",
    why=_WHY,
)

rewriting(
    "the-end-of-a-former-log-is-not-its-own",
    "G1",
    "a restored log names the offset up to which its records are those of the former one",
    restoring,
    "restored.former_ends[saved.incarnation] = end",
    "restored.former_ends[saved.incarnation] = end + 1000",
    seeds=0,
    test="tests/system/test_restored_logs.py::test_a_reader_behind_the_snapshot_stops_for_ever",
    why=_WHY,
)

rewriting(
    "snapshot-files-without-bound",
    "G13",
    "a snapshot reads no further than a file before the one that is written",
    FileSeries.write,
    "        await self._written()\n",
    "",
    seeds=0,
    test="tests/snapshots/test_writing.py::test_one_file_is_written_while_the_next_is_filled",
    why=_WHY,
)
