"""Conditions and the order of awaits where a worker meets the store, the coordinator and its senders (section 6.2)."""

from __future__ import annotations

from millwheel.worker.shell.host import CoreHost
from simulation.mutations.base import rewriting

__all__: list[str] = []

rewriting(
    "refused-after-silence",
    "G3",
    "of a refusal after a silence only one by the very same append is success",
    CoreHost._append,
    "applied = uncertain and (error.sequencer, error.commit) == (append.sequencer, append.commit)",
    "applied = uncertain",
    seeds=0,
    test="tests/worker/test_host.py::test_g3_our_commit_number_by_another_sequencer_is_not_ours_6_2",
    why="the call must fail, or the interval be let go, between two steps; the test places it there",
)

rewriting(
    "unanswered-at-the-end",
    "G8",
    "deliveries that wait are answered when the interval is let go",
    CoreHost._shut,
    "        _refuse(delivery)\n",
    "        pass\n",
)

rewriting(
    "own-parts-deleted",
    "G12",
    "an owner deletes parts of earlier owners alone",
    CoreHost._delete_leftovers,
    "part.sequencer < sequencer",
    "part.sequencer <= sequencer",
)
