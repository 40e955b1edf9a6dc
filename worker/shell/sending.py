"""The destinations of productions: a host of this process, another process, or none after a removal (6.1.1, 4.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from millwheel.coordination.contract import Coordinator, CoordinatorError
from millwheel.model.catalog import Catalog
from millwheel.rpc.channel import open_channel
from millwheel.worker.messages import Acknowledged, Delivery, SendDelivery
from millwheel.worker.shell.channels import LocalChannel
from millwheel.worker.shell.host import CoreHost
from millwheel.worker.shell.hosted import Hosted
from millwheel.worker.shell.peers import PeerConnection
from millwheel.worker.shell.removed_consumers import RemovedConsumers

__all__ = ["DeliverySender"]


class DeliverySender:
    """Sends the batches of one process's intervals to the owners that the catalog names."""

    def __init__(
        self,
        coordinator: Coordinator,
        catalog: Catalog,
        hosted: Mapping[str, Hosted],
        address: str,
        background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """
        Args:
            coordinator: For linearizable reads of removed consumers.
            catalog: The present owners.
            hosted: The intervals in this process, by journal.
            address: This process's address.
            background: Runs a coroutine in the background.
        """
        self._catalog = catalog
        self._hosted = hosted
        self._address = address
        self._background = background
        self._edges = RemovedConsumers(coordinator, catalog)
        self._peers: dict[str, PeerConnection] = {}

    def refresh(self) -> None:
        """The catalog has changed."""
        self._edges.refresh()

    def send(self, host: CoreHost, send: SendDelivery) -> None:
        """Send a batch to its owner, in this process or another. A batch that cannot be sent now is sent later."""
        delivery = send.delivery
        sender = self._hosted.get(host.journal)
        if sender is None or sender.host is not host:
            return
        if not self._edges.has(delivery.consumer, delivery.stream):
            self._background(self._discard(host, sender.channel, delivery))
            return
        local = self._hosted.get(delivery.journal)
        if local is not None:
            delivery.channel = sender.channel
            local.host.post(delivery)
            return
        address = self._address_of(delivery.consumer, delivery.journal)
        if not address:
            sender.channel.later(delivery.token)
            return
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = PeerConnection(address, open_channel)
        peer.send(delivery, sender.channel)

    async def _discard(self, host: CoreHost, channel: LocalChannel, delivery: Delivery) -> None:
        """Discard a batch for a removed consumer. If the removal is not certain, try again later."""
        try:
            gone = await self._edges.is_gone(delivery.consumer, delivery.stream)
        except CoordinatorError:
            gone = False
        if gone:
            host.post(Acknowledged(delivery.token))
        else:
            channel.later(delivery.token)

    def _address_of(self, consumer: str, journal: str) -> str:
        table = self._catalog.tables.get(consumer)
        interval = table.of_journal(journal) if table is not None else None
        address = interval.owner.address if interval is not None else ""
        return "" if address == self._address else address

    async def close_connection(self) -> None:
        """Close the connections to workers that own nothing any more."""
        owners = {address for table in self._catalog.tables.values() for address in table.addresses()}
        for address in self._peers.keys() - owners:
            await self._peers.pop(address).close()

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))
