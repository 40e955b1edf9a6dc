"""One authority shard with the calls of owners, masters and operators (7.2).

What each report runs is in :mod:`millwheel.authority.driver`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry

from millwheel.authority.core import AuthorityCore, CoreSettings
from millwheel.authority.driver import AuthorityDriver, now_us
from millwheel.authority.members import Explanation
from millwheel.authority.messages import (
    AuthorityEvent,
    InjectorsExpected,
    PercentileRequested,
    RemovalRequested,
    SequencerOffered,
)
from millwheel.authority.metrics import AuthorityMetrics, LabelsOf, unnamed
from millwheel.authority.pace import PaceSettings
from millwheel.authority.percentiles import WHOLE
from millwheel.authority.silences import silent_injectors
from millwheel.authority.writer import JournalWriter, read_core
from millwheel.model.backoff import Backoff
from millwheel.rpc.watermarks import AcceptRefusedError, Member
from millwheel.store.contract import StateStore

__all__ = ["AuthorityShard", "PercentileAnswer", "ShardSettings", "WorkRequests"]

_POLL_BACKOFF: Final = Backoff(0.002, 0.05)
"""Seconds between two checks whether all members have published their pending work: at first, and at most."""


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """Settings of one shard. All times are in seconds.

    - ``coalesce``, ``rest``, ``longest_rest``, ``idle``, ``verify``: see ``PaceSettings`` (``authority/pace.py``).
    - ``ask``: how long members have to publish their pending work.
    """

    coalesce: float = 0.002
    rest: float = 0.0
    longest_rest: float = 1.0
    idle: float = 0.1
    verify: float = 5.0
    ask: float = 1.0
    core: CoreSettings = field(default_factory=CoreSettings)

    @property
    def paced(self) -> CoreSettings:
        """The core's settings, with the delays of these."""
        coalesce, longest_rest, idle, verify = (
            round(delay * 1e6) for delay in (self.coalesce, self.longest_rest, self.idle, self.verify)
        )
        return replace(self.core, pace=PaceSettings(coalesce, self.rest, longest_rest, idle, verify))


class PercentileAnswer(NamedTuple):
    """A percentile watermark, the number of the group's members, and how many did not publish in time."""

    watermark: int
    members: int
    silent: int


class WorkRequests:
    """Pending-work requests to owners. Each Report call listens, and passes requests on to its reporter."""

    def __init__(self) -> None:
        self._listeners: dict[Callable[[str], None], None] = {}

    def listen(self, request: Callable[[str], None]) -> None:
        """Call ``request`` with the name of each requested group from now on. Call :meth:`leave` at the end."""
        self._listeners[request] = None

    def leave(self, request: Callable[[str], None]) -> None:
        """Stop calling ``request``."""
        self._listeners.pop(request, None)

    def ask(self, group: str) -> None:
        """Request the pending work of all owners of ``group``."""
        for request in self._listeners:
            request(group)


