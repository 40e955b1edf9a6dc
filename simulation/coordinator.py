"""The coordinator of a simulated cluster: the rules of the in-process coordinators, behind a simulated network."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random

from millwheel.coordination.contract import (
    CompactedError,
    Compare,
    CoordinatorUnavailableError,
    KeyChange,
    KeyValue,
    PrefixSnapshot,
    Put,
    TransactionResult,
)
from millwheel.coordination.state import CoordinatorState, Transition
from simulation.network import Network
from simulation.process import PROCESS, Process
from simulation.remote import Remote

__all__ = ["SimulatedCoordinator"]


class _Watch:
    """One watch of one process: its changes, in the order in which the network delivers them."""

    def __init__(self, process: Process, prefix: str, after: int) -> None:
        self.process = process
        self.prefix = prefix
        self.after = after
        """The revision up to which changes were sent."""
        self.arrives = 0.0
        self.come: deque[tuple[KeyChange, ...] | Exception] = deque()
        """Changes that have arrived; an exception: the end of the watch."""
        self.news = asyncio.Event()

    def arrive(self, group: tuple[KeyChange, ...] | Exception) -> None:
        """The changes of one revision, or the end of the watch, have arrived."""
        self.come.append(group)
        self.news.set()


class SimulatedCoordinator:
    """A :class:`~millwheel.coordination.contract.Coordinator`; every process uses the same one."""

    def __init__(
        self, network: Network, chance: Random, changed: Callable[[tuple[KeyChange, ...]], None], kept: int
    ) -> None:
        """Start an empty coordinator.

        ``changed`` is called with the changes of each revision. The last ``kept`` revisions are kept.
        """
        self.state = CoordinatorState(history=kept)
        self.remote = Remote(network, "coordinator", chance, CoordinatorUnavailableError, 2.0)
        self._network = network
        self._changed = changed
        self._watches: dict[_Watch, None] = {}
        self._ring_at = float("inf")
        self._lag = 0.0
        """Seconds for which its machines were suspended and which its clock has not counted."""
        self.lease_clock = ""
        """The clock by which processes measure their leases: "boot" or "steady".

        Empty: only the coordinator measures them.
        """
        self._ttls: dict[int, float] = {}
        """The seconds that each lease was granted for."""
        self.misused: Callable[[str], None] = lambda what: None
        """Called with a description of a request that no process may make."""

    def suspend(self) -> None:
        """Suspend the coordinator's machines: they do not answer."""
        self.remote.weather.away = True

    def resume(self, slept: float, counted: bool) -> None:
        """Resume them after ``slept`` seconds.

        If the clock has not ``counted`` these seconds, leases last longer by them.
        """
        self.remote.weather.away = False
        self._lag += 0.0 if counted else slept
        self._ring_at = float("inf")
        self._set_alarm()

    # The contract.

    async def get(self, key: str) -> KeyValue | None:
        """See :class:`Coordinator`, here and below."""
        return await self.remote.ask(lambda: self.state.get(key))

    async def list(self, prefix: str) -> PrefixSnapshot:
        return await self.remote.ask(lambda: self.state.list(prefix))

    async def transact(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TransactionResult:
        return await self.remote.ask(lambda: self._transact(tuple(compares), tuple(puts), tuple(deletes)))

    async def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[KeyChange, ...]]:
        process = PROCESS.get()
        assert process is not None
        watch = await self.remote.ask(lambda: self._add(_Watch(process, prefix, after)))
        try:
            while True:
                while not watch.come:
                    watch.news.clear()
                    await watch.news.wait()
                group = watch.come.popleft()
                if isinstance(group, Exception):
                    raise group
                yield group
        finally:
            self._watches.pop(watch, None)

    async def grant_lease(self, ttl: float) -> int:
        return await self.remote.ask(lambda: self._grant(ttl))

    async def keep_alive(self, lease: int) -> None:
        await self.remote.ask(lambda: self.state.keep_alive(lease, self._now()))

    async def revoke_lease(self, lease: int) -> None:
        await self.remote.ask(lambda: self._end([lease] if self.state.has_lease(lease) else []))

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""

    # On the coordinator's side.

    @property
    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self._network.loop.now

    def ttl_of(self, lease: int) -> float:
        """The seconds that a lease was granted for; 0 if it has ended."""
        return self._ttls[lease] if self.state.has_lease(lease) else 0.0

    def _now(self) -> float:
        return self._network.loop.now - self._lag

    def _transact(
        self, compares: tuple[Compare, ...], puts: tuple[Put, ...], deletes: tuple[str, ...]
    ) -> TransactionResult:
        self._end(self.state.expired(self._now()))
        transition = self.state.decide(compares, puts, deletes, self._now())
        if transition is None:
            return TransactionResult(False, self.state.revision)
        self._make(transition)
        return TransactionResult(True, self.state.revision)

    def _grant(self, ttl: float) -> int:
        lease = self.state.grant(ttl, self._now())
        self._ttls[lease] = ttl
        self._set_alarm()
        return lease

    def _set_alarm(self) -> None:
        deadline = self.state.next_deadline()
        if deadline is not None and deadline < self._ring_at:
            self._ring_at = deadline
            self._network.loop.call_at(deadline + self._lag, self._ring, deadline, context=self._network.context)

    def _ring(self, at: float) -> None:
        if at != self._ring_at:
            return
        self._ring_at = float("inf")
        if not self.remote.weather.away:
            self._end(self.state.expired(self._now()))
        deadline = self.state.next_deadline()
        if deadline is not None:
            self._ring_at = max(deadline, self._now() + 0.1)
            self._network.loop.call_at(
                self._ring_at + self._lag, self._ring, self._ring_at, context=self._network.context
            )

    def _end(self, leases: Sequence[int]) -> None:
        if leases:
            self._make(self.state.decide_end(leases))
            self.state.forget(leases)

    def _make(self, transition: Transition) -> None:
        if transition.puts or transition.deletes:
            self.state.apply(transition)
            self._changed(transition.changes())
            for watch in list(self._watches):
                self._push(watch)

    def expire(self, prefix: str) -> bool:
        """End the leases of the keys below ``prefix``, as after a clock error or a lost quorum.

        Returns False if there are no such leases.
        """
        leases = sorted({entry.lease for entry in self.state.list(prefix).entries if entry.lease})
        self._end(leases)
        return bool(leases)

    # Watches.

    def _add(self, watch: _Watch) -> _Watch:
        self.state.changes_after(watch.prefix, watch.after)  # raises an error if these changes are no longer kept
        self._watches[watch] = None
        self._push(watch)
        return watch

    def _push(self, watch: _Watch) -> None:
        """Send new changes. If the link is cut, the watch sends them with later changes."""
        process = watch.process
        if not process.alive:
            self._watches.pop(watch, None)
            return
        if self._network.is_cut(self.remote.name, process.name):
            self._network.loop.call_later(0.5, self._retry, watch, context=self._network.context)
            return
        try:
            groups = self.state.changes_after(watch.prefix, watch.after)
        except CompactedError as error:
            del self._watches[watch]
            self._send(watch, error)
            return
        for group in groups:
            self._send(watch, group)
        watch.after = self.state.revision

    def _retry(self, watch: _Watch) -> None:
        if watch in self._watches:
            self._push(watch)

    def _send(self, watch: _Watch, group: tuple[KeyChange, ...] | Exception) -> None:
        now = self.now
        delay = self._network.delay(self.remote.name, watch.process.name)
        watch.arrives = max(watch.arrives, now + delay)
        self._network.loop.call_at(
            watch.arrives, watch.process.enter, watch.arrive, group, context=self._network.context
        )

    def break_watches(self) -> None:
        """Break all watches, as when a member of the coordinator fails."""
        for watch in list(self._watches):
            del self._watches[watch]
            self._send(watch, CoordinatorUnavailableError("the watch was broken off"))
