"""Broadcasts of a shard: the watches of listeners, and the WatchWatermarks call (7.2).

A slow watch costs no more than a fast one. For each group only the newest value waits, and the sequencers
accepted since the last delivery. Above a limit, the watch sends all sequencers again instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import grpc

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.errors import abort
from millwheel.rpc.failures import RequestError
from millwheel.rpc.merging import merged
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceServicer
from millwheel.rpc.watermarks import BroadcastUpdate, Member, check_names, invalid, sequencers_to_wire

__all__ = ["BroadcastServicer", "Broadcasts", "Context", "Listener"]

MAX_WAITING_SEQUENCERS: Final = 10_000
"""The maximum number of sequencers that wait one by one for one watch and group. A turn that has listed so many members
of groups lists no further group."""

_MAX_SEQUENCERS_PER_MESSAGE: Final = 5_000
Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
ValueOf: TypeAlias = Callable[[str], int]
"""A group's broadcast value."""
MembersOf: TypeAlias = Callable[[str], list[tuple[Member, int]]]
"""All members of a group with their sequencers. It takes long for a large group."""


class Listener:
    """One watch of some groups."""

    def __init__(self, groups: Iterable[str], value_of: ValueOf, members_of: MembersOf) -> None:
        self.groups = frozenset(groups)
        self._value_of = value_of
        self._members_of = members_of
        self._whole: dict[str, None] = dict.fromkeys(sorted(self.groups))
        """The groups of which all members are to be listed, in the order in which they wait for it."""
        self._values: dict[str, int] = {}
        self._sequencers: dict[str, dict[Member, int]] = {}
        self._news = asyncio.Event()
        self._news.set()
        self._failure: Callable[[], Exception] | None = None

    def publish(self, values: Mapping[str, int], sequencers: Iterable[tuple[str, Member, int]]) -> None:
        """Keep updates of the watched groups until :meth:`next` returns them."""
        for group, member, sequencer in sequencers:
            if group in self.groups and group not in self._whole:
                waiting = self._sequencers.setdefault(group, {})
                waiting[member] = sequencer
                if len(waiting) > MAX_WAITING_SEQUENCERS:
                    del self._sequencers[group]
                    self._whole[group] = None
        for group in self.groups & values.keys():
            self._values[group] = values[group]
        if self._values or self._sequencers or self._whole:
            self._news.set()

    def _newest(self, group: str) -> int:
        """The value to send. One that waits may be the last of a group that is removed since."""
        return max(self._values.pop(group, MIN_TIMESTAMP), self._value_of(group))

    def fail(self, error: Callable[[], Exception]) -> None:
        """End the watch with the exception that ``error`` creates."""
        self._failure = error
        self._news.set()

    async def next(self) -> dict[str, BroadcastUpdate]:
        """Wait for updates and return those since the last call. The first call returns the current values.

        Lists of all members of some groups may be left for further calls. Invariant: the work of a call has a bound
        (G13). It lists the members of one large group at most, and the shard stands still meanwhile.

        Raises the exception that ended the watch.
        """
        await self._news.wait()
        if self._failure is not None:
            raise self._failure()
        self._news.clear()
        news: dict[str, BroadcastUpdate] = {}
        listed = 0
        while self._whole and listed < MAX_WAITING_SEQUENCERS:
            group = next(iter(self._whole))
            del self._whole[group]
            members = self._members_of(group)
            news[group] = BroadcastUpdate(self._newest(group), tuple(members))
            listed += len(members)
        for group in (self._values.keys() | self._sequencers.keys()) - self._whole.keys() - news.keys():
            news[group] = BroadcastUpdate(self._newest(group), tuple(self._sequencers.pop(group, {}).items()))
        if self._whole:
            self._news.set()
        return news


class Broadcasts:
    """All watches of a shard."""

    def __init__(self, value_of: ValueOf, members_of: MembersOf) -> None:
        self._value_of = value_of
        self._members_of = members_of
        self._listeners: dict[Listener, None] = {}
        """The listeners in the order of their arrival."""
        self._failure: Callable[[], Exception] | None = None

    async def watch(self, groups: Iterable[str]) -> AsyncGenerator[dict[str, BroadcastUpdate], None]:
        """Yield the broadcast values of ``groups``, with one large group in a turn, then changes.

        A slow listener gets only the newest.

        Raises the exception of :meth:`fail`.
        """
        listener = Listener(groups, self._value_of, self._members_of)
        if self._failure is not None:
            raise self._failure()
        self._listeners[listener] = None
        try:
            while True:
                yield await listener.next()
        finally:
            del self._listeners[listener]

    def publish(self, values: Mapping[str, int], sequencers: Iterable[tuple[str, Member, int]]) -> None:
        """Broadcast to all watches."""
        for listener in self._listeners:
            listener.publish(values, sequencers)

    def fail(self, error: Callable[[], Exception]) -> None:
        """End all watches, and later ones too, each with an exception that ``error`` creates."""
        self._failure = error
        for listener in self._listeners:
            listener.fail(error)


class BroadcastServicer(WatermarkServiceServicer):
    """The call that sends broadcasts to clients."""

    def __init__(self, broadcasts_of: Callable[[str], Broadcasts]) -> None:
        """``broadcasts_of``: those of a group's shard; RequestError (UNAVAILABLE) if it is not served here."""
        self._broadcasts_of = broadcasts_of

    async def WatchWatermarks(
        self, request: pb.WatchWatermarksRequest, context: Context
    ) -> AsyncIterator[pb.WatchWatermarksResponse]:
        """Send all current values, then changes. A slow listener gets only the newest of each group."""
        try:
            if not request.groups:
                raise invalid("groups", "is empty: name the groups to watch")
            for number, group in enumerate(request.groups):
                check_names(**{f"groups[{number}]": group})
                if not group:
                    raise invalid(f"groups[{number}]", 'is empty: name an incarnation, or "injector/{stream}"')
            shards: dict[Broadcasts, list[str]] = {}
            for group in request.groups:
                shards.setdefault(self._broadcasts_of(group), []).append(group)
            watches = [broadcasts.watch(groups) for broadcasts, groups in shards.items()]
            async with aclosing(merged(watches)) as updates:
                async for news in updates:
                    for response in _responses(news):
                        yield response
        except RequestError as error:
            await abort(context, error)


def _responses(news: dict[str, BroadcastUpdate]) -> Iterator[pb.WatchWatermarksResponse]:
    """Split the updates into messages of bounded size. A message is made when it is asked for.

    A group's value comes with the last of its sequencers, or after them.
    """
    response = pb.WatchWatermarksResponse()
    room = _MAX_SEQUENCERS_PER_MESSAGE
    for group, update in news.items():
        rest = update.sequencers
        while len(rest) > room:
            response.watermarks.add(group=group, watermark_us=MIN_TIMESTAMP, sequencers=sequencers_to_wire(rest[:room]))
            yield response
            rest, response, room = rest[room:], pb.WatchWatermarksResponse(), _MAX_SEQUENCERS_PER_MESSAGE
        response.watermarks.add(group=group, watermark_us=update.watermark, sequencers=sequencers_to_wire(rest))
        room -= len(rest)
    yield response
