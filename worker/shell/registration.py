"""A worker's registration: a record under a lease, by which the master knows that the worker lives (section 7.1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from millwheel.coordination.contract import Compare, Coordinator, CoordinatorError, LeaseExpiredError, Put
from millwheel.core.catalog_keys import worker_key
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1.common_pb2 import Endpoint
from millwheel.worker.shell.runloop import wall_now

__all__ = ["Registration", "WorkerIdTakenError"]

log = logging.getLogger("millwheel.worker")

_RENEWALS: Final = 3
"""Renewals in one time to live: two may fail before the lease ends."""

_PATIENCE: Final = 2
"""Times to live that the registration of a process elsewhere may last, for it to be taken for one that has died."""

_REMEDY: Final = (
    "the next owner runs it again, and loses its lease again: have the hook produce in slices (docs/limits.md), or set "
    "worker.lease_seconds to more than the step takes, its commit included"
)


class WorkerIdTakenError(RequestError):
    """Another process lives under this one's name: the same configuration was started twice."""

    def __init__(self, worker_id: str, address: str) -> None:
        super().__init__(
            FailureCode.FAILED_PRECONDITION,
            f"the name {worker_id!r} is taken: the worker process at {address} is registered under it, and lives",
            "give each worker daemon a worker.id of its own, or none: then it is the machine's name and the port",
            reason="WORKER_ID_TAKEN",
        )


class Registration:
    """Keeps a worker registered.

    ``lapsed`` is called when the lease has ended, or is given up: every interval is lost then, and comes back, if it
    does, under a fresh sequencer.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        worker_id: str,
        address: str,
        ttl: float,
        lapsed: Callable[[], Awaitable[None]],
        slowest_since: Callable[[float], str] = lambda since: "",
    ) -> None:
        """``slowest_since``: what kept the event loop longest since a time of the loop, in words; empty: nothing."""
        self._coordinator = coordinator
        self._ttl = ttl
        self._lapsed = lapsed
        self._slowest_since = slowest_since
        self._renewed_at = 0.0
        """When a renewal was last begun that succeeded, by the loop's clock."""
        self._lease = 0
        self._record = catalog.WorkerRecord(
            endpoint=Endpoint(worker_id=worker_id, address=address), started_at_us=wall_now()
        )
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    async def start(self) -> None:
        """Register, and stay so. WorkerIdTakenError: another process has the name, and goes on having it."""
        await self._register()
        self._task = asyncio.get_running_loop().create_task(self._stay())

    async def close(self) -> None:
        """End the lease at once, so that the intervals move without waiting for it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._coordinator.revoke_lease(self._lease)
        except CoordinatorError as error:
            log.info("the lease was left to end by itself: %s", error)

    def renew_from_scratch(self) -> None:
        """Give up every interval, and come back for fresh sequencers: after an error that only a takeover mends."""
        self._wanted.set()

    def is_own(self, record: catalog.WorkerRecord) -> bool:
        """Whether ``record`` was put by this very process."""
        return record == self._record

    async def _register(self) -> None:
        """Put the record anew, where nothing is there any more.

        Each step says what it found: of a transaction that timed out it is not known when it takes effect, and one that
        did so after all others would replace or take away the record of a lease that goes on being renewed. Somebody
        else may come between any two steps, and is waited for then.
        """
        key = worker_key(self._record.endpoint.worker_id)
        while True:
            await self._vacate(key)
            self._renewed_at = asyncio.get_running_loop().time()
            self._lease = await self._coordinator.grant_lease(self._ttl)
            put = Put(key, self._record.SerializeToString(), self._lease)
            if (await self._coordinator.transact([Compare(key, 0)], [put])).committed:
                return
            await self._coordinator.revoke_lease(self._lease)

    async def _vacate(self, key: str) -> None:
        """Remove what is there of this address, or of nobody; wait first for the end of what is of another.

        A process that was killed may have left its record, under a lease that still lives. What was assigned to it is
        not ours: its sequencers have opened their journals. So the record is a new one, not the old one changed.
        WorkerIdTakenError: that of a process elsewhere, which may live, does not end.
        """
        mine = self._record.endpoint
        began = asyncio.get_running_loop().time()
        while True:
            entries = (await self._coordinator.list(key)).entries
            entry = next((one for one in entries if one.key == key), None)
            if entry is None:
                return
            record = None if entry.damage else catalog.WorkerRecord.FromString(entry.value)
            if record is None or record.endpoint.address == mine.address:
                if record is not None and self.is_own(record):
                    # Of an attempt before this one that was not heard to succeed: intervals may have come by it.
                    await self._lapsed()
                await self._coordinator.transact([Compare(key, entry.modified)], deletes=[key])
                return
            other = record.endpoint.address
            if asyncio.get_running_loop().time() - began > _PATIENCE * self._ttl:
                raise WorkerIdTakenError(mine.worker_id, other)
            log.warning("the name %s is that of the process at %s: waiting for its lease", mine.worker_id, other)
            await asyncio.sleep(self._ttl / _RENEWALS)

    async def _stay(self) -> None:
        while True:
            try:
                await self._next_renewal()
            except Exception:
                # Whatever it was: a worker that stopped renewing would go on without ever being given an interval.
                log.exception("keeping this worker registered failed, trying again")
                await asyncio.sleep(self._ttl / _RENEWALS)

    async def _next_renewal(self) -> None:
        """Renew the lease when that is due; register anew if it has ended, or is given up."""
        try:
            async with asyncio.timeout(self._ttl / _RENEWALS):
                await self._wanted.wait()
            log.warning("this worker gives up its intervals, and registers anew")
        except TimeoutError:
            if await self._renewed():
                return
        await self._lapsed()
        await self._until_done(lambda: self._coordinator.revoke_lease(self._lease))
        # What went wrong before this moment is mended by what follows.
        self._wanted.clear()
        await self._until_done(self._register)

    async def _renewed(self) -> bool:
        """Renew the lease; False if it has ended."""
        began = asyncio.get_running_loop().time()
        try:
            await self._coordinator.keep_alive(self._lease)
            self._renewed_at = began
        except LeaseExpiredError:
            slowest = self._slowest_since(self._renewed_at)
            why = f"; {slowest}; {_REMEDY}" if slowest else ""
            log.error("the lease has ended: this worker gives up its intervals, and registers anew%s", why)
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
                log.warning("registering failed, trying again: %s", error)
            await asyncio.sleep(self._ttl / _RENEWALS)
