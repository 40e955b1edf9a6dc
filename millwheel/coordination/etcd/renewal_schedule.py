"""Which lease is renewed next, and until when. Pure.

A holder asks for a renewal at least every third of a lease's time to live. Between two requests the lease is renewed
too, in case the holder's event loop is busy and asks late.

Invariant: a lease is renewed for at most one time to live after its holder last ran. Why: a process that hangs may
keep a thread that still runs. Without the bound, it would hold its leases, and all that is bound to them, for ever. So
a lease ends at most two times to live after its holder's event loop stopped, and one after its process stopped. Who
could break it: a call of :meth:`RenewalSchedule.ask` or :meth:`RenewalSchedule.ran` outside the holder's event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["RenewalSchedule"]

_UNASKED_AFTER: Final = 0.5
"""In times to live: a lease is renewed without a request if this time has passed since the last renewal. A holder asks
earlier, unless its event loop is busy."""
_PAUSE_SECONDS: Final = 0.05
"""Between two attempts."""


@dataclass(slots=True)
class _RenewedLease:
    due: float
    until: float
    """The lease is not renewed after this time, unless its holder asks again."""
    ttl: float
    attempts: int = 0
    """Attempts that failed since the last success."""


class RenewalSchedule:
    """The leases that are renewed. Times are seconds of one clock, and every method takes the present time of it."""

    def __init__(self) -> None:
        self._kept: dict[int, _RenewedLease] = {}

    def __contains__(self, lease: int) -> bool:
        return lease in self._kept

    def granted(self, lease: int, ttl: float, asked: float) -> None:
        """The lease was granted, at a request of its holder at ``asked``. ``ttl``: its time to live."""
        self._kept[lease] = _RenewedLease(asked + _UNASKED_AFTER * ttl, asked + ttl, ttl)

    def ask(self, lease: int, ttl: float, now: float) -> None:
        """The holder asks for a renewal now. ``ttl``: the lease's time to live. 0: it is not known yet."""
        kept = self._kept.setdefault(lease, _RenewedLease(now, now, ttl))
        kept.due, kept.until = now, now + ttl
        kept.ttl = ttl

    def ran(self, lease: int, ttl: float, now: float) -> None:
        """The holder's event loop runs: the holder has read an answer. A lease that is not renewed stays so."""
        kept = self._kept.get(lease)
        if kept is not None:
            kept.until = now + ttl

    def renewed(self, lease: int, ttl: float, asked: float) -> None:
        """An attempt that began at ``asked`` has succeeded."""
        kept = self._kept[lease]
        kept.attempts, kept.due = 0, asked + _UNASKED_AFTER * ttl
        kept.ttl = ttl

    def failed(self, lease: int, now: float) -> None:
        """An attempt has failed. The next one follows soon."""
        kept = self._kept[lease]
        kept.attempts += 1
        kept.due = now + _PAUSE_SECONDS

    def drop(self, lease: int) -> None:
        """Renew the lease no more. Does nothing if it is not renewed."""
        self._kept.pop(lease, None)

    def shortest(self) -> float:
        """Return the time to live of the shortest lease that is renewed. 0: there is none, or one is not known yet."""
        return min((kept.ttl for kept in self._kept.values()), default=0.0)

    def due(self, now: float, asked: frozenset[int] = frozenset()) -> list[int]:
        """Return all leases that are due, the most urgent first. ``asked``: as for :meth:`next`."""
        due = [one for one, kept in self._kept.items() if kept.due <= now and (kept.due <= kept.until or one in asked)]
        return sorted(due, key=lambda one: self._kept[one].due)

    def attempts(self, lease: int) -> int:
        """Return how many attempts have failed since the last success."""
        return self._kept[lease].attempts

    def next(self, now: float, asked: frozenset[int] = frozenset()) -> tuple[int, float] | None:
        """Return the lease that is due first, and the seconds until then. None: no lease is renewed.

        ``asked``: leases whose holders wait for an answer. They are attempted also after their time.
        """
        for lease in [one for one, kept in self._kept.items() if now > kept.until and one not in asked]:
            del self._kept[lease]
        due = {one: kept.due for one, kept in self._kept.items() if kept.due <= kept.until or one in asked}
        if not due:
            return None
        lease = min(due, key=lambda one: due[one])
        return lease, max(0.0, due[lease] - now)
