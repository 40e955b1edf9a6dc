"""A process that is a candidate for the authority's shards, and serves the shards that it wins (7.2).

The coordinator holds one election for each shard. The elected candidate draws a fresh sequencer, fences the shard's
journal with it, and only then publishes the shard's address. When the process loses the lease or the fence, it stops
the shard and publishes nothing more for it. Then it is a candidate again.

The fence is the safeguard: a deposed shard cannot append. The lease only decides who takes the shard over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from millwheel.authority.group_names import GroupTopologies
from millwheel.authority.metrics import ShardMetrics
from millwheel.authority.placement import ElectionView, PlacementDelays, PlacementPolicy
from millwheel.authority.presence import Presence
from millwheel.authority.shard import AuthorityShard, ShardSettings
from millwheel.coordination.contract import Coordinator, CoordinatorError, Put
from millwheel.coordination.election import Election, Leadership
from millwheel.coordination.sequencers import draw_sequencer
from millwheel.model.catalog import shard_of
from millwheel.model.catalog_keys import (
    AUTHORITIES,
    CANDIDATES,
    SHARD_LEADERSHIPS,
    authority_key,
    shard_leadership_key,
)
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1.catalog_pb2 import AuthorityRecord
from millwheel.rpc.v1.common_pb2 import Endpoint
from millwheel.store.contract import JournalExistsError, StateStore, StoreError
from millwheel.store.sequencer_allocation import reserve_sequencers

__all__ = ["SHARD_ELSEWHERE", "Candidate", "CandidateSettings", "ShardElsewhereError", "journal_of"]

log = logging.getLogger("millwheel.authority")

SHARD_ELSEWHERE: Final = "SHARD_ELSEWHERE"
"""The reason code of a :class:`ShardElsewhereError`."""


@dataclass(frozen=True, slots=True)
class CandidateSettings:
    """All times are in seconds.

    ``lease``: the time from the loss of a process to the next election for its shards. ``poll``: the interval between
    two reads of the coordinator.
    """

    lease: float
    poll: float = 0.25
    delays: PlacementDelays = field(default_factory=PlacementDelays)
    shard: ShardSettings = field(default_factory=ShardSettings)


class ShardElsewhereError(RequestError):
    """The shard that keeps a group is not served by this process. ``leader`` is its server, if known."""

    def __init__(self, group: str, shard: int, owner: str) -> None:
        whose = f"is served by {owner}" if owner else "has no server that is known here"
        super().__init__(
            FailureCode.UNAVAILABLE,
            f"authority shard {shard}, which keeps {group!r}, {whose}",
            "ask there, or look up in the coordinator where the shard is now",
            reason=SHARD_ELSEWHERE,
            leader=owner,
        )


def journal_of(shard: int) -> str:
    """Return the name of a shard's journal."""
    return f"authority.{shard}"


