"""A client of the whole low watermark authority. It finds each group's shard (7.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable
from contextlib import suppress
from typing import Final

from millwheel.client.authorities import ShardAddresses
from millwheel.client.watermark_streams import PendingOf, nothing_reported
from millwheel.client.watermarks import WatermarkClient, client_is_closed
from millwheel.rpc.failures import RequestError
from millwheel.rpc.merging import merged
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.watermarks import BroadcastUpdate, Member, WatermarkReport

__all__ = ["ShardedWatermarks"]

_POLL_SECONDS: Final = 0.5
"""Seconds between two checks whether a shard has moved."""


class ShardedWatermarks:
    """A :class:`~millwheel.client.watermarks.WatermarkClient` for the groups of all shards.

    Use it as an async context manager. Reports are sent inside it.
    """

    def __init__(
        self,
        addresses: ShardAddresses,
        *,
        on_refused: Callable[[WatermarkReport], None],
        pending_of: PendingOf = nothing_reported,
        refresh: float = 10.0,
    ) -> None:
        self._addresses = addresses
        self._on_refused = on_refused
        self._pending_of = pending_of
        self._refresh = refresh
        self._clients: dict[Hashable, WatermarkClient] = {}
        self._follower: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> ShardedWatermarks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reports and close the connections."""
        self._closed = True
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
            self._follower = None
        clients, self._clients = list(self._clients.values()), {}
        await asyncio.gather(*(client.close() for client in clients), *self._closing)

    def keep(self, groups: Iterable[str]) -> None:
        """Close the clients of the shards that keep none of ``groups``.

        No watch or report may use them any more.
        """
        for shard in self._clients.keys() - {self._addresses.shard_of(group) for group in groups}:
            task = asyncio.create_task(self._clients.pop(shard).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def client_for(self, group: str) -> WatermarkClient:
        """The client of the group's shard. RequestError (FAILED_PRECONDITION) if this object is closed.

        It stays the same until :meth:`keep` or :meth:`close` closes it. Its ``reports`` carry the group's reports.
        """
        if self._closed:
            raise client_is_closed()
        shard = self._addresses.shard_of(group)
        client = self._clients.get(shard)
        if client is None:
            addresses = self._addresses
            client = self._clients[shard] = WatermarkClient(
                lambda: addresses.address_of(shard),
                on_refused=self._on_refused,
                pending_of=self._pending_of,
                refresh=self._refresh,
            )
            client.start()
            self._follower = self._follower or asyncio.create_task(self._follow())
        return client

    async def _follow(self) -> None:
        """Reconnect to shards that have moved. A paused or unreachable server does not end the connection itself."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            for client in list(self._clients.values()):
                with suppress(RequestError):
                    await client.follow()

    async def accept(
        self, group: str, member: Member, sequencer: int, patience: float = 60.0, *, report_number: int = 0
    ) -> int:
        """See :meth:`WatermarkClient.accept`."""
        client = self.client_for(group)
        return await client.accept(group, member, sequencer, patience, report_number=report_number)

    def forget(self, group: str, member: Member) -> None:
        """Stop reports about a member that was released."""
        if not self._closed:
            self.client_for(group).reports.forget(group, member)

    async def explain(self, group: str, limit: int = 0) -> pb.ExplainWatermarkResponse:
        """See :meth:`WatermarkClient.explain`."""
        return await self.client_for(group).explain(group, limit)

    async def percentile(self, group: str, basis_points: int) -> pb.GetPercentileWatermarkResponse:
        """See :meth:`WatermarkClient.percentile`."""
        return await self.client_for(group).percentile(group, basis_points)

    def watch(self, groups: Iterable[str]) -> AsyncGenerator[dict[str, BroadcastUpdate], None]:
        """See :meth:`WatermarkClient.watch`. Each update comes from one shard."""
        shards: dict[Hashable, list[str]] = {}
        for group in groups:
            shards.setdefault(self._addresses.shard_of(group), []).append(group)
        return merged([self.client_for(names[0]).watch(names) for names in shards.values()])
