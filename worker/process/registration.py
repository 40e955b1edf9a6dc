"""A worker's registration: a record under a lease, which shows the master that the worker is alive (section 7.1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from millwheel.coordination.contract import Compare, Coordinator, CoordinatorError, LeaseExpiredError, Put
from millwheel.model.catalog import Catalog, OwnedInterval
from millwheel.model.catalog_keys import departure_key, worker_key
from millwheel.rpc.clock import wall_now
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2
from millwheel.rpc.v1.common_pb2 import Endpoint

__all__ = ["Assignments", "Registration", "WorkerIdTakenError"]

log = logging.getLogger("millwheel.worker")

_RENEWALS: Final = 3
"""Renewals per time to live: two may fail before the lease ends."""

_PATIENCE_TIMES_TO_LIVE: Final = 3
"""Times to live to wait for the end of another process's registration. After that the process counts as alive.

A thread renews for a process whose event loop hangs, so its lease may end only two times to live after that began. One
more is for etcd, which ends leases late after a change of its leader."""

_REMEMBERED_SECONDS: Final = 86_400.0
"""An orderly end is known for so long. No master has to lead meanwhile: the next leader records it in the event log."""

_REMEDY: Final = (
    "the next owner runs it again, and loses its lease again: have the hook produce in slices (docs/limits.md), or set "
    "worker.lease_seconds to more than the step takes, its commit included"
)


class WorkerIdTakenError(RequestError):
    """Another live process has the same worker id: the same configuration was started twice."""

    def __init__(self, worker_id: str, address: str) -> None:
        super().__init__(
            FailureCode.FAILED_PRECONDITION,
            f"the name {worker_id!r} is taken: the worker process at {address} is registered under it, and lives",
            "give each worker daemon a worker.id of its own, or none: then it is the machine's name and the port",
            reason="WORKER_ID_TAKEN",
        )


class Registration:
    """Keeps a worker registered.

    ``lapsed`` is called when the lease has ended, or is given up. Every interval is lost then. Intervals that return
    have a fresh sequencer.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        worker_id: str,
        address: str,
        ttl: float,
        lapsed: Callable[[], Awaitable[None]],
        slowest_since: Callable[[float, float], str] = lambda since, least: "",
    ) -> None:
        """
        Args:
            coordinator: Stores the record and the lease.
            worker_id: The worker's name.
            address: The worker's address.
            ttl: The lease's time to live, in seconds.
            lapsed: Called when the lease has ended or is given up.
            slowest_since: Describes what blocked the event loop longest since a time of the loop. Empty: nothing did
                for at least the seconds of the second argument.
        """
        self._coordinator = coordinator
        self._ttl = ttl
        self._lapsed = lapsed
        self._slowest_since = slowest_since
        self._renewed_at = 0.0
        """The start of the last renewal that succeeded, by the loop's clock."""
        self._lease = 0
        self._written = 0
        """The revision of the record under this lease. 0: it is not known that there is one."""
        self._record = catalog_pb2.WorkerRecord(
            endpoint=Endpoint(worker_id=worker_id, address=address), started_at_us=wall_now()
        )
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    async def start(self) -> None:
        """Register, and stay registered.

        Raises:
            WorkerIdTakenError: Another process has the name and keeps it.
        """
        await self._register()
        self._task = asyncio.get_running_loop().create_task(self._stay())

    async def close(self) -> None:
        """End the lease at once, so that the intervals move without waiting for its expiry.

        The record becomes one of a departure: this is in order, and no crash.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            if self._written:
                await self._depart()
        except CoordinatorError as error:
            log.info("the orderly end of this worker is not recorded: %s", error)
        try:
            await self._coordinator.revoke_lease(self._lease)
        except CoordinatorError as error:
            log.info("the lease was left to end by itself: %s", error)

    async def _depart(self) -> None:
        """Replace the record by one that outlives this process and its lease.

        Both happen in one revision. So a master that finds this worker gone also finds why, whenever it came to lead.
        If the record is gone already, nothing is written: the lease has ended, and that was no orderly end.
        """
        name = self._record.endpoint.worker_id
        lease = await self._coordinator.grant_lease(_REMEMBERED_SECONDS)
        put = Put(departure_key(name), self._record.SerializeToString(), lease)
        compare = Compare(worker_key(name), self._written)
        await self._coordinator.transact([compare], [put], deletes=[compare.key])

    def renew_from_scratch(self) -> None:
        """Release all intervals and register again for fresh sequencers. Only a takeover repairs some errors."""
        self._wanted.set()

    def is_own(self, record: catalog_pb2.WorkerRecord) -> bool:
        """Whether this process wrote ``record``."""
        return record.endpoint == self._record.endpoint and record.started_at_us == self._record.started_at_us

    async def _register(self) -> None:
        """Write a new record. It replaces no existing one.

        Each transaction compares the revision that it found. A transaction that timed out may take effect at any later
        time. Without the comparison it could replace or delete the record of a later lease that is being renewed.
        Another process may register between two steps. Then this process waits for it.
        """
        key = worker_key(self._record.endpoint.worker_id)
        while True:
            await self._vacate(key)
            self._renewed_at = asyncio.get_running_loop().time()
            self._lease = await self._coordinator.grant_lease(self._ttl)
            put = Put(key, self._record.SerializeToString(), self._lease)
            departure = departure_key(self._record.endpoint.worker_id)
            made = await self._coordinator.transact([Compare(key, 0)], [put], deletes=[departure])
            if made.committed:
                self._written = made.revision
                return
            await self._coordinator.revoke_lease(self._lease)

    async def _vacate(self, key: str) -> None:
        """Remove a record of this address, or an unreadable one. Wait for the end of another process's record.

        A process that was killed may have left its record under a lease that has not expired. Its intervals do not
        belong to this process: its sequencers have already opened their journals. So this process writes a new record
        instead of changing the old one.

        Raises:
            WorkerIdTakenError: The record of a process elsewhere does not end. That process may be alive.
        """
        mine = self._record.endpoint
        began = asyncio.get_running_loop().time()
        while True:
            entries = (await self._coordinator.list(key)).entries
            entry = next((one for one in entries if one.key == key), None)
            if entry is None:
                return
            record = None if entry.damage else catalog_pb2.WorkerRecord.FromString(entry.value)
            if record is None or record.endpoint.address == mine.address:
                if record is not None and self.is_own(record):
                    # An earlier attempt succeeded without an answer. It may already have intervals assigned to it.
                    await self._lapsed()
                await self._coordinator.transact([Compare(key, entry.modified)], deletes=[key])
                return
            other = record.endpoint.address
            if asyncio.get_running_loop().time() - began > _PATIENCE_TIMES_TO_LIVE * self._ttl:
                raise WorkerIdTakenError(mine.worker_id, other)
            log.warning("the name %s is that of the process at %s: waiting for its lease", mine.worker_id, other)
            await asyncio.sleep(self._ttl / _RENEWALS)

    async def _stay(self) -> None:
        while True:
            try:
                await self._next_renewal()
            except Exception:
                # Continue after any error: a worker that stops renewing would run on without ever getting an interval.
                log.exception("keeping this worker registered failed, trying again")
                await asyncio.sleep(self._ttl / _RENEWALS)

    async def _next_renewal(self) -> None:
        """Renew the lease when it is due. Register again if the lease has ended, or is given up."""
        try:
            async with asyncio.timeout(self._ttl / _RENEWALS):
                await self._wanted.wait()
            log.warning("this worker gives up its intervals, and registers again")
        except TimeoutError:
            if await self._renewed():
                return
        # Neither this record nor its lease is used again, also if the process stops now.
        self._written = 0
        await self._lapsed()
        await self._until_done(lambda: self._coordinator.revoke_lease(self._lease))
        # The registration below satisfies all requests made before this moment.
        self._wanted.clear()
        await self._until_done(self._register)

    async def _renewed(self) -> bool:
        """Renew the lease. Returns False if it has ended."""
        began = asyncio.get_running_loop().time()
        try:
            await self._coordinator.keep_alive(self._lease)
            self._renewed_at = began
        except LeaseExpiredError:
            # A thread renews while a step takes less than a lease. So a shorter step is not the cause.
            slowest = self._slowest_since(self._renewed_at, self._ttl)
            why = f"; {slowest}; {_REMEDY}" if slowest else ""
            log.error("the lease has ended: this worker gives up its intervals, and registers again%s", why)
            return False
        except CoordinatorError as error:
            log.warning("the lease could not be renewed, trying again: %s", error)
        return True

    async def _until_done(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
                return
            except WorkerIdTakenError as error:
                log.error("this worker owns nothing: %s", error)
            except CoordinatorError as error:
                log.warning("the coordinator did not answer while this worker registers, trying again: %s", error)
            await asyncio.sleep(self._ttl / _RENEWALS)


class Assignments:
    """The intervals that the catalog assigns to exactly this process, not to another one with the same worker id.

    Two processes must not open an interval under one sequencer. Neither could decide whose append of unknown outcome
    was applied (G3).
    """

    def __init__(self, catalog: Catalog, registration: Registration, worker_id: str) -> None:
        self._catalog = catalog
        self._registration = registration
        self._worker_id = worker_id
        self._displaced = ""
        """The address of another process with the same worker id, at the last check."""

    def owned(self) -> list[OwnedInterval]:
        """The assigned intervals. None while another process is registered under this worker id."""
        worker_id = self._worker_id
        return [] if self._duplicate_id() else self._catalog.owned_by(worker_id, self._catalog.registration(worker_id))

    def check_worker_id(self) -> None:
        """Log a duplicate worker id. Register again when the other process has ended."""
        before, self._displaced = self._displaced, self._duplicate_id()
        if self._displaced and self._displaced != before:
            error = WorkerIdTakenError(self._worker_id, self._displaced)
            log.error("this worker owns nothing from now on: %s", error)
        elif before and self._worker_id not in self._catalog.workers:
            self._registration.renew_from_scratch()

    def _duplicate_id(self) -> str:
        """The address of another process that is registered under this worker id. Empty if there is none."""
        record = self._catalog.workers.get(self._worker_id)
        return "" if record is None or self._registration.is_own(record) else record.endpoint.address
