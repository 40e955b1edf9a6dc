"""The coordinator in plain memory: deterministic, gone with the process."""

from __future__ import annotations

from collections.abc import Callable

from millwheel.coordination.local import LocalCoordinator
from millwheel.coordination.state import HISTORY_REVISIONS, CoordinatorState

__all__ = ["MemoryCoordinator"]


class MemoryCoordinator(LocalCoordinator):
    """For tests and simulation. With a ``clock`` (seconds) nothing happens unless it is asked for:
    leases end in the next transaction after their time, or in ``expire_leases()``."""

    def __init__(self, clock: Callable[[], float] | None = None, *, history: int = HISTORY_REVISIONS) -> None:
        super().__init__(CoordinatorState(history=history), clock)
