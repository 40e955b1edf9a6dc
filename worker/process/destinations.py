"""Where productions go: to which consumers and journals, to which process, and what the receiver answers (4.2, 6.1.1).

The consumer names the key extractor, which runs here, at the sender. So the consumer's code is loaded here, like the
producer's code.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from millwheel.coordination.contract import Coordinator, CoordinatorError
from millwheel.model.catalog import Catalog, Consumer
from millwheel.model.formats import RESULT_COLUMNS
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.outbound import AnswerKind, answer_kind
from millwheel.model.stream_names import owner_of
from millwheel.rpc.channel import open_channel
from millwheel.rpc.column_keys import KeySource
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.sdk.effects import KeyColumns
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import KeyExtractionError
from millwheel.sdk.keys import key_source
from millwheel.sdk.scope import FixedRoute, OutputBinding, RouteOfAll, route_of_all
from millwheel.worker.messages import Acknowledged, Delivery, Refused, SendDelivery
from millwheel.worker.process.host import CoreHost, RunningInterval
from millwheel.worker.process.peers import PeerConnection
from millwheel.worker.process.refused_batches import RefusedBatches
from millwheel.worker.process.removed_consumers import RemovedConsumers

__all__ = ["CatalogRouting", "DeliverySender", "HostChannel"]

log = logging.getLogger("millwheel.worker")

_NOTHING: Final[tuple[list[bytes], list[tuple[bytes | None, str]]]] = ([], [])

Route = Callable[[Any], tuple[tuple[IncarnationId, bytes], ...]]
Extractor = Callable[[Any], bytes]


class CatalogRouting:
    """Routes by the present catalog. Call ``refresh`` after each change."""

    def __init__(self, catalog: Catalog, extractor_of: Callable[[Consumer, str], Extractor]) -> None:
        self._catalog = catalog
        self._extractor_of = extractor_of
        self._bindings: list[tuple[str, OutputBinding]] = []
        self._of_tables: set[int] = set()
        """The ids of the bindings whose producers may produce columns."""
        self._located: dict[IncarnationId, tuple[list[bytes], list[tuple[bytes | None, str]]]] = {}
        """By consumer: the first keys of intervals that were looked up, and their ends and journals."""
        self._located_shape = -1
        """The catalog's ``shape_version`` for which ``_located`` is valid."""

    def bind(
        self,
        stream: str,
        encode: Callable[[Any], bytes],
        encode_all: Callable[[Sequence[Any]], list[bytes]] | None = None,
        *,
        tables: bool = False,
    ) -> OutputBinding:
        """A binding for one producer of ``stream``. It is kept up to date until ``release``.

        ``tables``: whether the producer may produce columns.
        """
        binding = OutputBinding(stream, encode, *self._route(stream), encode_all)
        if tables:
            binding.key_columns = self._key_columns(stream)
            self._of_tables.add(id(binding))
        self._bindings.append((stream, binding))
        return binding

    def release(self, bindings: list[OutputBinding]) -> None:
        """These bindings are not used any more."""
        gone = {id(binding) for binding in bindings}
        self._of_tables -= gone
        self._bindings = [(stream, one) for stream, one in self._bindings if id(one) not in gone]

    def refresh(self) -> None:
        """The catalog has changed: update the consumers."""
        routes: dict[str, tuple[Route, RouteOfAll]] = {}
        for stream, binding in self._bindings:
            if stream not in routes:
                routes[stream] = self._route(stream)
            binding.route, binding.route_all = routes[stream]
            if id(binding) in self._of_tables:
                binding.key_columns = self._key_columns(stream)

    def locate(self, consumer: IncarnationId, key: bytes) -> str:
        """The journal of the interval of ``consumer`` with ``key``. Empty while there is none."""
        if self._located_shape != self._catalog.shape_version:
            self._located_shape = self._catalog.shape_version
            self._located.clear()
        starts, found = self._located.get(consumer, _NOTHING)
        if index := bisect_right(starts, key):
            end, journal = found[index - 1]
            if end is None or key < end:
                return journal
        return self._look_up(consumer, key)

    def _look_up(self, consumer: IncarnationId, key: bytes) -> str:
        """Find the interval in the catalog, which reads several messages, and remember it."""
        interval = self._catalog.locate(IncarnationId(consumer), key)
        if interval is None:
            return ""
        keys = interval_from_proto(interval.keys)
        starts, found = self._located.setdefault(consumer, ([], []))
        index = bisect_right(starts, keys.start)
        starts.insert(index, keys.start)
        found.insert(index, (keys.end, interval.journal))
        return interval.journal

    def _key_columns(self, stream: str) -> KeyColumns | None:
        """The consumers of records that are columns. None: one has keys by code, or the format has no columns."""
        if self._catalog.format < RESULT_COLUMNS:
            return None
        found: list[tuple[IncarnationId, KeySource]] = []
        for one in self._catalog.consumers(stream):
            key = b"" if one.log else key_source(one.key)
            if key is None:
                return None
            found.append((one.incarnation, key))
        return tuple(found)

    def _route(self, stream: str) -> tuple[Route, RouteOfAll]:
        """A function from a value to its (consumer, key) pairs, and one for many values."""
        consumers = self._catalog.consumers(stream)
        extractors = [(one, self._extractor_of(one, stream)) for one in consumers if not one.log]
        keyed = [(one.incarnation, _named(stream, one, extract)) for one, extract in extractors]
        fixed = tuple((one.incarnation, b"") for one in consumers if one.log)
        # Where one of many fails, each goes by itself, and the error names the consumer.
        of_all = route_of_all([(one.incarnation, extract) for one, extract in extractors], fixed)
        if not keyed:
            return FixedRoute(fixed), of_all
        if len(keyed) == 1 and not fixed:
            incarnation, extract = keyed[0]
            return lambda value: ((incarnation, extract(value)),), of_all
        return lambda value: (*((incarnation, extract(value)) for incarnation, extract in keyed), *fixed), of_all


