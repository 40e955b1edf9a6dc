"""A candidate's registration, visible to others: ``candidates/{name}`` under its own lease (7.2)."""

from __future__ import annotations

from millwheel.coordination.contract import Coordinator, LeaseExpiredError
from millwheel.coordination.leased_key import RENEWALS, LeasedKey
from millwheel.model.catalog_keys import candidate_key

__all__ = ["Presence"]


class Presence:
    """The registration of a candidate. Only the order in which candidates compete depends on it."""

    def __init__(self, coordinator: Coordinator, name: str, ttl: float) -> None:
        self._key = LeasedKey(coordinator, candidate_key(name), ttl)
        self._name = name
        self._ttl = ttl
        self._renew_at = 0.0

    async def update(self, present: bool, now: float) -> None:
        """Register or deregister. Call this at least every third of the lease's time to live.

        Raises CoordinatorError if the outcome is unknown.
        """
        if not present:
            await self.end()
            return
        if self._key.written and now < self._renew_at:
            return
        try:
            if self._key.written:
                await self._key.renew()
            else:
                await self._key.write(self._name.encode())
        except LeaseExpiredError:
            # The lease ran out while the coordinator or this process was away. The next call, after
            # ``CandidateSettings.poll`` seconds, registers again. The leases of served shards are separate:
            # ``Leadership`` notices their end by itself.
            await self.end()
            return
        self._renew_at = now + self._ttl / RENEWALS

    async def end(self) -> None:
        """Deregister. If the coordinator cannot be reached, the registration ends with the lease."""
        await self._key.end()
