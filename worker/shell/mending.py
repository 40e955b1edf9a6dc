"""When to come back for intervals that were given up after internal errors. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Mending"]

_FIRST: Final = 1.0
_LAST: Final = 60.0
_MOST: Final = 10
"""Takeovers in succession, at most: an error that is still there after all of them (13 minutes) needs a person."""
_WELL: Final = 600.0
"""Seconds without an error after which an interval counts as mended."""


@dataclass(slots=True)
class _Faults:
    count: int
    last: float


class Mending:
    """Counts internal errors by journal. A takeover touches every interval of the worker, so they are spaced out."""

    def __init__(self) -> None:
        self._faults: dict[str, _Faults] = {}

    def fault(self, journal: str, now: float) -> float | None:
        """An interval was given up at ``now`` (seconds of a steady clock): seconds until a takeover is to be had,
        doubling from error to error; None if there were enough of them."""
        self._faults = {one: faults for one, faults in self._faults.items() if now - faults.last <= _WELL}
        known = self._faults.setdefault(journal, _Faults(0, now))
        known.count += 1
        known.last = now
        if known.count > _MOST:
            return None
        return float(min(_LAST, _FIRST * 2 ** (known.count - 1)))
