"""Counts the internal errors of intervals, which decide when intervals are taken over again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millwheel.model.backoff import Backoff

__all__ = ["RESTART_BACKOFF", "InternalErrors"]

RESTART_BACKOFF: Final = Backoff(1.0, 60.0)
"""Seconds until the next takeover. A takeover affects every interval of the worker, so takeovers are delayed."""
_MAX_TAKEOVERS: Final = 10
"""Maximum number of takeovers in succession. An error that remains after all of them (5 minutes) needs an operator."""
_MENDED_AFTER_SECONDS: Final = 600.0
"""Seconds without an error after which an interval's count restarts."""


@dataclass(slots=True)
class _Faults:
    count: int
    last: float


class InternalErrors:
    """Counts internal errors in succession, by journal."""

    def __init__(self) -> None:
        self._faults: dict[str, _Faults] = {}

    def fault(self, journal: str, now: float) -> int | None:
        """An interval was given up at ``now``, in seconds of a steady clock.

        Returns:
            The number of its errors in succession. None after too many of them: no takeover must follow.
        """
        self._faults = {
            one: faults for one, faults in self._faults.items() if now - faults.last <= _MENDED_AFTER_SECONDS
        }
        known = self._faults.setdefault(journal, _Faults(0, now))
        known.count += 1
        known.last = now
        return None if known.count > _MAX_TAKEOVERS else known.count
