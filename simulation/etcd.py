"""The product's own etcd client on the simulated coordinator: transactions, and leases as their holder sees them.

Two clocks measure a lease: etcd's and its holder's. Either machine may be suspended, and its clock may or may not count
that time. Suspensions threaten these invariants: of two owners only the newest writes (G3); one master changes the maps
(G11); a holder does not use a lease that has ended by its own clock, even if etcd would renew it.
"""

from __future__ import annotations

import time
from typing import Any

from millwheel.coordination.contract import Compare, Coordinator, KeyValue, LeaseExpiredError, PrefixSnapshot, Put
from millwheel.coordination.etcd import EtcdCoordinator, EtcdSettings
from millwheel.coordination.etcd.keyspace import Keyspace, opened
from millwheel.coordination.etcd.leases import HeldLeases, seconds_since_boot
from millwheel.coordination.etcd.v3 import etcd_pb2 as etcd
from simulation.coordinator import SimulatedCoordinator

__all__ = ["client_of"]


def client_of(service: SimulatedCoordinator) -> Coordinator:
    """The client for the process whose step is running."""
    return LeasedCoordinator(service, counts=service.lease_clock == "boot") if service.lease_clock else service


class _NoThread:
    """Stands for the thread that renews leases of a busy event loop. No simulated event loop is busy."""

    def granted(self, lease: int, asked: float) -> None: ...

    def ran(self, lease: int) -> None: ...

    def drop(self, lease: int) -> None: ...


class LeasedCoordinator(EtcdCoordinator):
    """One process's client. Reads and watches come from the simulated coordinator unchanged."""

    def __init__(self, service: SimulatedCoordinator, *, counts: bool) -> None:
        """Create a client. ``counts``: whether the clock that measures leases counts the time of suspension."""
        self.settings = EtcdSettings(history=0)
        self._service = service
        self._keyspace = Keyspace(self.settings.prefix)
        self._leases = HeldLeases(seconds_since_boot if counts else time.monotonic)
        self._link: Any = self
        self._renewals: Any = _NoThread()
        self._compacting = None
        self._counts = counts
        self._until: dict[int, float] = {}
        """By lease: the true time at which it ends for its holder."""
        self.watch = service.watch  # type: ignore[method-assign]

    async def get(self, key: str) -> KeyValue | None:
        """See :class:`Coordinator`, here and below."""
        return await self._service.get(key)

    async def list(self, prefix: str) -> PrefixSnapshot:
        return await self._service.list(prefix)

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""

    # The link to etcd.

    def is_closed(self) -> bool:
        """Always False."""
        return False

    async def call(self, method: str, request: Any, kind: type[Any], *, repeatable: bool) -> Any:
        """Execute one request of the product at the simulated coordinator."""
        if isinstance(request, etcd.TxnRequest):
            return await self._transacted(request)
        if isinstance(request, etcd.LeaseGrantRequest):
            asked = self._service.now
            lease = await self._service.grant_lease(request.ttl)
            self._until[lease] = asked + request.ttl
            return etcd.LeaseGrantResponse(id=lease, ttl=request.ttl)
        assert isinstance(request, etcd.LeaseRevokeRequest), f"{method} is not simulated"
        await self._service.revoke_lease(request.id)
        return etcd.LeaseRevokeResponse()

    async def _transacted(self, request: etcd.TxnRequest) -> etcd.TxnResponse:
        compares = [Compare(self._keyspace.name(one.key), one.mod_revision) for one in request.compare]
        puts, deletes = [], []
        for step in request.success:
            if step.HasField("request_put"):
                put = step.request_put
                puts.append(Put(self._keyspace.name(put.key), opened(put.value)[0], put.lease))
                self._check(put.lease)
            else:
                deletes.append(self._keyspace.name(step.request_delete_range.key))
        outcome = await self._service.transact(compares, puts, deletes)
        answer = etcd.TxnResponse(succeeded=outcome.committed)
        answer.header.revision = outcome.revision
        return answer

    async def _renew(self, lease: int) -> None:
        self._check(lease)
        seen, asked, ttl = self._leases.now(), self._service.now, self._service.ttl_of(lease)
        try:
            await self._service.keep_alive(lease)
        except LeaseExpiredError:
            ttl = 0
        if ttl and lease in self._until and self._service.now < self._until[lease]:
            self._until[lease] = asked + ttl
        self._leases.answered(lease, int(ttl), seen)

    def _check(self, lease: int) -> None:
        if self._counts and self._service.now > self._until.get(lease, float("inf")):
            self._service.misused(f"lease {lease} is used, and is over by the clock of its holder's machine (G3)")
