"""The coordinator's contract: a small, linearizable key-value store with revisions, transactions, watches and leases.

This is what etcd offers. Topologies, interval maps, worker registrations and the master's leadership are stored here
(section 7.1). Every change gets a larger revision.

Every implementation passes the same test suite, ``tests/contracts/test_coordinator_contract.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from millwheel.errors import CoordinatorError, CoordinatorUnavailableError, DamagedValueError
from millwheel.model.key_values import KeyChange, KeyValue, PrefixSnapshot

__all__ = [
    "CompactedError",
    "Compare",
    "Coordinator",
    "CoordinatorError",
    "CoordinatorUnavailableError",
    "DamagedValueError",
    "KeyChange",
    "KeyValue",
    "LeaseExpiredError",
    "PrefixSnapshot",
    "Put",
    "TransactionResult",
    "TransactionTooLargeError",
]


class LeaseExpiredError(CoordinatorError):
    """The lease has ended. All keys bound to it are deleted, or will be as soon as the coordinator ends the lease."""


class CompactedError(CoordinatorError):
    """A watch requests revisions that are no longer kept. List again, then watch from the list's revision."""


class TransactionTooLargeError(CoordinatorError):
    """The transaction had no effect, because it is larger than the coordinator's limit."""


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: ``key`` was last modified at revision ``modified`` (0: it does not exist)."""

    key: str
    modified: int


@dataclass(frozen=True, slots=True)
class Put:
    """Set ``key`` to ``value``. With a lease, the key is deleted when the lease ends."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Whether all of a transaction's conditions held, and the revision after it."""

    committed: bool
    revision: int


class Coordinator(Protocol):
    """The contract. Times are in seconds of wall-clock time."""

    async def get(self, key: str) -> KeyValue | None:
        """Return the current entry of ``key`` (linearizable), or None. DamagedValueError if its value is damaged."""

    async def list(self, prefix: str) -> PrefixSnapshot:
        """Return all keys with ``prefix`` as of one revision. Entries with a damaged value have ``damage`` set."""

    async def transact(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TransactionResult:
        """Apply all puts and deletes in one revision if every compare holds, else nothing. Durable on return.

        A transaction that changes nothing creates no revision. One that is cancelled, or whose answer is lost, may
        still be done later: only its compares prevent that.

        Raises:
            LeaseExpiredError: if a put names a lease that has ended.
            ValueError: if puts and deletes name a key twice.
            TransactionTooLargeError: if the transaction is larger than the coordinator's limit.
        """

    def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[KeyChange, ...]]:
        """Yield the changes below ``prefix`` with revisions above ``after``, until the iterator is closed.

        It yields one tuple per revision, in order and without gaps. CompactedError if a revision is no longer kept.
        """

    async def grant_lease(self, ttl: float) -> int:
        """Grant a lease that ends ``ttl`` seconds after its last renewal, and return its id.

        The implementation may renew it once more, as in :meth:`keep_alive`.

        A lease never survives the loss of the coordinator's data. A coordinator that keeps leases in memory ends all of
        them when it starts, and deletes the keys bound to them.
        """

    async def keep_alive(self, lease: int) -> None:
        """Renew a lease. Its holder calls this at least three times in its time to live, from the holder's event loop.

        An implementation may go on to renew for one more time to live, in case that loop is busy.

        Raises:
            LeaseExpiredError: The lease has ended. By the holder's clock it may end earlier than at the coordinator.
                The holder stops what it did under the lease, and then calls :meth:`revoke_lease`.
        """

    async def revoke_lease(self, lease: int) -> None:
        """End a lease now. Does nothing if it has ended."""

    async def close(self) -> None:
        """End all watches and release all resources."""