def _named(stream: str, consumer: Consumer, extract: Extractor) -> Extractor:
    """The consumer's extractor. Its exceptions are converted so that they name the consumer."""
    other_topology = "" if consumer.topology == owner_of(stream) else consumer.topology

    def extract_key(value: Any) -> bytes:
        try:
            return extract(value)
        except KeyExtractionError as error:
            error.other_topology = other_topology
            raise
        except Exception as error:
            named = KeyExtractionError(
                f"the key extractor of computation {consumer.computation!r} for stream {stream!r} raised "
                f"{error_message(error)}",
                computation=consumer.computation,
            )
            named.other_topology = other_topology
            raise named from error

    return extract_key


class SendingInterval(RunningInterval, Protocol):
    """An interval with a channel for the answers to its batches."""

    channel: HostChannel


class DeliverySender:
    """Sends the batches of one process's intervals to the owners that the catalog names."""

    def __init__(
        self,
        coordinator: Coordinator,
        catalog: Catalog,
        hosted: Mapping[str, SendingInterval],
        address: str,
        background: Callable[[Coroutine[Any, Any, None]], None],
        after_sync: Callable[[Callable[[], None]], None] = lambda call: call(),
    ) -> None:
        """
        Args:
            coordinator: For linearizable reads of removed consumers.
            catalog: The present owners.
            hosted: The intervals in this process, by journal.
            address: This process's address.
            background: Runs a coroutine in the background.
            after_sync: Runs a call when the commits of this process so far are on the disk.
        """
        self._after_sync = after_sync
        self._catalog = catalog
        self._hosted = hosted
        self._address = address
        self._background = background
        self._removed = RemovedConsumers(coordinator, catalog)
        self.peers: dict[str, PeerConnection] = {}

    def refresh(self) -> None:
        """The catalog has changed."""
        self._removed.refresh()

    def send(self, host: CoreHost, send: SendDelivery) -> None:
        """Send a batch to its owner, in this process or another. A batch that cannot be sent now is sent later."""
        delivery = send.delivery
        sender = self._hosted.get(host.journal)
        if sender is None or sender.host is not host:
            return
        if (delivery.consumer, delivery.stream) not in self._removed.known:
            self._background(self._discard(host, sender.channel, delivery))
            return
        local = self._hosted.get(delivery.journal)
        if local is not None:
            delivery.channel = sender.channel
            local.host.post(delivery)
            return
        self._after_sync(partial(self._leaves, host, delivery))

    def _leaves(self, host: CoreHost, delivery: Delivery) -> None:
        """Send a batch to another process. All that it depends on is on the disk.

        Invariant (G8): each batch is answered, or sent again later. Who could break it: a connection that is looked up
        before the sync. It may be closed meanwhile (:meth:`close_unused`), and a closed one answers nothing.
        """
        sender = self._hosted.get(host.journal)
        if sender is None or sender.host is not host:
            return
        address = self._address_of(delivery.consumer, delivery.journal)
        if not address:
            sender.channel.later(delivery.token)
            return
        peer = self.peers.get(address)
        if peer is None:
            peer = self.peers[address] = PeerConnection(address, open_channel)
        peer.send(delivery, sender.channel)

    async def _discard(self, host: CoreHost, channel: HostChannel, delivery: Delivery) -> None:
        """Discard a batch for a removed consumer. If the removal is not certain, try again later."""
        try:
            gone = await self._removed.is_gone(delivery.consumer, delivery.stream)
        except CoordinatorError:
            gone = False
        if gone:
            host.post(Acknowledged(delivery.token))
        else:
            channel.later(delivery.token)

    def _address_of(self, consumer: IncarnationId, journal: str) -> str:
        interval_map = self._catalog.maps.get(IncarnationId(consumer))
        interval = interval_map.of_journal(journal) if interval_map is not None else None
        address = interval.owner.address if interval is not None else ""
        return "" if address == self._address else address

    async def close_unused(self) -> None:
        """Close the connections to workers that own nothing any more."""
        owners = {address for interval_map in self._catalog.maps.values() for address in interval_map.addresses()}
        for address in self.peers.keys() - owners:
            await self.peers.pop(address).close()

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(peer.close() for peer in self.peers.values()))


class HostChannel:
    """All receivers' answers to one host's batches. ACKs are posted at once. Refused batches are sent again later."""

    is_local: Final = True
    """Whether the answers of an interval of this process stay in this process."""

    def __init__(self, host: CoreHost) -> None:
        self._host = host
        self.refused = refused = RefusedBatches(host)
        self.later = refused.later

    def reply(self, token: int, outcome: DeliveryOutcome.ValueType, indexes: Sequence[int], message: str) -> None:
        """The receiver's answer for the batch ``token``."""
        kind = answer_kind(outcome)
        if kind is AnswerKind.ACKED:
            self.refused.acked()
            self._host.post(Acknowledged(token, indexes))
        elif kind is AnswerKind.SUPERSEDED:
            self._host.post(Refused(token, f"a receiver refused the sequencer: {message}"))
        else:
            if kind is AnswerKind.INVALID:
                log.warning(
                    "journal %s: a batch was refused as invalid, and is sent again: %s", self._host.journal, message
                )
            full = kind is AnswerKind.FULL
            moved = kind is AnswerKind.REFUSED
            self.later(token, message, indexes if full else (), full=full and not indexes, moved=moved)
