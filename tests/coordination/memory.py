"""The coordinator in memory: deterministic, lost when the process ends. And the catalog that a coordinator has."""

from __future__ import annotations

from collections.abc import Callable

from millwheel.coordination.contract import Coordinator
from millwheel.coordination.local import LocalCoordinator
from millwheel.coordination.state import HISTORY_REVISIONS, CoordinatorState
from millwheel.model.catalog import Catalog


class MemoryCoordinator(LocalCoordinator):
    """A coordinator for tests.

    With a ``clock`` (seconds) no timer runs. A lease ends in the next transaction after its time, or in
    ``expire_leases()``.
    """

    def __init__(self, clock: Callable[[], float] | None = None, *, history: int = HISTORY_REVISIONS) -> None:
        super().__init__(CoordinatorState(history=history), clock)


async def read_catalog(coordinator: Coordinator) -> Catalog:
    """What any coordinator has at present."""
    known = Catalog()
    known.load(await coordinator.list(""))
    return known