class AuthorityShard(AuthorityDriver):
    """One running shard, created by :meth:`open`."""

    def __init__(
        self,
        writer: JournalWriter,
        core: AuthorityCore,
        metrics: AuthorityMetrics,
        settings: ShardSettings,
        opened: int,
    ) -> None:
        """``opened``: when the shard was opened here, by the core's clock."""
        super().__init__(writer, core, metrics)
        self.work_requests = WorkRequests()
        self.opened = opened
        self._settings = settings
        self._tokens = count()

    @classmethod
    async def open(
        cls,
        store: StateStore,
        journal: str,
        sequencer: int,
        *,
        registry: CollectorRegistry | None = None,
        settings: ShardSettings | None = None,
        labels: LabelsOf = unnamed,
    ) -> AuthorityShard:
        """Fence ``journal`` for the freshly drawn ``sequencer``, and restore the shard from it.

        ``labels``: the labels of its groups in ``registry``.

        Raises SequencerRefusedError if a newer process owns the journal, JournalMissingError if it was never created.
        Raises StoreUnavailableError if the outcome is unknown: draw a new sequencer and open again.
        """
        settings = settings or ShardSettings()
        core = await read_core(store, journal, sequencer, settings.paced)
        opened = now_us()
        metrics = AuthorityMetrics(
            registry or CollectorRegistry(),
            core.broadcasts,
            labels,
            lambda: silent_injectors(core, now_us(), opened),
        )
        return cls(JournalWriter(store, journal), core, metrics, settings, opened)

    def shard_for(self, group: str) -> AuthorityShard:
        """Return the shard that keeps ``group``. A process with a single shard always gets this one."""
        return self

    def groups(self) -> Collection[str]:
        """Return the groups that the shard keeps."""
        return self._core.broadcasts().keys()

    def knows(self, group: str, member: Member, sequencer: int) -> bool:
        """Return whether the group has this interval, or this process with exactly this sequencer."""
        self._check()
        return self._core.registry.knows(group, member, sequencer)

    async def accept(self, group: str, member: Member, sequencer: int, report_number: int = 0) -> int:
        """Accept ``sequencer`` as the owner of ``member`` (G4), and return the value last broadcast for it.

        The acceptance is journaled when this call returns. With ``report_number`` (injector processes only), the
        reports up to that number are journaled too.

        Raises AcceptRefusedError if a larger sequencer is the owner, AuthorityStoppedError if the outcome is unknown.
        Raises ReportNotReceivedError if that report was not received.
        """
        try:
            return await self._journaled(lambda token: SequencerOffered(token, group, member, sequencer, report_number))
        except AcceptRefusedError:
            self._metrics.refused.labels("acceptance").inc()
            raise

    async def expect_injectors(self, stream: str, processes: Iterable[str], as_of: int = 0) -> None:
        """Make ``stream``'s watermark wait for exactly ``processes`` (5.2). It is journaled when this call returns.

        ``as_of``: see :class:`InjectorsExpected`.
        """
        await self._journaled(lambda token: InjectorsExpected(token, stream, processes, as_of))

    async def remove(self, group: str, up_to: int = 0) -> None:
        """Forget a cancelled group. It is journaled when this call returns.

        With ``up_to``, nothing happens if a larger sequencer was accepted. The stream's name may be in use again by
        the time that a request of a deposed master arrives. After the removal no sequencer up to ``up_to`` is
        accepted.
        """
        self._check()
        if up_to and self._core.outlives(group, up_to):
            return
        await self._journaled(lambda token: RemovalRequested(token, group, up_to))

    def explain(self, group: str, limit: int = 100) -> Explanation | None:
        """Return which members hold the watermark of ``group``, and why (G8); None if it is unknown."""
        self._check()
        return self._core.explain(group, now_us(), limit)

    async def percentile(self, group: str, basis_points: int) -> PercentileAnswer | None:
        """Return a percentile watermark of ``group``, which ignores its smallest timestamps at work (7.2).

        Requests the members' pending work and waits up to :data:`ShardSettings.ask` seconds for it. Returns None if
        the group is unknown.
        """
        self._check()
        since = now_us()
        loop = asyncio.get_running_loop()
        until, polls = loop.time() + self._settings.ask, 0
        work = self._core.work(group, since)
        if work is not None:
            self.work_requests.ask(group)
        while work is not None and work.silent and loop.time() < until and basis_points < WHOLE:
            polls += 1
            await asyncio.sleep(_POLL_BACKOFF.delay(polls, random.random()))
            work = self._core.work(group, since)
        if work is None:
            return None
        self._check()
        try:
            value = await self._journaled(lambda token: PercentileRequested(token, group, basis_points, since))
        except KeyError:
            return None
        return PercentileAnswer(value, work.members, work.silent)

    async def _journaled(self, event: Callable[[int], AuthorityEvent]) -> int:
        """Pass an event with a fresh token to the core, and wait for the token's answer."""
        self._check()
        token = next(self._tokens)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answers[token] = answer
        try:
            self._step(event(token))
            return await answer
        finally:
            del self._answers[token]
