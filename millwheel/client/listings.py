"""Keys and timers of a computation, from the workers that own its intervals."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from millwheel.client.owned_intervals import incarnation_of, owned_interval, owned_intervals
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.keys import KeyInterval
from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import calling
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import common_pb2 as common
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.rpc.v1.inspection_pb2_grpc import InspectionServiceStub

__all__ = ["ComputationListings", "KeyPage", "OwnedTimer"]

_PAGE_SIZE: Final = 1_000
_CALLS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Keys in order.

    Attributes:
        keys: The keys, each with its interval.
        following: The first key that is not among them. None: there are no more.
        spilled_timers: The timers of the intervals that only the store has. Keys that have nothing else are missing.
    """

    keys: list[tuple[catalog.IntervalRecord, wire.ListedKey]]
    following: bytes | None
    spilled_timers: int


@dataclass(frozen=True, slots=True)
class OwnedTimer:
    """A timer, with its interval and the interval's input watermark."""

    interval: catalog.IntervalRecord
    listed: wire.ListedTimer
    input_watermark: int

    @property
    def place(self) -> tuple[int, bool, bytes, str]:
        """Where it stands in the order of the times."""
        return self.listed.timer.timestamp_us, self.listed.timer.wall_time, self.listed.key, self.listed.timer.tag


class ComputationListings:
    """Lists what the owners of a computation's intervals have."""

    def __init__(self, found: control.GetTopologyResponse, computation: str, deadline: float) -> None:
        """
        Args:
            found: The topology.
            computation: The computation's name.
            deadline: The most seconds of one call.

        Raises:
            RequestError: The topology has no such computation, or it has no intervals any more.
        """
        incarnation_of(found.topology, computation)
        self._found = found
        self._computation = computation
        self._deadline = deadline
        self._intervals = owned_intervals(found, computation)

    async def keys(
        self, within: KeyInterval, limit: int, most_intervals: int = sys.maxsize, *, states: bool = False
    ) -> KeyPage:
        """Return the first ``limit`` keys within bounds that have a state or a timer.

        There are fewer if ``most_intervals`` intervals have no more. ``states``: with the texts of their states.
        """
        keys: list[tuple[catalog.IntervalRecord, wire.ListedKey]] = []
        spilled = asked = 0
        for interval in self._intervals:
            part = interval_from_proto(interval.keys).intersection(within)
            if part is None:
                continue
            if len(keys) >= limit or asked >= most_intervals:
                return KeyPage(keys, part.start, spilled)
            asked += 1
            listed, timers = await self._keys(interval, part, limit + 1 - len(keys), states)
            keys += listed
            spilled += timers
            if len(keys) > limit:
                return KeyPage(keys[:limit], keys[limit][1].key, spilled)
        return KeyPage(keys, None, spilled)

    async def _keys(
        self, interval: catalog.IntervalRecord, within: KeyInterval, count: int, states: bool
    ) -> tuple[list[tuple[catalog.IntervalRecord, wire.ListedKey]], int]:
        """The first keys of an interval, and the number of its timers that only the store has."""
        keys: list[tuple[catalog.IntervalRecord, wire.ListedKey]] = []
        request = wire.ListKeysRequest(journal=interval.journal, states=states)
        request.keys.CopyFrom(common.KeyInterval(start=within.start, end=within.end))
        address = interval.owner.address
        async with calling(address), open_channel(address) as channel:
            while True:
                request.page_size = min(count - len(keys), _PAGE_SIZE)
                page = await InspectionServiceStub(channel).ListKeys(request, timeout=self._deadline)
                keys += ((interval, one) for one in page.keys)
                request.page_token = page.next_page_token
                if len(keys) >= count or not page.next_page_token:
                    return keys, page.spilled_timers

    async def timers(self, key: bytes | None, limit: int) -> tuple[list[OwnedTimer], bool]:
        """Return the first ``limit`` timers, of one key or of all, and whether there are more."""
        intervals = self._intervals if key is None else [owned_interval(self._found, self._computation, key)]
        gate = asyncio.Semaphore(_CALLS_AT_ONCE)
        found = await asyncio.gather(*(self._timers(gate, interval, key, limit + 1) for interval in intervals))
        first = nsmallest(limit + 1, (one for some in found for one in some), key=lambda one: one.place)
        return first[:limit], len(first) > limit

    async def _timers(
        self, gate: asyncio.Semaphore, interval: catalog.IntervalRecord, key: bytes | None, count: int
    ) -> Sequence[OwnedTimer]:
        timers: list[OwnedTimer] = []
        request = wire.ListTimersRequest(journal=interval.journal, key=key)
        address = interval.owner.address
        async with gate, calling(address), open_channel(address) as channel:
            while True:
                request.page_size = min(count - len(timers), _PAGE_SIZE)
                page = await InspectionServiceStub(channel).ListTimers(request, timeout=self._deadline)
                timers += (OwnedTimer(interval, one, page.input_watermark_us) for one in page.timers)
                request.page_token = page.next_page_token
                if len(timers) >= count or not page.next_page_token:
                    return timers
