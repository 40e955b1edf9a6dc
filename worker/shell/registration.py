"""A worker's registration: a record under a lease, by which the master knows that the worker lives (section 7.1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from millwheel.coordination.contract import Compare, Coordinator, CoordinatorError, LeaseExpiredError, Put
from millwheel.core.catalog_keys import worker_key
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1.common_pb2 import Endpoint
from millwheel.worker.shell.runloop import wall_now

__all__ = ["Registration"]

log = logging.getLogger("millwheel.worker")

_RENEWALS: Final = 3
"""Renewals in one time to live: two may fail before the lease ends."""


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
    ) -> None:
        self._coordinator = coordinator
        self._ttl = ttl
        self._lapsed = lapsed
        self._lease = 0
        self._record = catalog.WorkerRecord(
            endpoint=Endpoint(worker_id=worker_id, address=address), started_at_us=wall_now()
        )
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    async def start(self) -> None:
        """Register, and stay so."""
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

    async def _register(self) -> None:
        """Put the record anew, whatever is there, in the name of a process before this one or of an earlier attempt.

        Each step says what it found: of a transaction that timed out it is not known when it takes effect, and one that
        did so after all others would replace or take away the record of a lease that goes on being renewed.
        """
        self._lease = await self._coordinator.grant_lease(self._ttl)
        key = worker_key(self._record.endpoint.worker_id)
        put = Put(key, self._record.SerializeToString(), self._lease)
        # A process that was killed may have left its record, under a lease that still lives. What was assigned to it is
        # not ours: its sequencers have opened their journals. So this record is a new one, not the old one changed.
        while not (await self._coordinator.transact([Compare(key, 0)], [put])).committed:
            for entry in (await self._coordinator.list(key)).entries:
                if entry.key == key:
                    await self._coordinator.transact([Compare(key, entry.modified)], deletes=[key])

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
            await asyncio.wait_for(self._wanted.wait(), self._ttl / _RENEWALS)
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
        try:
            await self._coordinator.keep_alive(self._lease)
        except LeaseExpiredError:
            log.error("the lease has ended: this worker gives up its intervals, and registers anew")
            return False
        except CoordinatorError as error:
            log.warning("the lease could not be renewed, trying again: %s", error)
        return True

    async def _until_done(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
                return
            except CoordinatorError as error:
                log.warning("registering failed, trying again: %s", error)
                await asyncio.sleep(self._ttl / _RENEWALS)
