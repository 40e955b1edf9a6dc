"""The shell that the coordinators within a process share: locking, waking watches, lease timers.

What differs is whether a transition is made durable first (:meth:`LocalCoordinator._persist`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from millwheel.coordination.contract import (
    Change,
    Compare,
    CoordinatorUnavailableError,
    DamagedValueError,
    Entry,
    Outcome,
    Put,
    Snapshot,
)
from millwheel.coordination.loop_clock import LoopClock
from millwheel.coordination.state import CoordinatorState, Transition

__all__ = ["LocalCoordinator"]

Result = TypeVar("Result")


class LocalCoordinator:
    """A :class:`~millwheel.coordination.contract.Coordinator` whose state is in this process.

    One transition at a time is under way, under ``_lock``; it is applied, and seen by reads and
    watches, only once it is durable.
    """

    def __init__(self, state: CoordinatorState, clock: Callable[[], float] | None = None) -> None:
        """With a ``clock`` of one's own (seconds, steady), no timer runs: see :meth:`expire_leases`. Without, leases
        end by a :class:`LoopClock`: all who hold one are to run on the coordinator's own loop."""
        self._state = state
        self._loop_clock = LoopClock()
        self._clock: Callable[[], float] = self._loop_clock if clock is None else clock
        self._uses_timer = clock is None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watches: set[asyncio.Event] = set()
        self._closed = False

    async def get(self, key: str) -> Entry | None:
        """See :meth:`Coordinator.get`."""
        await self._settle()
        entry = self._state.get(key)
        if entry is not None and entry.damage:
            raise DamagedValueError(key, entry.damage)
        return entry

    async def list(self, prefix: str) -> Snapshot:
        """See :meth:`Coordinator.list`."""
        await self._settle()
        return self._state.list(prefix)

    async def transact(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> Outcome:
        """See :meth:`Coordinator.transact`. A caller that is cancelled leaves it either done or not begun."""
        return await self._alone(self._transact(tuple(compares), tuple(puts), tuple(deletes)))

    async def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[Change, ...]]:
        """See :meth:`Coordinator.watch`. Ends when the coordinator is closed."""
        wake = asyncio.Event()
        self._watches.add(wake)
        try:
            while not self._closed:
                changes = self._state.changes_after(prefix, after)
                after = max(after, self._state.revision)
                for group in changes:
                    yield group
                if self._state.revision <= after and not self._closed:
                    wake.clear()
                    await wake.wait()
        finally:
            self._watches.discard(wake)

    async def grant_lease(self, ttl: float) -> int:
        """See :meth:`Coordinator.grant_lease`."""
        self._check_open()
        if self._uses_timer:
            self._loop_clock.start()
        lease = self._state.grant(ttl, self._clock())
        self._set_timer()
        return lease

    async def keep_alive(self, lease: int) -> None:
        """See :meth:`Coordinator.keep_alive`."""
        self._check_open()
        self._state.keep_alive(lease, self._clock())

    async def revoke_lease(self, lease: int) -> None:
        """See :meth:`Coordinator.revoke_lease`."""
        await self._alone(self._revoke(lease))

    async def expire_leases(self) -> None:
        """End the leases whose time is over. Needed only with a clock of one's own, after it has moved."""
        await self._alone(self._expire())

    async def close(self) -> None:
        """See :meth:`Coordinator.close`."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop_clock.stop()
        for wake in self._watches:
            wake.set()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # What an implementation adds.

    async def _persist(self, transition: Transition) -> None:
        """Make it durable. CoordinatorUnavailableError if that is not known to have happened."""

    async def _settle(self) -> None:
        """Make sure that the state is the durable one."""
        self._check_open()

    # Within.

    def _check_open(self) -> None:
        if self._closed:
            raise CoordinatorUnavailableError("the coordinator is closed")

    async def _alone(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run ``work`` to its end under the lock, even if the caller is cancelled: half of it would be lost."""
        if self._closed:
            work.close()
            self._check_open()
        task = asyncio.ensure_future(self._locked(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _locked(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            async with self._lock:
                await self._settle()
                return await work
        finally:
            work.close()

    async def _transact(
        self, compares: tuple[Compare, ...], puts: tuple[Put, ...], deletes: tuple[str, ...]
    ) -> Outcome:
        await self._expire()
        transition = self._state.decide(compares, puts, deletes, self._clock())
        if transition is None:
            return Outcome(False, self._state.revision)
        await self._make(transition)
        return Outcome(True, self._state.revision)

    async def _revoke(self, lease: int) -> None:
        if self._state.has_lease(lease):
            await self._end([lease])

    async def _expire(self) -> None:
        expired = self._state.expired(self._clock())
        if expired:
            await self._end(expired)

    async def _end(self, leases: Sequence[int]) -> None:
        await self._make(self._state.decide_end(leases))
        self._state.forget(leases)

    async def _make(self, transition: Transition) -> None:
        if transition.puts or transition.deletes:
            await self._persist(transition)
            self._publish(transition)

    def _publish(self, transition: Transition) -> None:
        self._state.apply(transition)
        for wake in self._watches:
            wake.set()

    def _set_timer(self) -> None:
        """Have the timer ring at the first deadline, or before: a renewed lease is looked at again then."""
        deadline = self._state.next_deadline()
        if not self._uses_timer or self._closed or deadline is None:
            return
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        delay = max(deadline - self._clock(), 0.001)
        self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer = None
        task = asyncio.ensure_future(self._ring_once())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ring_once(self) -> None:
        try:
            await self.expire_leases()
        except CoordinatorUnavailableError:
            # Not durable now: the next ring, or the next transaction, tries again.
            await asyncio.sleep(0.1)
        self._set_timer()