class Candidate:
    """A candidate for ``shards`` shards, numbered from 0. All shards that it wins are served at ``address``."""

    def __init__(
        self,
        coordinator: Coordinator,
        store: StateStore,
        address: str,
        shards: int,
        settings: CandidateSettings,
    ) -> None:
        """``address``: host:port at which a WatermarkServicer of this candidate answers."""
        self.metrics = ShardMetrics()
        self._names = GroupTopologies(coordinator)
        self._coordinator = coordinator
        self._store = store
        self._address = address
        self._shards = shards
        self._settings = settings
        self._policy = PlacementPolicy(address, shards, self._settings.delays)
        self._presence = Presence(coordinator, address, self._settings.lease)
        self._terms: dict[int, _Term] = {}
        self._serving: dict[int, AuthorityShard] = {}
        self._elsewhere: dict[int, str] = {}

    @property
    def serving(self) -> tuple[int, ...]:
        """The shards that this process serves."""
        return tuple(sorted(self._serving))

    def shard_for(self, group: str) -> AuthorityShard:
        """Return the shard that keeps ``group``; raises ShardElsewhereError if it is not served here."""
        shard = shard_of(group, self._shards)
        served = self._serving.get(shard)
        if served is None:
            raise ShardElsewhereError(group, shard, self._elsewhere.get(shard, ""))
        return served

    async def run(self) -> None:
        """Compete for shards and serve them until cancelled. Then resign them all, which starts new elections."""
        naming = asyncio.create_task(self._names.run(self._groups), name="names of groups")
        try:
            while True:
                try:
                    async with asyncio.timeout(self._settings.lease):
                        await self._follow_election()
                except (CoordinatorError, TimeoutError) as error:
                    log.warning("the authority's elections cannot be followed now: %s", str(error) or "no answer")
                await asyncio.sleep(self._settings.poll)
        finally:
            tasks = [naming, *(term.task for term in self._terms.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._presence.end()

    def _groups(self) -> set[str]:
        return {group for served in self._serving.values() for group in served.groups()}

    async def _follow_election(self) -> None:
        """Read candidates and leaders from the coordinator, and carry out the placement decision."""
        candidates = await self._coordinator.list(CANDIDATES)
        leaders = await self._coordinator.list(SHARD_LEADERSHIPS)
        records = await self._coordinator.list(AUTHORITIES)
        view = ElectionView(
            frozenset(entry.value.decode() for entry in candidates.entries if not entry.damage),
            # A leader whose name cannot be read still holds its shard, so this candidate does not compete for it.
            {int(entry.key.removeprefix(SHARD_LEADERSHIPS)): entry.value.decode() for entry in leaders.entries},
        )
        served = [AuthorityRecord.FromString(entry.value) for entry in records.entries if not entry.damage]
        self._elsewhere = {record.shard: record.endpoint.address for record in served}
        decision = self._policy.decide(view, self.serving, self._now())
        for shard in decision.give_up:
            log.info("authority shard %d is released, as others serve fewer", shard)
            self._terms[shard].given_up.set()
        for shard in decision.compete:
            if shard not in self._terms:
                self._terms[shard] = _Term(asyncio.create_task(self._compete(shard), name=f"authority shard {shard}"))
        await self._presence.update(decision.present, self._now())

    async def _compete(self, shard: int) -> None:
        """Compete once in the election for a shard, and serve the shard for as long as the leadership lasts."""
        try:
            leadership = await Election(
                self._coordinator, shard_leadership_key(shard), self._address, self._settings.lease
            ).attempt()
            if leadership is None:
                return
            try:
                await self._serve(shard, leadership)
            finally:
                await leadership.resign()
        except (CoordinatorError, StoreError) as error:
            log.warning("authority shard %d cannot be served here now: %s", shard, error)
            self._policy.failed(shard, self._now())
        except Exception:
            log.exception("authority shard %d cannot be served here", shard)
            self._policy.failed(shard, self._now())
        finally:
            del self._terms[shard]

    async def _serve(self, shard: int, leadership: Leadership) -> None:
        """Fence the shard's journal, publish its address, then serve it until it is lost or given up."""
        async with AsyncExitStack() as stack:
            opening = asyncio.create_task(self._open(stack, shard))
            # A lost election ends this call at once, even while the store does not answer.
            if not await _first(opening, leadership.lost()):
                log.warning("authority shard %d: the election was lost before the journal was taken", shard)
                return
            served = opening.result()
            self._serving[shard] = served
            stack.callback(self._serving.pop, shard)
            record = AuthorityRecord(shard=shard, endpoint=Endpoint(worker_id=self._address, address=self._address))
            put = Put(authority_key(shard), record.SerializeToString(), leadership.lease)
            if not (await self._coordinator.transact([leadership.compare], [put])).committed:
                return
            log.info("authority shard %d is served here", shard)
            log.warning("authority shard %d is released: %s", shard, await self._end_of(shard, served, leadership))

    async def _open(self, stack: AsyncExitStack, shard: int) -> AuthorityShard:
        """Fence the shard's journal with a freshly drawn sequencer, and open the shard."""
        with suppress(JournalExistsError):
            await self._store.create_journal(journal_of(shard))
        sequencer = await draw_sequencer(self._coordinator, partial(reserve_sequencers, self._store))
        registry = self.metrics.add(shard)
        stack.callback(self.metrics.drop, shard)
        served = await AuthorityShard.open(
            self._store,
            journal_of(shard),
            sequencer,
            registry=registry,
            settings=self._settings.shard,
            labels=self._names.labels,
        )
        stack.push_async_callback(served.close)
        return served

    async def _end_of(self, shard: int, served: AuthorityShard, leadership: Leadership) -> str:
        """Wait until the shard ends here, and return the reason."""
        stopped = asyncio.ensure_future(served.wait_stopped())
        lost = asyncio.ensure_future(leadership.lost())
        given_up = asyncio.ensure_future(self._terms[shard].given_up.wait())
        try:
            await asyncio.wait({stopped, lost, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                return stopped.result()
            return "another was elected, or the lease has ended" if lost.done() else "others have fewer"
        finally:
            for waiting in (stopped, lost, given_up):
                waiting.cancel()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass(slots=True)
class _Term:
    """One shard for which this process competes, or which it serves."""

    task: asyncio.Task[None]
    given_up: asyncio.Event = field(default_factory=asyncio.Event)


async def _first(work: asyncio.Task[AuthorityShard], end: Awaitable[None]) -> bool:
    """Return whether ``work`` finishes before ``end``. Otherwise ``work`` is cancelled."""
    ending = asyncio.ensure_future(end)
    try:
        await asyncio.wait({work, ending}, return_when=asyncio.FIRST_COMPLETED)
        return work.done()
    finally:
        ending.cancel()
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
