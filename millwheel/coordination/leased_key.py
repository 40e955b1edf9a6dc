"""A key under a lease of its own: others see by it that a process is there."""

from __future__ import annotations

import logging
from typing import Final

from millwheel.coordination.contract import Coordinator, CoordinatorError, Put

__all__ = ["RENEWALS", "LeasedKey"]

RENEWALS: Final = 3
"""Renewals in one time to live. Two may fail before the lease ends."""

_log = logging.getLogger(__name__)


class LeasedKey:
    """One key, and the lease with which it ends.

    Invariant: while a lease is renewed, the key is bound to it. A write of unknown outcome may be done later, and would
    bind the key to a lease that is not renewed. So each write ends the lease of the one before it, and a late put under
    an ended lease is refused. Who could break it: the end of a lease that fails. Its time to live is the bound then.
    """

    def __init__(self, coordinator: Coordinator, key: str, ttl: float) -> None:
        """``ttl``: the lease's time to live, in seconds. Call ``renew`` ``RENEWALS`` times in it."""
        self._coordinator = coordinator
        self._key = key
        self._ttl = ttl
        self._lease = 0
        self.written = False
        """Whether the key was written under the present lease. The lease may have ended since."""

    async def write(self, value: bytes) -> None:
        """Write the key under a new lease.

        Raises:
            CoordinatorError: The outcome is unknown.
        """
        await self.end()
        self._lease = await self._coordinator.grant_lease(self._ttl)
        await self._coordinator.transact((), [Put(self._key, value, self._lease)])
        self.written = True

    async def renew(self) -> None:
        """Renew the lease.

        Raises:
            LeaseExpiredError: It has ended, and the key with it. Write the key again.
            CoordinatorError: The outcome is unknown.
        """
        await self._coordinator.keep_alive(self._lease)

    async def end(self) -> None:
        """Remove the key. If the coordinator cannot be reached, the key ends with its lease."""
        lease, self._lease, self.written = self._lease, 0, False
        if lease:
            try:
                await self._coordinator.revoke_lease(lease)
            except CoordinatorError as error:
                _log.info("the key %s ends by its lease alone: %s", self._key, error)
