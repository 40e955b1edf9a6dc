"""When a split reads again: after its records, after a read without any, at a limited rate, and behind slow splits.

Pure functions of times. Microseconds.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["Timing"]

_SHORTEST_PAUSE: Final = 10_000
_LONGEST_PAUSE: Final = 1_000_000
"""The bounds of the pause after a read without records. In between it is a quarter of the time since the last one."""


class Timing(msgspec.Struct, frozen=True):
    """How the times of records make the low watermark of a split, and when the split reads."""

    out_of_order: int = 0
    """How much older than the newest record a record may be without being late."""
    idle_after: int | None = None
    """After so long without a record at its end, a split follows the wall clock. None: it waits for records."""
    find_every: int = 1_000_000
    """The time between two searches for splits."""
    records_per_second: float | None = None
    """The most records that a split reads in a second, on average. None: there is no limit."""
    allowed_skew: int | None = None
    """How far a split may be ahead of the low watermark of all. None: there is no limit."""
    any_timestamp: bool = False
    """Whether a record may have any time. Otherwise one before 1980, or a year ahead of the clock, cannot be read."""

    def pause_after_nothing(self, since: int) -> int:
        """How long a split waits that has read nothing for ``since`` microseconds."""
        return min(max(since // 4, _SHORTEST_PAUSE), _LONGEST_PAUSE)

    def pause_after(self, records: int) -> int:
        """How long after the beginning of a read that has got so many records the next one may begin."""
        rate = self.records_per_second
        return 0 if rate is None else int(records / rate * 1_000_000)

    def too_far_ahead(self, split: int, all_splits: int, search: int) -> bool:
        """Whether a split waits for slower ones, because states of windows grow with the distance (section 8.4).

        *Invariant (G8): the split that holds the low watermark reads.* It is not ahead of it. And if the search for
        splits holds it, all of them read, because no read would raise it.

        Args:
            split: The low watermark of the split.
            all_splits: The low watermark of all splits, as it was last broadcast.
            search: The low watermark of the search for splits, which says how old those that come later may be.
        """
        return self.allowed_skew is not None and all_splits < search and split - all_splits > self.allowed_skew
