"""A count by key and window that is written by hand for Bytewax: a logic, and no windows of its library."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from bytewax.operators import StatefulBatchLogic

__all__ = ["CountingLogic", "Kept", "WindowCount"]

WindowCount = tuple[int, int]
"""The end of a window, and the number of records in it."""
Kept = tuple[dict[int, int], int]
"""What a restart continues from: the open windows, and the newest time."""


class CountingLogic(StatefulBatchLogic[tuple[int, Any], WindowCount, Kept]):  # type: ignore[misc]
    """Counts a key's records by window. A window is complete when a record of the key is so much later.

    Records have a time first. It, ``size`` and ``late`` have one unit.
    """

    def __init__(self, kept: Kept | None, size: int, late: int) -> None:
        self.counts, self.newest = ({}, 0) if kept is None else (dict(kept[0]), kept[1])
        self.size, self.late = size, late

    def on_batch(self, values: list[tuple[int, Any]]) -> tuple[Iterable[WindowCount], bool]:
        """Count the records, and pass on what is complete."""
        counts, newest, size = self.counts, self.newest, self.size
        for at, _ in values:
            end = at - at % size + size
            if end in counts:
                counts[end] += 1
            else:
                counts[end] = 1
            if at > newest:
                newest = at
        self.newest = newest
        complete = newest - self.late
        done = [(end, counts.pop(end)) for end in list(counts) if end <= complete]
        return done, StatefulBatchLogic.RETAIN

    def on_eof(self) -> tuple[Iterable[WindowCount], bool]:
        """No records come any more: pass on everything."""
        return list(self.counts.items()), StatefulBatchLogic.DISCARD

    def notify_at(self) -> datetime | None:
        """It waits for no time."""
        return None

    def snapshot(self) -> Kept:
        """What a restart continues from."""
        return dict(self.counts), self.newest
