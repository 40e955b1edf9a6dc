"""The productions of one interval that their consumers have not ACKed (sections 6.1.1, 6.1.2).

Productions travel in *shipments*: columns of records of one commit, for one stream, consumer and
interval of it. A shipment is kept until every record of it is ACKed; whatever goes wrong on the way, it
is sent again with the same ids and the same bytes (G9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from millwheel.core.watermarks import MinTracker
from millwheel.worker.interval.entry import ProductionRow

__all__ = ["Outbox", "Shipment"]


class Shipment:
    """Records of one stream for one interval of one consumer; ``waiting`` None: none of them is ACKed."""

    __slots__ = (
        "consumer",
        "held",
        "journal",
        "keys",
        "opaque",
        "positions",
        "producers",
        "sent",
        "stream",
        "timestamps",
        "token",
        "values",
        "waiting",
    )

    def __init__(self, token: int, consumer: str, stream: str, journal: str) -> None:
        self.token = token
        self.consumer = consumer
        self.stream = stream
        self.journal = journal
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self.timestamps: list[int] = []
        self.positions: list[int] = []
        self.producers: list[bytes] = []
        self.opaque: list[bytes] = []
        self.waiting: set[int] | None = None
        self.held = 0
        self.sent = False

    def indexes(self) -> Iterable[int]:
        """The records that are not ACKed."""
        return range(len(self.keys)) if self.waiting is None else sorted(self.waiting)

    def count(self) -> int:
        """How many records are not ACKed."""
        return len(self.keys) if self.waiting is None else len(self.waiting)

    def first_position(self) -> int:
        """The least position that is not ACKed."""
        return self.positions[0] if self.waiting is None else self.positions[min(self.waiting)]


class Outbox:
    """All shipments that are not wholly ACKed.

    Invariants: ``pending`` holds the least timestamp of every shipment; positions rise within a
    shipment; ``mark(consumer)`` never exceeds the position of a record of that consumer that is not ACKed.
    """

    def __init__(self, locate: Callable[[str, bytes], str]) -> None:
        self._locate = locate
        self._next_token = 1
        self._shipments: dict[int, Shipment] = {}
        self._by_consumer: dict[str, dict[int, Shipment]] = {}
        self._unordered: set[str] = set()
        self.pending = MinTracker()
        self.records = 0

    def __iter__(self) -> Iterator[Shipment]:
        return iter(list(self._shipments.values()))

    def __len__(self) -> int:
        return len(self._shipments)

    def get(self, token: int) -> Shipment | None:
        """The shipment of that token, unless it is ACKed."""
        return self._shipments.get(token)

    def add(self, rows: Iterable[ProductionRow]) -> list[Shipment]:
        """Take productions in, in increasing positions; returns their shipments, not sent yet."""
        groups: dict[tuple[str, str, str], Shipment] = {}
        locate = self._locate
        for position, producer, stream, value, timestamp, targets, opaque in rows:
            for consumer, key in targets:
                group = (consumer, stream, locate(consumer, key))
                shipment = groups.get(group)
                if shipment is None:
                    shipment = groups[group] = Shipment(self._next_token, consumer, stream, group[2])
                    self._next_token += 1
                shipment.keys.append(key)
                shipment.values.append(value)
                shipment.timestamps.append(timestamp)
                shipment.positions.append(position)
                shipment.producers.append(producer)
                if opaque:
                    shipment.opaque.append(opaque)
        shipments = list(groups.values())
        for shipment in shipments:
            self._insert(shipment)
        return shipments

    def _insert(self, shipment: Shipment) -> None:
        shipment.held = min(shipment.timestamps)
        self._shipments[shipment.token] = shipment
        self._by_consumer.setdefault(shipment.consumer, {})[shipment.token] = shipment
        self.pending.add(shipment.held)
        self.records += len(shipment.keys)

    def acknowledged(self, token: int, remaining: Sequence[int]) -> Shipment | None:
        """All of the shipment but ``remaining`` is ACKed; returns the shipment if it was not known to be so before."""
        shipment = self._shipments.get(token)
        if shipment is None:
            return None
        if not remaining:
            self.records -= shipment.count()
            self._remove(shipment)
            shipment.waiting = set()
            return shipment
        before = shipment.count()
        keep = set(remaining)
        shipment.waiting = keep if shipment.waiting is None else shipment.waiting & keep
        self.records -= before - shipment.count()
        if not shipment.waiting:
            self._remove(shipment)
            return shipment
        self.pending.remove(shipment.held)
        shipment.held = min(shipment.timestamps[index] for index in shipment.waiting)
        self.pending.add(shipment.held)
        return shipment

    def _remove(self, shipment: Shipment) -> None:
        self.pending.remove(shipment.held)
        del self._shipments[shipment.token]
        siblings = self._by_consumer[shipment.consumer]
        del siblings[shipment.token]
        if not siblings:
            self._unordered.discard(shipment.consumer)

    def mark(self, consumer: str, otherwise: int) -> int:
        """Every record due to ``consumer`` below this position is ACKed; ``otherwise`` if nothing is pending."""
        shipments = self._by_consumer.get(consumer)
        if not shipments:
            return otherwise
        if consumer in self._unordered:
            return min(shipment.first_position() for shipment in shipments.values())
        return next(iter(shipments.values())).first_position()

    def rerouted(self, shipment: Shipment) -> list[Shipment]:
        """The shipment's records that are not ACKed, grouped anew by who owns their keys now.

        A shipment of which a part is ACKed goes under a new token, so that what receivers say of a
        token's indexes is always about the same records.
        """
        if shipment.waiting is None and all(
            self._locate(shipment.consumer, shipment.keys[i]) == shipment.journal for i in shipment.indexes()
        ):
            return [shipment]
        rows = list(self.rows_of(shipment))
        self.records -= shipment.count()
        self._remove(shipment)
        if self._by_consumer.get(shipment.consumer):
            # The new shipments stand behind younger ones.
            self._unordered.add(shipment.consumer)
        return self.add(rows)

    def drop_consumer(self, consumer: str) -> int:
        """The consumer is no more: its deliveries are discarded. Returns how many records went."""
        dropped = 0
        for shipment in list(self._by_consumer.get(consumer, {}).values()):
            dropped += shipment.count()
            self.records -= shipment.count()
            self._remove(shipment)
        return dropped

    @staticmethod
    def rows_of(shipment: Shipment) -> Iterator[ProductionRow]:
        """The shipment's records that are not ACKed, as a journal stores them."""
        for index in shipment.indexes():
            yield (
                shipment.positions[index],
                shipment.producers[index],
                shipment.stream,
                shipment.values[index],
                shipment.timestamps[index],
                ((shipment.consumer, shipment.keys[index]),),
                shipment.opaque[index] if shipment.opaque else b"",
            )

    def snapshot(self) -> list[ProductionRow]:
        """Every production that is not ACKed, by increasing position: a base part."""
        rows = [row for shipment in self._shipments.values() for row in self.rows_of(shipment)]
        rows.sort(key=lambda row: row[0])
        return rows
