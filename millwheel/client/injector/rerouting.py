"""What a new routing changes for an injector's un-ACKed records (sections 5.2, 7.1). Pure."""

from __future__ import annotations

from millwheel.client.injector.ids import IdKind, IdScope
from millwheel.client.injector.messages import Columns
from millwheel.client.injector.outbound import InjectedBatch, Lane
from millwheel.client.injector.resending import OutboundBatches
from millwheel.client.injector.routing import ConsumerRouting, StreamRouting
from millwheel.client.injector.unkeyed import UnkeyedRecords

__all__ = ["Rerouting"]


class Rerouting:
    """Sends un-ACKed records to the current owners of their keys.

    A consumer that joins gets only records that are accepted from then on. A consumer that left gets nothing more, and
    its un-ACKed records are discarded. Discarding is safe only if a remaining consumer was also sent those records.
    """

    def __init__(self, sending: OutboundBatches, unkeyed: UnkeyedRecords) -> None:
        self._sending = sending
        self._unkeyed = unkeyed
        self._came_at: dict[str, int] = {}
        """By consumer: how many records were accepted when it joined. Only later records are sent to it."""

    def left_behind(self, routing: StreamRouting, accepted: int) -> str | None:
        """Find a removed consumer whose un-ACKed records no remaining consumer was sent. None if there is none.

        A remaining consumer was sent a record only if it had joined before the record was accepted. Logs do not count
        as remaining consumers. While the stream drains, no consumer counts. The caller must fail in this case: neither
        a watermark nor an ACK may claim that such records were processed.

        Args:
            routing: The new routing.
            accepted: How many records were accepted so far.
        """
        staying = [name for name, one in routing.consumers.items() if name in self._came_at and not one.log]
        alone = accepted if routing.draining else min((self._came_at[name] for name in staying), default=accepted)
        for lane in self._sending.lanes():
            if lane.consumer not in routing.consumers and any(one.first < alone for one in lane.all_batches()):
                return lane.consumer
        for name in self._unkeyed.consumers().keys() - routing.consumers.keys():
            number = self._unkeyed.first_number(name)
            if number is not None and number < alone:
                return name
        return None

    def reroute(self, routing: StreamRouting, accepted: int, now: int) -> dict[Lane, None]:
        """Give each queue its new route, and discard the records of consumers that left.

        The records of intervals that were split or merged get other queues. Returns all queues that remain.
        """
        self._came_at = {name: self._came_at.get(name, accepted) for name in routing.consumers}
        for name in self._unkeyed.consumers().keys() - routing.consumers.keys():
            self._unkeyed.forget(name)
        lanes: dict[Lane, None] = {}
        homeless: dict[tuple[str, IdScope], list[InjectedBatch]] = {}
        for lane in self._sending.lanes():
            consumer = routing.consumers.get(lane.consumer)
            route = None if consumer is None else consumer.by_journal().get(lane.route.journal)
            if route is None:
                if consumer is not None:
                    homeless.setdefault((lane.consumer, lane.scope), []).extend(lane.all_batches())
                self._sending.remove(lane)
                continue
            if (route.address, route.tenure) != (lane.route.address, lane.route.tenure):
                self._sending.recall(lane)
            lane.route = route
            lanes[lane] = None
        for (name, scope), batches in homeless.items():
            lanes |= self._redistribute(routing.consumers[name], scope, batches, now)
        return lanes

    def _redistribute(
        self, consumer: ConsumerRouting, scope: IdScope, batches: list[InjectedBatch], now: int
    ) -> dict[Lane, None]:
        """Append the un-ACKed records of ``batches`` to the queues of their keys. Returns those queues.

        Invariant: positions rise.
        """
        rows = [
            (batch.ids[at], batch.keys[at], batch.values[at], batch.timestamps[at])
            for batch in batches
            for at in batch.indexes()
        ]
        if not rows:
            return {}
        if scope.kind is IdKind.POSITION:
            rows.sort(key=lambda row: row[0])
        ids, keys, values, timestamps = (list(column) for column in zip(*rows, strict=True))
        first = min(one.first for one in batches)
        return self._sending.distribute(consumer, Columns(values, timestamps, {}, scope, ids), keys, first, now)
