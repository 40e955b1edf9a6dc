"""Whether a member that announces itself is in the catalog (sections 5.2, 7.2).

Invariant: a shard keeps groups and processes of the catalog only, so their number is bounded (G13). Who could break it:
a caller that invents names. A shard asks before it creates a group, or accepts another sequencer for a process.

The catalog is read at the coordinator, linearizably. The master writes a record before anyone learns its sequencer. So
a topology that is being submitted is known here before its first owner announces itself.

A record may be deleted after the read. The master removes the group from the shard after that, and the shard then
refuses the sequencer.
"""

from __future__ import annotations

import asyncio
from functools import partial

from millwheel.coordination.contract import Coordinator
from millwheel.errors import DamagedValueError
from millwheel.model.catalog_keys import chunks_prefix, injector_key
from millwheel.model.incarnation import INJECTOR_PREFIX, IncarnationId
from millwheel.rpc.v1.catalog_pb2 import InjectorRecord
from millwheel.rpc.watermarks import Member, MemberUnknownError

__all__ = ["CatalogMembers"]


class CatalogMembers:
    """Looks members up in the coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._looking: dict[str, asyncio.Task[bool]] = {}
        """By incarnation: the look-up in progress. All intervals of a new computation come at once, and share it."""

    async def check(self, group: str, member: Member, sequencer: int) -> None:
        """Check that the catalog has the member.

        Raises:
            MemberUnknownError: It has no such incarnation, no such injector process, or a process of that name never
                got this sequencer.
            CoordinatorError: The coordinator does not answer.
        """
        if isinstance(member, str):
            await self._check_process(group.removeprefix(INJECTOR_PREFIX), member, sequencer)
        elif not await self._has_intervals(IncarnationId(group)):
            raise MemberUnknownError(f"no topology has an incarnation {group!r}")

    async def _check_process(self, stream: str, process: str, sequencer: int) -> None:
        try:
            entry = await self._coordinator.get(injector_key(stream, process))
        except DamagedValueError:
            return  # It exists. The master reports the damage.
        if entry is None:
            raise MemberUnknownError(f"stream {stream!r} has no injector process {process!r}")
        drawn = InjectorRecord.FromString(entry.value).sequencer
        if sequencer > drawn:
            whose = f"injector process {process!r} of stream {stream!r}"
            raise MemberUnknownError(f"{whose} never got sequencer {sequencer}: its last is {drawn}")

    async def _has_intervals(self, incarnation: IncarnationId) -> bool:
        looking = self._looking.get(incarnation)
        if looking is not None and await asyncio.shield(looking):
            return True
        # A look-up that began before this call may have read before the record was written. So a no counts only of one
        # that began since. All that have waited for the first one share it.
        since = self._looking.get(incarnation)
        if since is None:
            since = self._looking[incarnation] = asyncio.create_task(self._look_up(incarnation))
            since.add_done_callback(partial(self._forget, incarnation))
        return await asyncio.shield(since)

    def _forget(self, incarnation: IncarnationId, looking: asyncio.Task[bool]) -> None:
        if self._looking.get(incarnation) is looking:
            del self._looking[incarnation]

    async def _look_up(self, incarnation: IncarnationId) -> bool:
        return bool((await self._coordinator.list(chunks_prefix(incarnation))).entries)
