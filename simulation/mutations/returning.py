"""Topologies that come back under their names: what of their former lives is void (sections 4.1, 7.1)."""

from __future__ import annotations

from millwheel.master.plans import Planner
from simulation.mutations.base import mutation, replace

__all__: list[str] = []


@mutation(
    "G7",
    "a stream that comes back has none of its former injectors",
    seeds=10,
    test="tests/master/test_endings.py"
    "::test_g7_a_stream_comes_back_only_after_the_authority_has_forgotten_its_injectors_5_2",
    why="an injector that has finished must be waited for again before its former end is heard of",
)
def injectors_outlive_their_stream() -> None:
    """An injector that has finished in a former life of its stream has finished in the next one."""
    replace(Planner, "_earlier_injectors", lambda _: lambda self, spec: ())


@mutation(
    "G7",
    "a stream that comes back has none of its former log",
    seeds=0,
    test="tests/master/test_endings.py"
    "::test_g7_a_stream_that_comes_back_has_a_log_of_its_own_though_the_former_one_is_still_there_7_1",
    why="a topology must come back while the authority is away: one seed of several hundred does that",
)
def logs_outlive_their_stream() -> None:
    """A stream that comes back goes on with the log of its former life, if that is still there."""
    replace(Planner, "_end_earlier_logs", lambda _: lambda self, spec: None)
