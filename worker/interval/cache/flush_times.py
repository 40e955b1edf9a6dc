"""When the rows of states that have changed are written, if nothing waits for them (section 6.1.2)."""

from __future__ import annotations

__all__ = ["FlushTimes"]


class FlushTimes:
    """When the rows of dirty cells are written, if nothing waits for them. Times are those of ``elapsed``.

    Many rows are written sooner: a move to a successor must write all of them first.
    """

    def __init__(self, interval: int, apart: int, many: int) -> None:
        """``interval``: how long rows wait, in microseconds. ``apart``: how long ``many`` rows or more wait."""
        self._interval = interval
        self._apart = apart
        self._many = many
        self.restart(0)

    def restart(self, now: int) -> None:
        """Rows are behind from ``now`` on."""
        self._at = now + self._interval
        self._many_at = min(self._at, now + self._apart)

    def due_at(self, rows: int) -> int:
        """When so many rows are written."""
        return self._many_at if rows >= self._many else self._at
