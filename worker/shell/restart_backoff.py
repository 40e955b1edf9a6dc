"""Restart back-off for intervals that were given up after internal errors. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["RestartBackoff"]

_FIRST_PAUSE_SECONDS: Final = 1.0
_MAX_PAUSE_SECONDS: Final = 60.0
_MAX_TAKEOVERS: Final = 10
"""Maximum number of takeovers in succession. An error that remains after all of them (13 minutes) needs an operator."""
_MENDED_AFTER_SECONDS: Final = 600.0
"""Seconds without an error after which an interval's count restarts."""


@dataclass(slots=True)
class _Faults:
    count: int
    last: float


class RestartBackoff:
    """Counts internal errors by journal. A takeover affects every interval of the worker, so takeovers are delayed."""

    def __init__(self) -> None:
        self._faults: dict[str, _Faults] = {}

    def fault(self, journal: str, now: float) -> float | None:
        """An interval was given up at ``now``, in seconds of a steady clock.

        Returns:
            Seconds until the next takeover, doubled from error to error. None after too many errors.
        """
        self._faults = {
            one: faults for one, faults in self._faults.items() if now - faults.last <= _MENDED_AFTER_SECONDS
        }
        known = self._faults.setdefault(journal, _Faults(0, now))
        known.count += 1
        known.last = now
        if known.count > _MAX_TAKEOVERS:
            return None
        return float(min(_MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (known.count - 1)))
