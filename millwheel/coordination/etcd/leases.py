"""Leases as their holder sees them: over when they may be, by a clock that counts suspension.

etcd ends a lease when it was not renewed in time. Its holder may learn of that late: it was paused, or cut off. So it
counts for itself, from the moment before it asked for the last renewal that it got; etcd counts from later on. A lease
that is over here is treated as ended, even if etcd, after a change of its leader say, would still renew it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from millwheel.coordination.contract import LeaseExpiredError

__all__ = ["HeldLeases", "seconds_since_boot"]


def seconds_since_boot() -> float:
    """Steady, and counting while the machine is suspended, as the monotonic clock is not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class _Held:
    ttl: float
    deadline: float


class HeldLeases:
    """The leases that were granted through one client. Pure, but for the clock that it is given."""

    def __init__(self, clock: Callable[[], float] = seconds_since_boot) -> None:
        self._clock = clock
        self._held: dict[int, _Held] = {}

    def now(self) -> float:
        """The time that ``asked`` is told in."""
        return self._clock()

    def renewed(self, lease: int, ttl: float, asked: float) -> None:
        """etcd granted or renewed a lease for ``ttl`` seconds, on being asked at ``asked`` or later.

        One that is over already stays so: what was done in its name meanwhile was done without it.
        """
        held = self._held.get(lease)
        if held is None or not self.is_over(lease):
            self._held[lease] = _Held(ttl, asked + ttl)

    def is_over(self, lease: int) -> bool:
        """Whether a lease held here has run out. Those of others are not known."""
        held = self._held.get(lease)
        return held is not None and self._clock() >= held.deadline

    def check(self, lease: int) -> None:
        """LeaseExpiredError if ``lease`` is over."""
        if self.is_over(lease):
            raise LeaseExpiredError(f"lease {lease:x} was not renewed for {self._held[lease].ttl:g} s, and has ended")

    def forget(self, lease: int) -> None:
        """etcd knows it no more."""
        self._held.pop(lease, None)
