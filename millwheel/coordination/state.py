"""The coordinator as a pure state machine: keys with revisions, leases, and a bounded history of changes.

It has no clock (``now`` is in seconds of any monotonic clock), no storage and no tasks. Its caller makes a
:class:`Transition` durable before it calls :meth:`~CoordinatorState.apply`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final, TypeAlias

from millwheel.coordination.contract import (
    CompactedError,
    Compare,
    KeyChange,
    KeyValue,
    LeaseExpiredError,
    PrefixSnapshot,
    Put,
)

__all__ = ["HISTORY_REVISIONS", "CoordinatorState", "Leases", "Revisions", "Transition"]

HISTORY_REVISIONS: Final = 10_000
"""How many revisions a watch may lag behind the current one."""

_LEASES_PER_EPOCH: Final = 1 << 32

Revisions: TypeAlias = list[tuple[KeyChange, ...]]
"""The changes of several revisions, one tuple per revision."""

Leases: TypeAlias = list[int]


@dataclass(frozen=True, slots=True)
class Transition:
    """One revision: its puts and deletes."""

    revision: int
    puts: tuple[KeyValue, ...]
    deletes: tuple[str, ...]

    def changes(self) -> tuple[KeyChange, ...]:
        """Return the changes that watches report for it."""
        put = [KeyChange(entry.key, entry.value, self.revision) for entry in self.puts]
        return (*put, *(KeyChange(key, None, self.revision) for key in self.deletes))


@dataclass(slots=True)
class _Lease:
    ttl: float
    deadline: float


class CoordinatorState:
    """All data of a coordinator. Each applied transition increases the revision by one."""

    def __init__(
        self,
        entries: Iterable[KeyValue] = (),
        *,
        revision: int = 0,
        epoch: int = 0,
        history: int = HISTORY_REVISIONS,
    ) -> None:
        """``epoch`` differs each time the data is opened, so that no lease id is used twice."""
        if history < 1:
            raise ValueError(f"a history of {history} revisions cannot serve a watch: keep at least one")
        self._entries = {entry.key: entry for entry in entries}
        self._keys = sorted(self._entries)
        """The keys of the entries."""
        self._revision = revision
        self._history: deque[tuple[KeyChange, ...]] = deque(maxlen=history)
        self._leases: dict[int, _Lease] = {}
        self._next_lease = epoch * _LEASES_PER_EPOCH + 1

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        return self._revision

    def get(self, key: str) -> KeyValue | None:
        """Return the entry of ``key``, or None."""
        return self._entries.get(key)

    def list(self, prefix: str) -> PrefixSnapshot:
        """Return all keys with ``prefix``, sorted."""
        below = takewhile(lambda key: key.startswith(prefix), islice(self._keys, bisect_left(self._keys, prefix), None))
        return PrefixSnapshot(self._revision, tuple(self._entries[key] for key in below))

    def decide(
        self, compares: Sequence[Compare], puts: Sequence[Put], deletes: Sequence[str], now: float
    ) -> Transition | None:
        """Return the transition of a transaction, or None if a compare does not hold. Changes nothing.

        LeaseExpiredError if a put names a lease that has ended. ValueError if a key is named twice.
        """
        changed = [*(put.key for put in puts), *deletes]
        if len(set(changed)) != len(changed):
            raise ValueError(f"a transaction names a key twice: {sorted(changed)}")
        for put in puts:
            if put.lease:
                self._living(put.lease, now)
        for compare in compares:
            entry = self._entries.get(compare.key)
            if compare.modified != (0 if entry is None else entry.modified):
                return None
        revision = self._revision + 1
        return Transition(
            revision,
            tuple(self._put(put, revision) for put in puts),
            tuple(key for key in deletes if key in self._entries),
        )

    def apply(self, transition: Transition) -> None:
        """Apply a transition that was decided on the current state. An empty transition creates no revision."""
        if not transition.puts and not transition.deletes:
            return
        if transition.revision != self._revision + 1:
            raise ValueError(f"revision {transition.revision} does not follow {self._revision}")
        for entry in transition.puts:
            if entry.key not in self._entries:
                insort(self._keys, entry.key)
            self._entries[entry.key] = entry
        for key in transition.deletes:
            del self._entries[key]
            del self._keys[bisect_left(self._keys, key)]
        self._revision = transition.revision
        self._history.append(transition.changes())

    def changes_after(self, prefix: str, after: int) -> Revisions:
        """Return the changes below ``prefix`` with revisions above ``after``: one non-empty tuple per revision.

        CompactedError if some of those revisions are no longer kept.
        """
        oldest = self._revision - len(self._history) + 1
        if after + 1 < oldest:
            raise CompactedError(
                f"revisions {after + 1} to {oldest - 1} are no longer kept: list {prefix!r} again, "
                "then watch from the revision of that list"
            )
        found: Revisions = []
        for index in range(max(after + 1 - oldest, 0), len(self._history)):
            below = tuple(change for change in self._history[index] if change.key.startswith(prefix))
            if below:
                found.append(below)
        return found

    # Leases.

    def grant(self, ttl: float, now: float) -> int:
        """Grant a lease that ends at ``now + ttl``, and return its id."""
        if not 0 < ttl < float("inf"):
            raise ValueError(f"a lease lasts a positive number of seconds, not {ttl}")
        lease = self._next_lease
        self._next_lease += 1
        self._leases[lease] = _Lease(ttl, now + ttl)
        return lease

    def keep_alive(self, lease: int, now: float) -> None:
        """Renew the lease until ``now`` plus its ttl. LeaseExpiredError if it has ended."""
        held = self._living(lease, now)
        held.deadline = now + held.ttl

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of all leases, or None."""
        return min((held.deadline for held in self._leases.values()), default=None)

    def decide_end(self, leases: Iterable[int]) -> Transition:
        """Return the transition that deletes the keys bound to ``leases``."""
        ended = frozenset(leases)
        keys = tuple(key for key, entry in self._entries.items() if entry.lease in ended)
        return Transition(self._revision + 1, (), keys)

    def expired(self, now: float) -> Leases:
        """Return the leases whose time is over."""
        return [lease for lease, held in self._leases.items() if held.deadline <= now]

    def forget(self, leases: Iterable[int]) -> None:
        """Remove leases that have ended, after the keys bound to them are deleted."""
        for lease in leases:
            self._leases.pop(lease, None)

    def has_lease(self, lease: int) -> bool:
        """Return whether the lease exists. Its time may be over."""
        return lease in self._leases

    def _living(self, lease: int, now: float) -> _Lease:
        held = self._leases.get(lease)
        if held is None or held.deadline <= now:
            raise LeaseExpiredError(f"lease {lease} has ended: grant a new one, and put what was bound to it again")
        return held

    def _put(self, put: Put, revision: int) -> KeyValue:
        known = self._entries.get(put.key)
        created = revision if known is None else known.created
        return KeyValue(put.key, put.value, created, revision, put.lease)
