"""Records that wait for their keys at one consumer (sections 4.2, 6.1.1). Pure.

A record without a key has no interval to go to, so it waits here. Every later record of the same scope of ids that
goes to the same consumer waits behind it.

Invariant: records of one scope reach a consumer's intervals in their order. The reason is the ACK mark, which states
that every record below it is ACKed. The other consumers of the stream get the record at once.

Waiting records are un-ACKed. They count against the window and hold the published watermark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from millwheel.client.injector.ids import IdScope
from millwheel.model.incarnation import IncarnationId
from millwheel.model.watermarks import MinTracker

__all__ = ["UnkeyedHead", "UnkeyedRecords", "WaitingRecord", "WaitingSummary"]


class WaitingRecord(NamedTuple):
    """One record. ``number``: how many records the process accepted before it. ``key``: None if it is unknown."""

    number: int
    id: Any
    value: bytes
    timestamp: int
    key: bytes | None


@dataclass(frozen=True, slots=True)
class UnkeyedHead:
    """The first waiting records of one consumer and scope, whose keys are requested next."""

    consumer: IncarnationId
    scope: IdScope
    records: Sequence[WaitingRecord]


class WaitingSummary(NamedTuple):
    """The records that wait for one consumer: their least timestamp in microseconds, and the number of their queues."""

    oldest: int
    queues: int


class _Queue:
    __slots__ = ("records", "why")

    def __init__(self) -> None:
        self.records: deque[WaitingRecord] = deque()
        self.why = ""


class UnkeyedRecords:
    """Queues of waiting records, by consumer and scope. ``records`` and ``bytes`` count the waiting records.

    Invariant: no queue is empty. Within a queue numbers rise, and positions rise if the scope has positions.
    """

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self._queues: dict[tuple[IncarnationId, IdScope], _Queue] = {}
        self._held = MinTracker()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def blocked(self, consumer: IncarnationId, scope: IdScope) -> bool:
        """Whether records of ``scope`` wait for ``consumer``, so that later ones must also wait."""
        return (consumer, scope) in self._queues

    def is_current(self, head: UnkeyedHead) -> bool:
        """Whether the records of ``head`` are still the first of their queue."""
        queue = self._queues.get((head.consumer, head.scope))
        return queue is not None and queue.records[0].number == head.records[0].number

    def hold(self, consumer: IncarnationId, scope: IdScope, records: Sequence[WaitingRecord], why: str) -> None:
        """Append waiting records to their queue. ``why``: why the first has no key; used if the queue is new."""
        queue = self._queues.get((consumer, scope))
        if queue is None:
            queue = self._queues[consumer, scope] = _Queue()
            queue.why = why
        queue.records.extend(records)
        for record in records:
            self._held.add(record.timestamp)
            self.bytes += len(record.value)
        self.records += len(records)

    def explain(self, consumer: IncarnationId, scope: IdScope, why: str) -> None:
        """Set the reason why the first record of the queue has no key."""
        queue = self._queues.get((consumer, scope))
        if queue is not None:
            queue.why = why

    def release(self, consumer: IncarnationId, scope: IdScope, count: int) -> list[WaitingRecord]:
        """Remove and return the first ``count`` records of a queue."""
        queue = self._queues[consumer, scope]
        taken = [queue.records.popleft() for _ in range(count)]
        if not queue.records:
            del self._queues[consumer, scope]
        for record in taken:
            self._held.remove(record.timestamp)
            self.bytes -= len(record.value)
        self.records -= count
        return taken

    def forget(self, consumer: IncarnationId) -> None:
        """Remove all records that wait for ``consumer``, because it has left."""
        for name, scope in list(self._queues):
            if name == consumer:
                self.release(name, scope, len(self._queues[name, scope].records))

    def heads(self, most: int, consumer: IncarnationId | None = None) -> list[UnkeyedHead]:
        """The first ``most`` records of each queue. ``consumer``: only the queues of this consumer."""
        return [
            UnkeyedHead(name, scope, list(islice(queue.records, most)))
            for (name, scope), queue in self._queues.items()
            if consumer is None or name == consumer
        ]

    def consumers(self) -> dict[IncarnationId, tuple[int, str]]:
        """By consumer: how many records wait, and why the first of them has no key."""
        found: dict[IncarnationId, tuple[int, str]] = {}
        for (consumer, _), queue in self._queues.items():
            count, why = found.get(consumer, (0, queue.why))
            found[consumer] = count + len(queue.records), why
        return found

    def ids(self) -> Iterator[tuple[IdScope, list[Any]]]:
        """The ids of each queue's records, with the scope in which the ids are unique."""
        return ((scope, [record.id for record in queue.records]) for (_, scope), queue in self._queues.items())

    def timestamps(self) -> Iterator[int]:
        """The timestamp of each waiting record, in microseconds."""
        return (record.timestamp for queue in self._queues.values() for record in queue.records)

    def oldest_timestamp(self) -> int:
        """The least timestamp of a waiting record. MAX_TIMESTAMP if no record waits."""
        return self._held.min()

    def summary(self, consumer: IncarnationId) -> WaitingSummary:
        """Summarize the records that wait for ``consumer``. ValueError if none waits."""
        queues = [queue for (name, _), queue in self._queues.items() if name == consumer]
        return WaitingSummary(min(record.timestamp for queue in queues for record in queue.records), len(queues))

    def oldest_number(self) -> int:
        """The least number of a waiting record. At least one must wait."""
        return min(queue.records[0].number for queue in self._queues.values())

    def oldest_position(self, scope: IdScope, otherwise: int) -> int:
        """The least waiting position of ``scope``. ``otherwise`` if none waits."""
        found = (queue.records[0].id for (_, one), queue in self._queues.items() if one == scope)
        return min(found, default=otherwise)

    def first_number(self, consumer: IncarnationId) -> int | None:
        """The least number of a record that waits for ``consumer``. None if none waits."""
        numbers = [queue.records[0].number for (name, _), queue in self._queues.items() if name == consumer]
        return min(numbers, default=None)
