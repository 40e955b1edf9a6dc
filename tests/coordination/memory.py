"""The coordinator in memory: deterministic, lost when the process ends."""

from __future__ import annotations

from collections.abc import Callable

from millwheel.coordination.local import LocalCoordinator
from millwheel.coordination.state import HISTORY_REVISIONS, CoordinatorState


class MemoryCoordinator(LocalCoordinator):
    """A coordinator for tests.

    With a ``clock`` (seconds) no timer runs. A lease ends in the next transaction after its time, or in
    ``expire_leases()``.
    """

    def __init__(self, clock: Callable[[], float] | None = None, *, history: int = HISTORY_REVISIONS) -> None:
        super().__init__(CoordinatorState(history=history), clock)
