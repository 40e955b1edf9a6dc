"""The coordinator as a plain state machine: keys with revisions, leases, and a bounded history of changes.

It decides and remembers; it has no clock (``now`` is passed in, in seconds of any steady clock), stores nothing and
wakes nobody. Shells make a :class:`Transition` durable before they :meth:`~CoordinatorState.apply` it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from millwheel.coordination.contract import (
    Change,
    CompactedError,
    Compare,
    Entry,
    LeaseExpiredError,
    Put,
    Snapshot,
)

__all__ = ["HISTORY_REVISIONS", "CoordinatorState", "Leases", "Revisions", "Transition"]

HISTORY_REVISIONS: Final = 10_000
"""How many revisions a watch may lag behind."""

_LEASES_PER_EPOCH: Final = 1 << 32

Revisions: TypeAlias = list[tuple[Change, ...]]
"""The changes of some revisions, one tuple for each."""

Leases: TypeAlias = list[int]


@dataclass(frozen=True, slots=True)
class Transition:
    """One revision: what it sets and what it deletes."""

    revision: int
    puts: tuple[Entry, ...]
    deletes: tuple[str, ...]

    def changes(self) -> tuple[Change, ...]:
        """What watches report of it."""
        put = [Change(entry.key, entry.value, self.revision) for entry in self.puts]
        return (*put, *(Change(key, None, self.revision) for key in self.deletes))


@dataclass(slots=True)
class _Lease:
    ttl: float
    deadline: float


class CoordinatorState:
    """All of a coordinator's data. Revisions grow by one with each applied transition."""

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        *,
        revision: int = 0,
        epoch: int = 0,
        history: int = HISTORY_REVISIONS,
    ) -> None:
        """``epoch`` differs in each life of the data's process, so that no lease id is given twice."""
        if history < 1:
            raise ValueError(f"a history of {history} revisions cannot serve a watch: keep at least one")
        self._entries = {entry.key: entry for entry in entries}
        self._revision = revision
        self._history: deque[tuple[Change, ...]] = deque(maxlen=history)
        self._leases: dict[int, _Lease] = {}
        self._next_lease = epoch * _LEASES_PER_EPOCH + 1

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        return self._revision

    def get(self, key: str) -> Entry | None:
        """The key as it is, or None."""
        return self._entries.get(key)

    def list(self, prefix: str) -> Snapshot:
        """All keys that begin with ``prefix``, sorted."""
        keys = sorted(key for key in self._entries if key.startswith(prefix))
        return Snapshot(self._revision, tuple(self._entries[key] for key in keys))

    def decide(
        self, compares: Sequence[Compare], puts: Sequence[Put], deletes: Sequence[str], now: float
    ) -> Transition | None:
        """What a transaction would do; None if a compare does not hold. Nothing is changed.

        LeaseExpiredError if a put names a lease that has ended; ValueError if a key is named twice.
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
        """Make a transition, decided on the state as it is, part of it. One that changes nothing has no revision."""
        if not transition.puts and not transition.deletes:
            return
        if transition.revision != self._revision + 1:
            raise ValueError(f"revision {transition.revision} does not follow {self._revision}")
        for entry in transition.puts:
            self._entries[entry.key] = entry
        for key in transition.deletes:
            del self._entries[key]
        self._revision = transition.revision
        self._history.append(transition.changes())

    def changes_after(self, prefix: str, after: int) -> Revisions:
        """The changes below ``prefix`` with revisions above ``after``, one non-empty tuple per revision.

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
        """A new lease that ends at ``now + ttl``."""
        if not 0 < ttl < float("inf"):
            raise ValueError(f"a lease lasts a positive number of seconds, not {ttl}")
        lease = self._next_lease
        self._next_lease += 1
        self._leases[lease] = _Lease(ttl, now + ttl)
        return lease

    def keep_alive(self, lease: int, now: float) -> None:
        """The lease ends ``ttl`` after ``now``; LeaseExpiredError if it has ended."""
        held = self._living(lease, now)
        held.deadline = now + held.ttl

    def next_deadline(self) -> float | None:
        """When the first of the leases ends, as of now."""
        return min((held.deadline for held in self._leases.values()), default=None)

    def decide_end(self, leases: Iterable[int]) -> Transition:
        """What the end of ``leases`` does: the keys bound to them go."""
        ended = frozenset(leases)
        keys = tuple(key for key, entry in self._entries.items() if entry.lease in ended)
        return Transition(self._revision + 1, (), keys)

    def expired(self, now: float) -> Leases:
        """The leases whose time is over."""
        return [lease for lease, held in self._leases.items() if held.deadline <= now]

    def forget(self, leases: Iterable[int]) -> None:
        """The leases have ended, and what was bound to them is gone."""
        for lease in leases:
            self._leases.pop(lease, None)

    def has_lease(self, lease: int) -> bool:
        """Whether the lease has not been ended."""
        return lease in self._leases

    def _living(self, lease: int, now: float) -> _Lease:
        held = self._leases.get(lease)
        if held is None or held.deadline <= now:
            raise LeaseExpiredError(f"lease {lease} has ended: grant a new one, and put what was bound to it again")
        return held

    def _put(self, put: Put, revision: int) -> Entry:
        known = self._entries.get(put.key)
        created = revision if known is None else known.created
        return Entry(put.key, put.value, created, revision, put.lease)
