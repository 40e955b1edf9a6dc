"""A candidate's registration, visible to others: ``candidates/{name}`` under its own lease (7.2)."""

from __future__ import annotations

import logging

from millwheel.coordination.contract import Coordinator, CoordinatorError, LeaseExpiredError, Put
from millwheel.model.catalog_keys import candidate_key

__all__ = ["Presence"]

log = logging.getLogger("millwheel.authority")

_RENEWALS = 3
"""Renewals in one time to live. Two may fail before the lease ends."""


class Presence:
    """The registration of a candidate. Only the order in which candidates compete depends on it."""

    def __init__(self, coordinator: Coordinator, name: str, ttl: float) -> None:
        self._coordinator = coordinator
        self._put = (candidate_key(name), name.encode())
        self._ttl = ttl
        self._lease = 0
        self._renew_at = 0.0

    async def update(self, present: bool, now: float) -> None:
        """Register or deregister. Call this at least every third of the lease's time to live.

        Raises CoordinatorError if the outcome is unknown.
        """
        if not present:
            await self.end()
            return
        if self._lease and now < self._renew_at:
            return
        try:
            if self._lease:
                await self._coordinator.keep_alive(self._lease)
            else:
                lease = await self._coordinator.grant_lease(self._ttl)
                await self._coordinator.transact((), [Put(*self._put, lease)])
                self._lease = lease
        except LeaseExpiredError:
            # The lease ran out while the coordinator or this process was away. The next call, after
            # ``CandidateSettings.poll`` seconds, registers again. The leases of served shards are separate:
            # ``Leadership`` notices their end by itself.
            await self.end()
            return
        self._renew_at = now + self._ttl / _RENEWALS

    async def end(self) -> None:
        """Deregister. If the coordinator cannot be reached, the registration ends with the lease."""
        lease, self._lease = self._lease, 0
        if lease:
            try:
                await self._coordinator.revoke_lease(lease)
            except CoordinatorError as error:
                log.info("a candidate's registration ends by its lease alone: %s", error)
