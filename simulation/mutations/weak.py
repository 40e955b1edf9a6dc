"""Weak productions: sent first, and safe before their cause is committed (section 6.1.3)."""

from __future__ import annotations

import random
from typing import Any

from millwheel.worker.interval.commits import sealing
from millwheel.worker.interval.commits.commits import CommitPipeline
from millwheel.worker.interval.commits.weak_commits import WeakCommits
from millwheel.worker.interval.outbox.outbox import Outbox
from simulation.mutations.base import mutation, replace, rewrite, rewriting

__all__: list[str] = []


@mutation(
    "G10",
    "a record's id is committed when its weak productions are ACKed or stored",
    seeds=20,
    test="tests/worker/interval/test_productions.py::test_weak_productions_are_sent_first_and_acked_later",
    why="few of its computations produce weakly",
)
def weak_ones_unwaited() -> None:
    """A commit waits for no ACKs of its weak productions, and stores none of them."""
    waits = "    while self.weak_commits.queue and not self._append_blocked():"
    unwaited = (
        "    for sealed, _ in self.weak_commits.queue:\n"
        "        for token in sealed.unacked:\n"
        "            if (batch := self._outbox.get(token)) is not None:\n"
        "                batch.awaited = None\n"
        "        sealed.unacked = set()\n"
    )
    rewrite(CommitPipeline.settle_weak, waits, unwaited + waits)


rewriting(
    "timers-sent-first",
    "G10",
    "what a timer produces is stored before it is sent, by weak computations, too",
    CommitPipeline.try_commit,
    "if not self._weak or batch.fired or batch.given_up:",
    "if not self._weak or batch.given_up:",
    seeds=20,
    test="tests/worker/interval/test_weak_line.py::test_a_deposed_owner_sends_nothing_its_timers_make",
    why="a deposed owner must hear of a watermark before the receivers hear of its successor",
)


rewriting(
    "letters-sent-first",
    "G10",
    "a dead letter is stored before it is sent, by weak computations, too",
    CommitPipeline.try_commit,
    "if not self._weak or batch.fired or batch.given_up:",
    "if not self._weak or batch.fired:",
    seeds=1,
    test="tests/worker/interval/test_weak_line.py::test_a_weak_letter_is_stored_before_it_is_sent",
    why="its computations give up few records",
)


rewriting(
    "stragglers-unwritten",
    "G10",
    "stragglers among weak productions are stored with the commit",
    WeakCommits.complete,
    "stragglers += self._outbox.rows_of(outbound)",
    "pass",
    seeds=20,
    test="tests/worker/interval/test_productions.py::test_a_straggler_is_stored_in_a_commit_its_ack_in_a_later",
    why="few of its computations produce weakly",
)


@mutation(
    "G10",
    "a weak production made again has the id that it had",
    seeds=20,
    test="tests/worker/interval/test_productions.py::test_weak_ids_are_the_same_after_a_crash_in_any_batch",
    why="few of its computations produce weakly",
)
def weak_ids_anew() -> None:
    """Weak productions get random ids."""
    replace(sealing, "deterministic_id", lambda _: lambda *cause: random.randbytes(16))


rewriting(
    "marks-beyond-the-journal",
    "G1",
    "a mark passes no position of a commit that is not in the journal",
    Outbox.statement,
    "mark = min(self.mark(consumer, otherwise), otherwise)",
    "mark = self.mark(consumer, otherwise)",
    seeds=0,
    test="tests/worker/interval/test_productions.py::test_no_mark_passes_what_is_not_in_the_journal",
    why="a weak commit must keep nothing, and the next one must fire a timer",
)

rewriting(
    "ids-of-two-kinds-together",
    "G1",
    "an outbound batch has ids of one kind",
    Outbox,
    " or bool(batch.opaque) is not bool(opaque)",
    "",
    seeds=0,
    test="tests/worker/interval/test_productions.py::test_ids_of_one_batch_are_of_one_kind",
    why="a takeover must find commits of both kinds without an ACK",
)


@mutation("G10", "the productions of one call have ids of their own")
def weak_ids_shared() -> None:
    """All weak productions of one call to a stream have the id of the first one."""
    replace(sealing, "deterministic_id", lambda causal: lambda *cause: causal(*cause[:-1], 0))


@mutation("G1", "a sender names the stuck productions that its mark has passed")
def stuck_ones_unnamed() -> None:
    """A mark passes productions that have been stuck for long, and the sender names none of them."""

    def make(statement: Any) -> Any:
        return lambda self, *arguments: (statement(self, *arguments)[0], [])

    replace(Outbox, "statement", make)
