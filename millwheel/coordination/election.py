"""Leader election on the coordinator's contract: one key, bound to the leader's lease.

Being leader is a fact that only a transaction can establish: each transaction of a leader carries
:attr:`Leadership.compare`, and fails once another has been elected, whatever the deposed one
still believes (it may have been paused). That :meth:`Leadership.lost` returns is a courtesy, not the safeguard.
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

__all__ = ["Election", "Leadership"]


class Leadership:
    """One term of one leader."""

    def __init__(self, coordinator: Coordinator, key: str, term: int, lease: int, ttl: float) -> None:
        """Made by :meth:`Election.campaign`. ``term`` is the revision in which the key was created."""
        self.term = term
        self.compare = Compare(key, term)
        """What every transaction of this leader must carry among its compares."""
        self._coordinator = coordinator
        self._key = key
        self._lease = lease
        self._ttl = ttl
        self._lost = asyncio.Event()
        self._tasks = [self._guard(self._renew()), self._guard(self._watch())]

    @property
    def lease(self) -> int:
        """The lease that the leadership is bound to: what is to end with it is put under it, too."""
        return self._lease

    @property
    def is_lost(self) -> bool:
        """Whether the term is known to be over."""
        return self._lost.is_set()

    async def lost(self) -> None:
        """Return once the term is over: resigned, its lease ended, or its key changed by somebody else."""
        await self._lost.wait()

    async def resign(self) -> None:
        """End the term, so that another is elected at once. Nothing happens if it is over."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._lost.set()
        # If it cannot be reached now, the lease ends by itself.
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
        """Renew the lease until it has ended, or may have ended: unanswered for all of its time."""
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
        """Return when the key is no longer what this leader put; the lease alone says nothing about that."""
        while not self._lost.is_set():
            try:
                snapshot = await self._coordinator.list(self._key)
                terms = [entry.modified for entry in snapshot.entries if entry.key == self._key]
                if terms != [self.term]:
                    return
                await _next_change(self._coordinator, self._key, snapshot.revision)
            except CoordinatorUnavailableError:
                await asyncio.sleep(self._ttl / 5)


class Election:
    """A candidate for ``key``."""

    def __init__(self, coordinator: Coordinator, key: str, name: str, ttl: float = 5.0) -> None:
        """``name`` tells people who leads; ``ttl`` seconds after a leader has vanished another is elected."""
        self._coordinator = coordinator
        self._key = key
        self._name = name
        self._ttl = ttl

    async def campaign(self) -> Leadership:
        """Wait until this candidate is the leader. Calls that fail for want of the coordinator are repeated."""
        while True:
            try:
                leadership = await self.attempt()
                if leadership is not None:
                    return leadership
                await self._wait_for_vacancy()
            except (CoordinatorUnavailableError, LeaseExpiredError):
                await asyncio.sleep(self._ttl / 5)

    async def leader(self) -> str | None:
        """The name of who leads now, or None."""
        entry = await self._coordinator.get(self._key)
        return None if entry is None else entry.value.decode()

    async def attempt(self) -> Leadership | None:
        """Be elected now, or None if somebody leads. CoordinatorError: not known; what is left ends with its lease."""
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
            # Also when the outcome is unknown: a key bound to a lease that nobody renews must not linger.
            if not elected:
                with suppress(CoordinatorUnavailableError):
                    await self._coordinator.revoke_lease(lease)
        if not elected:
            return None
        return Leadership(self._coordinator, self._key, outcome.revision, lease, self._ttl)

    async def _is_held(self) -> bool:
        """Whether somebody leads, though it may not be legible who."""
        try:
            return await self._coordinator.get(self._key) is not None
        except DamagedValueError:
            return True

    async def _wait_for_vacancy(self) -> None:
        snapshot = await self._coordinator.list(self._key)
        if any(entry.key == self._key for entry in snapshot.entries):
            await _next_change(self._coordinator, self._key, snapshot.revision)


async def _next_change(coordinator: Coordinator, key: str, after: int) -> None:
    """Return when ``key`` has changed since revision ``after``, or may have."""
    watch = cast("Any", coordinator.watch(key, after))
    with suppress(CompactedError):
        async with aclosing(watch):
            async for changes in watch:
                if any(change.key == key for change in changes):
                    return
