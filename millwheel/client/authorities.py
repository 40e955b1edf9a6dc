"""Finds the authority's shards by requests to the master (7.2)."""

from __future__ import annotations

from collections.abc import Hashable

import grpc

from millwheel.model.catalog import shard_of
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS, open_channel
from millwheel.rpc.errors import calling
from millwheel.rpc.failures import authority_is_away
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import control_pb2_grpc

__all__ = ["MasterPlaces"]


class MasterPlaces:
    """Requests a shard's address from the leading master before every attempt to connect.

    Implements :class:`~millwheel.client.shards.ShardPlaces`.
    """

    def __init__(self, shards: int, master: str, deadline: float = DEFAULT_DEADLINE_SECONDS) -> None:
        """Use :meth:`ask` instead."""
        self._shards = shards
        self._master = master
        self._deadline = deadline

    @classmethod
    async def ask(cls, master: str, deadline: float = DEFAULT_DEADLINE_SECONDS) -> MasterPlaces:
        """Create an object.

        ``master``: host:port of the leader. RequestError if it does not answer or does not lead.
        """
        return cls((await _list(master, deadline)).shards, master, deadline)

    def shard_of(self, computation: str) -> Hashable:
        """The number of the computation's shard. The number of shards is fixed when the cluster is created."""
        return shard_of(computation, self._shards)

    async def address_of(self, shard: Hashable) -> str:
        """The current address of a shard. RequestError (UNAVAILABLE) while no authority serves it."""
        for record in (await _list(self._master, self._deadline)).authorities:
            if record.shard == shard:
                return record.endpoint.address
        raise authority_is_away(f"shard {shard}")


async def _list(master: str, deadline: float) -> control.ListAuthoritiesResponse:
    channel: grpc.aio.Channel
    async with open_channel(master) as channel, calling(master):
        stub: control_pb2_grpc.RoutingServiceAsyncStub = control_pb2_grpc.RoutingServiceStub(channel)
        return await stub.ListAuthorities(control.ListAuthoritiesRequest(), timeout=deadline)
