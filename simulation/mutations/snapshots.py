"""Mutations of snapshots: of the cut, and of what its owners hold (sections 6.1, 6.2)."""

from __future__ import annotations

from millwheel.master.restores import RestoresInProgress
from millwheel.snapshots import claims, creating, cut
from millwheel.worker.dedup import renaming
from millwheel.worker.interval.commits.commits import CommitPipeline
from millwheel.worker.journal_base import JournalBase
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
    "taken or self._journal.frozen",
    "taken",
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
    "row[1] = name(row[1])",
    "row[1] = row[1]",
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
