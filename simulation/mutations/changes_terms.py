"""Conditions and the order of awaits where masters and authorities meet the store and the coordinator (section 7)."""

from __future__ import annotations

from millwheel.authority.shell import AuthorityShell
from simulation.mutations.base import rewriting

__all__: list[str] = []

rewriting(
    "removed-though-alive",
    "G7",
    "a delayed removal leaves a life that began since alone",
    AuthorityShell.remove,
    "if up_to and self._core.outlives(computation, up_to):",
    "if False:",
    seeds=0,
    test="tests/authority/test_shell.py::test_g7_a_removal_that_was_held_up_spares_an_injector_that_has_come_back_6_2",
    why="the term, or the shard, must end between two steps; the test places it there",
)

rewriting(
    "stopped-yet-heard",
    "G3",
    "a shard that has stopped takes no reports",
    AuthorityShell.report,
    "    self._check()\n    refused",
    "    refused",
    seeds=0,
    test="tests/authority/test_shell.py::test_g3_a_deposed_shard_stops_and_never_broadcasts_7_2",
    why="the term, or the shard, must end between two steps; the test places it there",
)
