"""Whether small groups are committed in place, on the event loop, or by the store's thread.

A handover to the thread and back costs about 0.3 ms of processor time, and two waits for the interpreter lock. A sync
in place costs its own time, in which the loop does nothing else.
"""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["CommitPlace"]

_FAST_SYNC_SECONDS: Final = 300e-6
"""Syncs in place are always worthwhile if they are shorter than this: a handover takes as long."""
_SHORT_SYNC_SECONDS: Final = 1e-3
"""Syncs up to this time are worthwhile for a loop that has time: a handover makes the commit wait longer."""
_LOOP_SHARE: Final = 0.25
"""The most of the loop's time that such syncs take. A loop without time does other work during a sync by the thread."""
_BURST_SECONDS: Final = 0.005
"""So much of that time may be used at once."""
_MAX_DEBT_SECONDS: Final = 2 * _BURST_SECONDS
"""Syncs beyond the share are forgotten above this: fast ones take any share, and a slow one may take long."""
_MAX_REMEMBERED: Final = 9
_PROBE_EVERY: Final = 32
"""While syncs are slow, one in this many small groups is still committed in place, to measure the sync time again."""


class CommitPlace:
    """Decides by the median time of the last syncs in place.

    The median ignores a single slow sync, which every disk has. Syncs on the thread are not measured: their times
    include the wait for the interpreter lock.
    """

    def __init__(self) -> None:
        self._last = deque([0.0] * _MAX_REMEMBERED, _MAX_REMEMBERED)
        self._typical = 0.0
        self._refused = 0
        self._spent = 0.0
        """Seconds of syncs in place, less the loop's share of the time since. At most ``_MAX_DEBT_SECONDS``."""
        self._looked = 0.0

    def allows(self, now: float) -> bool:
        """Whether a group that begins at ``now``, in seconds of any steady clock, may be committed in place."""
        self._spent = max(0.0, self._spent - (now - self._looked) * _LOOP_SHARE)
        self._looked = now
        if self._typical < _FAST_SYNC_SECONDS:
            return True
        if self._typical < _SHORT_SYNC_SECONDS and self._spent < _BURST_SECONDS:
            return True
        self._refused += 1
        if self._refused < _PROBE_EVERY:
            return False
        self._refused = 0
        return True

    def took(self, seconds: float) -> None:
        """Record the duration of a sync in place."""
        self._last.append(seconds)
        self._typical = sorted(self._last)[_MAX_REMEMBERED // 2]
        self._spent = min(self._spent + seconds, _MAX_DEBT_SECONDS)
