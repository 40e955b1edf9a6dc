"""Leases as their holder counts them, by a clock that includes suspension.

etcd ends a lease that is not renewed in time. The holder may notice that late, because it was paused or disconnected.
So the holder counts for itself. It starts before it sends a renewal; etcd starts later, so the holder's count ends
first. A lease that is over here is treated as ended, even if etcd would still renew it (after a change of etcd's
leader, for example).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from millwheel.coordination.contract import LeaseExpiredError

__all__ = ["HeldLeases", "seconds_since_boot"]


def seconds_since_boot() -> float:
    """Return monotonic seconds that include the machine's suspension. ``time.monotonic`` does not include it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class _Held:
    ttl: float
    deadline: float


class HeldLeases:
    """The leases that one client was granted. Pure, except for its clock. Any thread may ask."""

    def __init__(self, clock: Callable[[], float] = seconds_since_boot) -> None:
        self._clock = clock
        self._held: dict[int, _Held] = {}

    def now(self) -> float:
        """Return the current time, for the ``asked`` argument of :meth:`renewed`."""
        return self._clock()

    def renewed(self, lease: int, ttl: float, asked: float) -> None:
        """Record that etcd granted or renewed a lease for ``ttl`` seconds, for a request sent at ``asked`` or later.

        A lease that is already over stays over: after its deadline its holder may have acted without a valid lease.
        """
        held = self._held.get(lease)
        if held is None or not self.is_over(lease):
            self._held[lease] = _Held(ttl, asked + ttl)

    def answered(self, lease: int, ttl: float, asked: float) -> None:
        """Record etcd's answer to a renewal that was sent at ``asked`` or later.

        Raises:
            LeaseExpiredError: ``ttl`` is 0: the lease has ended.
        """
        if ttl <= 0:
            # The answer may come while no one waits for it. So the lease stays over until its holder gives it up.
            self._held[lease] = _Held(self.ttl(lease), -math.inf)
            self.check(lease)
        self.renewed(lease, ttl, asked)

    def is_over(self, lease: int) -> bool:
        """Return whether a lease of this client has run out. False for leases of other clients."""
        held = self._held.get(lease)
        return held is not None and self._clock() >= held.deadline

    def ttl(self, lease: int) -> float:
        """Return a lease's time to live, in seconds. 0 for leases of other clients."""
        held = self._held.get(lease)
        return 0.0 if held is None else held.ttl

    def remaining(self, lease: int) -> float:
        """Return the seconds until a lease of this client has run out. Infinity for leases of other clients."""
        held = self._held.get(lease)
        return math.inf if held is None else held.deadline - self._clock()

    def check(self, lease: int) -> None:
        """Raise LeaseExpiredError if ``lease`` is over."""
        if self.remaining(lease) == -math.inf:
            raise LeaseExpiredError(f"lease {lease:x} has ended, and what was bound to it is gone")
        if self.is_over(lease):
            raise LeaseExpiredError(f"lease {lease:x} was not renewed for {self._held[lease].ttl:g} s, and has ended")

    def forget(self, lease: int) -> None:
        """Remove a lease that its holder has given up. A lease that etcd has ended stays until then."""
        self._held.pop(lease, None)
