"""Updates: records, states and productions when the topology changes (sections 4.1, 4.4, 7.1)."""

from __future__ import annotations

from millwheel.master.plans import Planner
from millwheel.sdk import migration
from millwheel.worker.shell.destinations import CatalogRouting
from simulation.mutations.base import mutation, replace, rewrite, rewriting

__all__: list[str] = []

_SEEDS = 300

rewriting(
    "removed_ones_dropped",
    "G1",
    "what a removed computation had produced is delivered",
    Planner.update,
    "record.removed.add(spec=computation, incarnation=incarnation, switching=number)",
    "pass",
    seeds=20,
    test="tests/master/test_updating.py::test_a_removed_computation_delivers_and_leaves_the_watermark",
    why="a computation must be removed while its consumers are slow",
)


@mutation(
    "G1",
    "migrate is given the version that a state was stored by",
    seeds=20,
    test="tests/sdk/test_migration.py::test_a_state_of_an_earlier_version_is_migrated_when_read",
    why="states must be read that two updates have passed by",
)
def migrated_as_the_first() -> None:
    """Every stored state is reported to be of version 1."""
    rewrite(migration.versioned, "state = migrate(found)", "state = migrate(StoredState(1, found.data))")


@mutation("G1", "productions are routed by the present version of the topology", seeds=_SEEDS)
def routed_as_at_first() -> None:
    """A worker resolves a stream's consumers once, and uses them for every later owner."""

    def make(route: object) -> object:
        known: dict[tuple[int, str], object] = {}
        return lambda self, stream: known.setdefault((id(self), stream), route(self, stream))  # type: ignore[operator]

    replace(CatalogRouting, "_route", make)
