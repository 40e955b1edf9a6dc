"""Topologies that come back under their names: what of their former lives is void (sections 4.1, 7.1)."""

from __future__ import annotations

from millwheel.master.plans import Planner
from simulation.mutations.base import mutation, replace

__all__: list[str] = []


@mutation("G7", "a stream that comes back has none of its former injectors", seeds=300)
def injectors_outlive_their_stream() -> None:
    """An injector that has finished in a former life of its stream has finished in the next one."""
    replace(Planner, "_earlier_injectors", lambda _: lambda self, spec: ())
