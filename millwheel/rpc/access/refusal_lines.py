"""Which refusals get a line in the audit log, so that a flood of refused calls does not fill the disk. Pure.

The first refusal of its kind gets a line at once. Those that follow within the interval are counted. At its end, one
line has the last of them and their number.

Invariant: within an interval each kind has at most one line, and there are at most ``most`` kinds and one for the rest
(G13). Who could break it: a caller that changes its port, its token or its address with each call. So a kind names no
port, and kinds beyond the bound share one line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from millwheel.rpc.principal import Principal

__all__ = ["RefusalLines", "RefusedCall", "SuppressedRefusals"]

INTERVAL_SECONDS: Final = 60.0
_MAX_KINDS: Final = 1_000


class RefusedCall(NamedTuple):
    """A refused call or login."""

    principal: Principal
    peer: str
    method: str
    outcome: str
    reason: str

    def kind(self) -> tuple[str, ...]:
        """What has one line in an interval: principal, host, method, outcome and reason."""
        host = self.peer.rpartition(":")[0] if self.peer.startswith(("ipv4:", "ipv6:")) else self.peer
        return (self.principal.name, host, self.method, self.outcome, self.reason)


class SuppressedRefusals(NamedTuple):
    """The last refusal of a kind, and how many of the kind got no line."""

    last: RefusedCall
    number: int


OTHERS: Final = RefusedCall(Principal("others"), "", "others", "REFUSED", "")
"""The kind of all refusals that there is no room for."""


@dataclass(slots=True)
class _RefusalKind:
    began: float
    last: RefusedCall
    count: int = 0


class RefusalLines:
    """Decides about the lines of one server's audit log. Times are seconds of any steady clock."""

    def __init__(self, interval: float = INTERVAL_SECONDS, most: int = _MAX_KINDS) -> None:
        self._interval = interval
        self._most = most
        self._kinds: dict[tuple[str, ...], _RefusalKind] = {}

    def takes(self, refusal: RefusedCall, now: float) -> bool:
        """Return whether this refusal gets a line now. Otherwise it is counted."""
        key = refusal.kind()
        found = self._kinds.get(key)
        if found is None and len(self._kinds) < self._most:
            self._kinds[key] = _RefusalKind(now, refusal)
            return True
        if found is None:
            refusal = OTHERS
            found = self._kinds.setdefault(OTHERS.kind(), _RefusalKind(now, refusal))
        found.last, found.count = refusal, found.count + 1
        return False

    def due(self, now: float, *, all_kinds: bool = False) -> list[SuppressedRefusals]:
        """Return the lines that are due, and begin their intervals again. Call this at least once in an interval.

        ``all_kinds``: also those whose interval has not ended, because the server stops.
        """
        lines: list[SuppressedRefusals] = []
        for key, kind in list(self._kinds.items()):
            if now - kind.began < self._interval and not all_kinds:
                continue
            if kind.count:
                lines.append(SuppressedRefusals(kind.last, kind.count))
                self._kinds[key] = _RefusalKind(now, kind.last)
            else:
                del self._kinds[key]
        return lines
