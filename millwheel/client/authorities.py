"""Where the authority's shards are: at one fixed address, as routing says, or as the master answers (7.2)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

import grpc

from millwheel.model.catalog import shard_of
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS, open_channel
from millwheel.rpc.errors import calling
from millwheel.rpc.failures import authority_is_away
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import control_pb2_grpc

__all__ = ["MasterAddresses", "OneAddress", "RoutedShards", "ShardAddresses"]


class ShardAddresses(Protocol):
    """Finds shards. The client uses it before every attempt to connect, and a few times a second in between."""

    def shard_of(self, group: str) -> Hashable:
        """A value that is the same for all groups of one shard, and differs between shards."""

    async def address_of(self, shard: Hashable) -> str:
        """The shard's address, as host:port. RequestError (UNAVAILABLE) while no authority serves the shard."""


class OneAddress:
    """An authority that is a single server at a fixed address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def shard_of(self, group: str) -> Hashable:
        """All groups have the same shard."""
        return None

    async def address_of(self, shard: Hashable) -> str:
        """The fixed address."""
        return self._address


class RoutedShards:
    """The addresses of the authority's shards, from the master's routing. Without a new address the old one stays."""

    def __init__(self, injector: str, address: str) -> None:
        self._injector = injector
        self._addresses = {injector: address}

    def learn(self, routing: control.WatchRoutingResponse) -> None:
        """Take the addresses in a routing."""
        addresses = {self._injector: routing.authority.address}
        addresses.update((consumer.incarnation, consumer.authority.address) for consumer in routing.consumers)
        self._addresses.update((name, address) for name, address in addresses.items() if address)

    def shard_of(self, group: str) -> Hashable:
        """Each group counts as a shard here. The cluster may map several groups to one shard."""
        return group

    async def address_of(self, shard: Hashable) -> str:
        """The address of the authority that keeps the group's watermark."""
        return self._addresses.get(str(shard)) or self._addresses[self._injector]


class MasterAddresses:
    """Requests a shard's address from the leading master before every attempt to connect."""

    def __init__(self, shards: int, master: str, deadline: float = DEFAULT_DEADLINE_SECONDS) -> None:
        """Use :meth:`ask` instead."""
        self._shards = shards
        self._master = master
        self._deadline = deadline

    @classmethod
    async def ask(cls, master: str, deadline: float = DEFAULT_DEADLINE_SECONDS) -> MasterAddresses:
        """Create an object.

        ``master``: host:port of the leader. RequestError if it does not answer or does not lead.
        """
        return cls((await _list(master, deadline)).shards, master, deadline)

    def shard_of(self, group: str) -> Hashable:
        """The number of the group's shard. The number of shards is fixed when the cluster is created."""
        return shard_of(group, self._shards)

    async def address_of(self, shard: Hashable) -> str:
        """The current address of a shard. RequestError (UNAVAILABLE) while no authority serves it."""
        for record in (await _list(self._master, self._deadline)).authorities:
            if record.shard == shard:
                return record.endpoint.address
        raise authority_is_away(f"shard {shard}")


async def _list(master: str, deadline: float) -> control.ListAuthoritiesResponse:
    channel: grpc.aio.Channel
    async with open_channel(master) as channel, calling(master, [master]):
        stub: control_pb2_grpc.RoutingServiceAsyncStub = control_pb2_grpc.RoutingServiceStub(channel)
        return await stub.ListAuthorities(control.ListAuthoritiesRequest(), timeout=deadline)
