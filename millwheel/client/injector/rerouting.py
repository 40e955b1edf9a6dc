"""Moves un-ACKed records to the queues of a new routing, or of keys that are found later (4.2, 5.2, 7.1). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.client.injector.ids import IdKind, IdScope
from millwheel.client.injector.messages import KeyedRecords, KeysFound
from millwheel.client.injector.outbound_queue import InjectedBatch, OutboundQueue
from millwheel.client.injector.resend_policy import ResendingQueues
from millwheel.client.injector.routing import ConsumerRouting, StreamRouting
from millwheel.client.injector.unkeyed import UnkeyedRecords, WaitingRecord
from millwheel.model.incarnation import IncarnationId

__all__ = ["Rerouting"]


class Rerouting:
    """Moves un-ACKed records: from queues of former intervals, and from ``unkeyed`` when their keys are found.

    A consumer that joins gets only records that are accepted from then on. A consumer that left gets nothing more, and
    its un-ACKed records are discarded. Discarding is safe only if a remaining consumer was also sent those records.
    """

    def __init__(self, outbound: ResendingQueues, unkeyed: UnkeyedRecords) -> None:
        self._outbound = outbound
        self._unkeyed = unkeyed
        self._came_at: dict[IncarnationId, int] = {}
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
        for queue in self._outbound.queues():
            if queue.consumer not in routing.consumers and any(one.first < alone for one in queue.all_batches()):
                return queue.consumer
        for name in self._unkeyed.consumers().keys() - routing.consumers.keys():
            number = self._unkeyed.first_number(name)
            if number is not None and number < alone:
                return name
        return None

    def reroute(self, routing: StreamRouting, accepted: int, now: int) -> dict[OutboundQueue, None]:
        """Give each queue its new route, and discard the records of consumers that left.

        The records of intervals that were split or merged get other queues. Returns all queues that remain.
        """
        self._came_at = {name: self._came_at.get(name, accepted) for name in routing.consumers}
        for name in self._unkeyed.consumers().keys() - routing.consumers.keys():
            self._unkeyed.forget(name)
        queues: dict[OutboundQueue, None] = {}
        moved: dict[tuple[IncarnationId, IdScope], list[InjectedBatch]] = {}
        for queue in self._outbound.queues():
            consumer = routing.consumers.get(queue.consumer)
            route = None if consumer is None else consumer.by_journal().get(queue.route.journal)
            if route is None:
                if consumer is not None:
                    moved.setdefault((queue.consumer, queue.scope), []).extend(queue.all_batches())
                self._outbound.remove(queue)
                continue
            if (route.address, route.tenure) != (queue.route.address, queue.route.tenure):
                self._outbound.recall(queue)
            queue.route = route
            queues[queue] = None
        for (name, scope), batches in moved.items():
            queues |= self._redistribute(routing.consumers[name], scope, batches, now)
        return queues

    def _redistribute(
        self, consumer: ConsumerRouting, scope: IdScope, batches: list[InjectedBatch], now: int
    ) -> dict[OutboundQueue, None]:
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
        first = min(one.first for one in batches)
        # By its oldest record, as that of any batch. After a merge, records of one time are few, and stand apart.
        since = min(one.since for one in batches if one.indexes())
        accepted = since, max(one.latest for one in batches)
        ids, keys, values, timestamps = (list(column) for column in zip(*rows, strict=True))
        return self._outbound.distribute(
            consumer, KeyedRecords(values, timestamps, {}, scope, ids), keys, first, now, accepted
        )

    def accept_unkeyed(
        self, consumer: ConsumerRouting, columns: KeyedRecords, keys: Sequence[bytes], first: int, now: int
    ) -> dict[OutboundQueue, None]:
        """Accept records of which some wait for their keys, or behind such records. Returns the others' queues.

        ``keys``: the known keys, those of the first records. ``first``: the number of the first record.
        """
        name, scope, queues = consumer.incarnation, columns.scope, dict[OutboundQueue, None]()
        start = 0 if self._unkeyed.blocked(name, scope) else len(keys)
        if start:
            part = slice(start)
            keyed = KeyedRecords(columns.values[part], columns.timestamps[part], {}, scope, columns.ids[part])
            queues = self._outbound.distribute(consumer, keyed, keys, first, now)
        rows = enumerate(zip(columns.ids, columns.values, columns.timestamps, strict=True))
        waiting = [
            WaitingRecord(first + at, id_, value, timestamp, keys[at] if at < len(keys) else None)
            for at, (id_, value, timestamp) in rows
            if at >= start
        ]
        self._unkeyed.hold(name, scope, waiting, columns.unkeyed.get(name, ""))
        return queues

    def find_keys(self, event: KeysFound, routing: StreamRouting | None, now: int) -> dict[OutboundQueue, None]:
        """Append the first records of the event's head to the queues of its keys. Returns those queues."""
        head, keys = event.head, event.keys
        consumer = None if routing is None else routing.consumers.get(head.consumer)
        if consumer is None or not self._unkeyed.is_current(head):
            return {}
        queues: dict[OutboundQueue, None] = {}
        if keys:
            taken = self._unkeyed.release(head.consumer, head.scope, len(keys))
            values, timestamps = [row.value for row in taken], [row.timestamp for row in taken]
            columns = KeyedRecords(values, timestamps, {}, head.scope, [row.id for row in taken])
            queues = self._outbound.distribute(consumer, columns, keys, taken[0].number, now)
        if len(keys) < len(head.records):
            self._unkeyed.explain(head.consumer, head.scope, event.why)
        return queues
