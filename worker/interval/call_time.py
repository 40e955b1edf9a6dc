"""How many records the next call of a hook for many records gets (G8, G13).

A call may take as long for a thousand records as for one. So the pace of single records does not say how many fit.

Invariant (G8): a call has at most twice the rows of one that returned within half of its limit, or two. *Who may break
it:* records that suddenly cost more. One call takes too long then, and the next one gets half as many rows. Single
records, attempts and failed calls are not measured here: a quick one says nothing of a call for many.

What is read for a call through filters and functions is not foreseen: their time ends the reading (``BatchRunner``).
"""

from __future__ import annotations

import sys
from math import inf
from typing import Final

__all__ = ["CallTime", "CallTrial"]

_FEWEST: Final = 2
"""A call may have so many rows in any case. One row would never show what a call costs."""
_USUAL: Final = 32
"""A model that takes longer than its limit by itself gets so many rows."""
_LONG: Final = 1.0
"""So many seconds a call for fewer rows may take: still far from the end of a lease."""


class CallTime:
    """How many rows the next call gets by the time that calls take.

    >>> time = CallTime(0.1)
    >>> for rows in (2, 4, 8, 16, 32):  # a model that takes 15 ms for any number of rows
    ...     time.ran(rows, 0.015)
    >>> time.rows
    64
    >>> time.ran(64, 16.0)  # a quarter of a second for each row
    >>> time.rows
    32
    >>> time.ran(32, 8.0)
    >>> time.rows
    16
    """

    __slots__ = ("limit", "rows")

    def __init__(self, limit: float) -> None:
        """``limit``: how many seconds a call should take. Infinite: any number of rows may come at once."""
        self.limit = limit
        self.rows = _FEWEST if limit < inf else sys.maxsize

    def ran(self, rows: int, seconds: float) -> None:
        """A call for several rows that did not fail has taken so many seconds."""
        limit = self.limit if self.rows >= _USUAL else max(self.limit, _LONG)
        if seconds > limit:
            fewest = _USUAL if seconds <= _LONG else _FEWEST
            self.rows = max(fewest, min(self.rows, rows // 2))
        elif seconds <= limit / 2 and rows >= self.rows:
            self.rows = 2 * rows


class CallTrial:
    """How many records the next call gets while records that a failed call has undone run again (G8).

    >>> trial = CallTrial()
    >>> trial.failed(1_000, 1_200)
    >>> trial.rows
    500
    >>> trial.ran(500, True)
    >>> trial.rows
    1000
    >>> trial.ran(700, True)  # the last ones that were undone
    >>> trial.rows
    0
    """

    __slots__ = ("_left", "rows")

    def __init__(self) -> None:
        self._left = 0
        self.rows = 0
        """The most rows of the next call. 0: there is no trial."""

    def failed(self, rows: int, undone: int) -> None:
        """A call for several rows failed, and so many records run again. The next call gets half of the rows."""
        self._left = max(self._left, undone)
        self.rows = max(1, rows // 2)

    def ran(self, rows: int, well: bool) -> None:
        """Some of these records are done with. ``well``: none has failed, so the next call gets twice as many."""
        self._left -= rows
        if self._left <= 0:
            self._left = self.rows = 0
        elif well:
            self.rows = max(self.rows, 2 * rows)
