"""How many records the next call of a hook for many records gets (G8).

A call may take as long for a thousand records as for one. So the pace of single records does not say how many fit. Each
call is measured: it takes some seconds by itself, and some for each of its rows.

Invariant: the rows of a call are expected to take at most the limit, or as long as the call takes by itself. A call has
at most twice the rows of the largest one since a call took too long, or two. *Who may break it:* records that suddenly
cost more. One call takes too long then, and its rows alone say how many the next one gets. Single records, attempts
and failed calls are not measured here: a quick one says nothing of a call for many.
"""

from __future__ import annotations

from math import inf
from typing import Final

__all__ = ["CallTime"]

_FEWEST: Final = 2
"""A call may have so many rows in any case. One row would never show what a call costs by itself."""
_OTHER_SIZE: Final = 1.5
"""Two calls whose sizes differ by this factor show what a row costs."""
_UNEXPECTED: Final = 2.0
"""If a call takes so many times as long or as short as expected, the calls before it say nothing of it."""
_REMEMBERED: Final = 0.9
"""What is left of the cost of a row after a call of the same size. So calls get other sizes now and then."""


class CallTime:
    """The time that calls take, and how many rows the next one gets.

    >>> time = CallTime()
    >>> for rows in (2, 4, 8):  # a model that takes 15 ms for any number of rows
    ...     time.ran(rows, 0.015, 0.01)
    >>> time.fitting(0.01, 1_024)
    16
    >>> time.ran(16, 16.0, 0.01)  # a second for each row
    >>> time.fitting(0.01, 1_024)
    2
    """

    __slots__ = ("_fixed", "_grown", "_of_row", "_rows", "_seconds", "trial")

    def __init__(self) -> None:
        self._rows = 0
        self._seconds = 0.0
        self._fixed = 0.0
        """Seconds of a call, for any number of rows."""
        self._of_row = 0.0
        self._grown = _FEWEST
        self.trial = 0
        """The most rows of the next call, because one has failed. 0: none has failed."""

    def ran(self, rows: int, seconds: float, limit: float) -> None:
        """A call for several rows has returned after ``seconds``. ``limit``: how long one should take."""
        expected, other = self.expected(rows), True
        if not self._rows or seconds * _UNEXPECTED < expected:
            self._of_row = 0.0
        elif seconds > max(limit, _UNEXPECTED * expected):
            self._of_row = seconds / rows
            self._grown = _FEWEST
        elif not 1 / _OTHER_SIZE < rows / self._rows < _OTHER_SIZE:
            self._of_row = (seconds - self._seconds) / (rows - self._rows)
        else:
            self._of_row *= _REMEMBERED
            other = False
        self._of_row = min(max(0.0, self._of_row), seconds / rows)
        self._fixed = seconds - self._of_row * rows
        if other or rows == self._rows:
            self._rows, self._seconds = rows, seconds
        fit = rows if seconds <= max(limit, _UNEXPECTED * expected) else self._by_time(limit)
        self._grown = max(self._grown, int(2 * min(rows, fit)))

    def fitting(self, limit: float, most: int) -> int:
        """How many rows the next call gets: at least one, and at most ``most``. ``limit``: how long it should take."""
        rows = min(most, self.trial) if self.trial else most
        if limit < inf:
            rows = min(rows, max(_FEWEST, int(min(self._grown, self._by_time(limit)))))
        return max(1, rows)

    def expected(self, rows: int) -> float:
        """How many seconds a call for so many rows takes."""
        return self._fixed + self._of_row * rows

    def failed(self, rows: int) -> None:
        """A call for several rows failed. The next ones get half of them, until a row fails alone."""
        self.trial = max(1, rows // 2)

    def returned(self, rows: int, most: int) -> None:
        """A call for ``rows`` records has returned. While others fail, the next one gets twice as many."""
        if self.trial:
            self.trial = 0 if 2 * rows >= most else max(self.trial, 2 * rows)

    def _by_time(self, limit: float) -> float:
        return inf if not self._of_row else max(limit - self._fixed, self._fixed) / self._of_row
