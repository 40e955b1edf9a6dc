"""The part that in-process coordinators share: locking, waking of watches, lease timers.

They differ in one method, :meth:`LocalCoordinator._persist`: whether a transition is made durable first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from millwheel.coordination.contract import (
    Compare,
    CoordinatorUnavailableError,
    DamagedValueError,
    KeyChange,
    KeyValue,
    PrefixSnapshot,
    Put,
    TransactionResult,
)
from millwheel.coordination.loop_clock import LoopClock
from millwheel.coordination.state import CoordinatorState, Transition

__all__ = ["LocalCoordinator"]

Result = TypeVar("Result")


class LocalCoordinator:
    """A :class:`~millwheel.coordination.contract.Coordinator` whose state is in this process.

    Invariant: ``_lock`` admits one transition at a time. The transition is applied, and visible to reads and watches,
    only when it is durable.
    """

    def __init__(self, state: CoordinatorState, clock: Callable[[], float] | None = None) -> None:
        """With a ``clock`` (seconds, monotonic) no timer runs: see :meth:`expire_leases`.

        Without one, leases end by a :class:`LoopClock`. Then all lease holders must run on the coordinator's own loop.
        """
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

    async def get(self, key: str) -> KeyValue | None:
        """See :meth:`Coordinator.get`."""
        await self._settle()
        entry = self._state.get(key)
        if entry is not None and entry.damage:
            raise DamagedValueError(key, entry.damage)
        return entry

    async def list(self, prefix: str) -> PrefixSnapshot:
        """See :meth:`Coordinator.list`."""
        await self._settle()
        return self._state.list(prefix)

    async def transact(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TransactionResult:
        """See :meth:`Coordinator.transact`. After a cancellation the transaction is either complete or not begun."""
        return await self._alone(self._transact(tuple(compares), tuple(puts), tuple(deletes)))

    async def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[KeyChange, ...]]:
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
        """End the leases whose time is over. Needed only with a ``clock``, after the clock has moved."""
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

    # Methods that an implementation overrides.

    async def _persist(self, transition: Transition) -> None:
        """Make the transition durable. CoordinatorUnavailableError if the outcome is unknown."""

    async def _settle(self) -> None:
        """Make sure that the state in memory equals the durable state."""
        self._check_open()

    # Helpers.

    def _check_open(self) -> None:
        if self._closed:
            raise CoordinatorUnavailableError("the coordinator is closed")

    async def _alone(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run all of ``work`` under the lock, even if the caller is cancelled: half-done work would be lost."""
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
    ) -> TransactionResult:
        await self._expire()
        transition = self._state.decide(compares, puts, deletes, self._clock())
        if transition is None:
            return TransactionResult(False, self._state.revision)
        await self._make(transition)
        return TransactionResult(True, self._state.revision)

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
        """Set the timer to the first deadline. It may fire early, because a renewal does not move it."""
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
            # The end is not durable now. The next timer, or the next transaction, tries again.
            await asyncio.sleep(0.1)
        self._set_timer()
