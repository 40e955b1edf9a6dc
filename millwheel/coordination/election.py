"""Leader election on the coordinator's contract: one key, bound to the leader's lease.

Invariant: only the current leader's transactions commit. Why: each of them carries :attr:`Leadership.compare`, so it
fails once another leader is elected. Who could break it: a transaction without that compare. A deposed leader that was
paused may still act as the leader. :meth:`Leadership.lost` may return late, so safety must not depend on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from typing import Any, cast

from millwheel.coordination.contract import (
    CompactedError,
    Compare,
    Coordinator,
    CoordinatorUnavailableError,
    DamagedValueError,
    LeaseExpiredError,
    Put,
)

__all__ = ["Election", "Leadership", "next_change"]


class Leadership:
    """One leader's term."""

    def __init__(self, coordinator: Coordinator, key: str, term: int, lease: int, ttl: float) -> None:
        """:meth:`Election.campaign` creates terms. ``term`` is the revision in which the key was created."""
        self.term = term
        self.compare = Compare(key, term)
        """The compare that every transaction of this leader must contain."""
        self._coordinator = coordinator
        self._key = key
        self._lease = lease
        self._ttl = ttl
        self._lost = asyncio.Event()
        self._tasks = [self._guard(self._renew()), self._guard(self._watch())]

    @property
    def lease(self) -> int:
        """The lease of the leadership. Keys that must end with the term are bound to it too."""
        return self._lease

    async def lost(self) -> None:
        """Return when the term has ended: resigned, its lease ended, or another process changed its key."""
        await self._lost.wait()

    async def resign(self) -> None:
        """End the term, so that another leader is elected at once. Does nothing if the term has ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._lost.set()
        # If the coordinator is unavailable, the lease ends by itself.
        with suppress(CoordinatorUnavailableError):
            await self._coordinator.revoke_lease(self._lease)

    def _guard(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            finally:
                self._lost.set()

        return asyncio.ensure_future(run())

    async def _renew(self) -> None:
        """Renew the lease until it has ended, or may have ended: no renewal succeeded for ``ttl`` seconds."""
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        while loop.time() - renewed < self._ttl:
            await asyncio.sleep(self._ttl / 3)
            asked = loop.time()
            try:
                async with asyncio.timeout(self._ttl):
                    await self._coordinator.keep_alive(self._lease)
            except LeaseExpiredError:
                return
            except (CoordinatorUnavailableError, TimeoutError):
                continue
            renewed = asked

    async def _watch(self) -> None:
        """Return when the key differs from what this leader wrote. The lease alone does not show this."""
        while not self._lost.is_set():
            try:
                snapshot = await self._coordinator.list(self._key)
                terms = [entry.modified for entry in snapshot.entries if entry.key == self._key]
                if terms != [self.term]:
                    return
                await next_change(self._coordinator, self._key, snapshot.revision)
            except CoordinatorUnavailableError:
                await asyncio.sleep(self._ttl / 5)


class Election:
    """One candidate for the leadership under ``key``."""

    def __init__(self, coordinator: Coordinator, key: str, name: str, ttl: float) -> None:
        """``name`` is shown to users. ``ttl``: seconds from a leader's failure to the next election."""
        self._coordinator = coordinator
        self._key = key
        self._name = name
        self._ttl = ttl

    async def campaign(self) -> Leadership:
        """Wait until this candidate is the leader. Repeats calls that fail while the coordinator is unavailable."""
        while True:
            try:
                leadership = await self.attempt()
                if leadership is not None:
                    return leadership
                await self._wait_for_vacancy()
            except (CoordinatorUnavailableError, LeaseExpiredError):
                await asyncio.sleep(self._ttl / 5)

    async def leader(self) -> str | None:
        """Return the name of the current leader, or None."""
        entry = await self._coordinator.get(self._key)
        return None if entry is None else entry.value.decode()

    async def attempt(self) -> Leadership | None:
        """Try to become the leader now. Return None if there is a leader.

        CoordinatorError: the outcome is unknown. A key that the attempt left behind ends with its lease.
        """
        if await self._is_held():
            return None
        lease = await self._coordinator.grant_lease(self._ttl)
        elected = False
        try:
            outcome = await self._coordinator.transact(
                [Compare(self._key, 0)], [Put(self._key, self._name.encode(), lease)]
            )
            elected = outcome.committed
        finally:
            # Also if the outcome is unknown: a key whose lease is not renewed must not block the next election.
            if not elected:
                with suppress(CoordinatorUnavailableError):
                    await self._coordinator.revoke_lease(lease)
        if not elected:
            return None
        return Leadership(self._coordinator, self._key, outcome.revision, lease, self._ttl)

    async def _is_held(self) -> bool:
        """Return whether there is a leader, even if its name cannot be read."""
        try:
            return await self._coordinator.get(self._key) is not None
        except DamagedValueError:
            return True

    async def _wait_for_vacancy(self) -> None:
        snapshot = await self._coordinator.list(self._key)
        if any(entry.key == self._key for entry in snapshot.entries):
            await next_change(self._coordinator, self._key, snapshot.revision)


async def next_change(coordinator: Coordinator, key: str, after: int) -> None:
    """Return when ``key`` has changed after revision ``after``, or may have changed."""
    watch = cast("Any", coordinator.watch(key, after))
    with suppress(CompactedError):
        async with aclosing(watch):
            async for changes in watch:
                if any(change.key == key for change in changes):
                    return
