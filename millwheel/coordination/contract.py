"""What MillWheel asks of a coordinator: a small, linearizable key-value store with revisions,
transactions, watches and leases, as etcd offers them.

Topologies, interval maps, worker registrations and the master's leadership live here (section 7.1).
Every change gets a larger revision. Every implementation passes
``tests/contracts/test_coordinator_contract.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "Change",
    "CompactedError",
    "Compare",
    "Coordinator",
    "CoordinatorError",
    "CoordinatorUnavailableError",
    "DamagedValueError",
    "Entry",
    "LeaseExpiredError",
    "Outcome",
    "Put",
    "Snapshot",
    "TransactionTooLargeError",
]


class CoordinatorError(Exception):
    """Anything that a coordinator reports; the message says what to do."""


class CoordinatorUnavailableError(CoordinatorError):
    """No quorum or no connection: the call may or may not have taken effect."""


class DamagedValueError(CoordinatorUnavailableError):
    """A value fails its checksum, or is none of ours: what it says is not known, until it is written anew or restored.

    To whoever can but wait it is as if the coordinator were away.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(
            f"the coordinator's value {key} is damaged ({why}): nothing is done with it, and nothing is written over "
            "it; restore the coordinator from a snapshot"
        )
        self.key = key
        self.why = why


class LeaseExpiredError(CoordinatorError):
    """The lease has ended; whatever was bound to it is gone."""


class CompactedError(CoordinatorError):
    """A watch asked for revisions that are no longer kept: list again, then watch from there."""


class TransactionTooLargeError(CoordinatorError):
    """The transaction had no effect: it is more than this coordinator takes at a time."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key with its value. ``created`` and ``modified`` are the revisions that did so.

    ``damage``: why the value cannot be read, if it cannot; ``value`` is empty then.
    """

    key: str
    value: bytes
    created: int
    modified: int
    lease: int = 0
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The keys of a prefix, sorted, all as of ``revision``."""

    revision: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """A transaction's condition: the key was last modified at ``modified`` (0: it does not exist)."""

    key: str
    modified: int


@dataclass(frozen=True, slots=True)
class Put:
    """Set ``key`` to ``value``; with a lease the key goes when the lease ends."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a transaction's conditions all held, and the revision after it."""

    committed: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """One change that a watch reports; ``value`` None: deleted, by a call or by its lease's end.

    ``damage``: why the value cannot be read, if it cannot; ``value`` is empty then.
    """

    key: str
    value: bytes | None
    revision: int
    damage: str = ""


class Coordinator(Protocol):
    """The contract. Times are wall-clock seconds."""

    async def get(self, key: str) -> Entry | None:
        """The key as of now (linearizable), or None. DamagedValueError if its value fails its checksum."""

    async def list(self, prefix: str) -> Snapshot:
        """All keys that begin with ``prefix``, from one moment; those whose values are damaged say so."""

    async def transact(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> Outcome:
        """Apply all puts and deletes in one revision if every compare holds, else nothing.

        Durable before it returns. LeaseExpiredError if a put names a lease that has ended; ValueError
        if puts and deletes name a key twice; TransactionTooLargeError if it is more than the coordinator takes at
        a time. One that changes nothing makes no revision.
        """

    def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[Change, ...]]:
        """The changes below ``prefix`` with revisions above ``after``: one tuple per revision, in order,
        without a gap, until the iterator is closed. CompactedError where they are no longer kept."""

    async def grant_lease(self, ttl: float) -> int:
        """A lease that ends ``ttl`` seconds after its last renewal.

        A lease never survives the loss of the coordinator's own data; a coordinator that keeps leases in
        memory ends all of them, and deletes what is bound to them, when it is started.
        """

    async def keep_alive(self, lease: int) -> None:
        """Renew a lease; LeaseExpiredError if it has ended."""

    async def revoke_lease(self, lease: int) -> None:
        """End a lease now; nothing happens if it has ended."""

    async def close(self) -> None:
        """End all watches and release what is held."""
