"""The productions of one interval that their consumers have not ACKed (sections 6.1.1, 6.1.2).

Productions travel in *shipments*: columns of records of one sequence, for one stream, consumer and
interval of it. The sequence is the interval's own journal; productions that it inherits by a split or merge
keep the parent's, under which receivers know them. A shipment is kept until every record of it is ACKed;
whatever goes wrong on the way, it is sent again with the same ids and the same bytes (G9).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from millwheel.core.watermarks import MinTracker
from millwheel.worker.interval.entry import InheritedRow, ProductionRow
from millwheel.worker.messages import without

__all__ = ["Outbox", "Shipment"]

_SHIPMENT_RECORDS: Final = 8_192
_SHIPMENT_BYTES: Final = 1 << 20
"""A shipment takes no more records once it has so many, or so many bytes: one goes into a message (at most 2 MiB)."""

_STUCK: Final = 64
"""So many of a consumer's oldest records may be stuck, and not keep receivers from forgetting younger ids."""

_SIFTED: Final = 1_000
"""Shipments of a consumer that are gone through for those that are stuck."""


class Shipment:
    """Records of one stream for one interval of one consumer; ``waiting`` None: none of them is ACKed."""

    __slots__ = (
        "bytes",
        "consumer",
        "first",
        "held",
        "journal",
        "keys",
        "opaque",
        "positions",
        "producers",
        "sent",
        "sequence",
        "stream",
        "timestamps",
        "token",
        "values",
        "waiting",
    )

    def __init__(self, token: int, consumer: str, stream: str, journal: str, sequence: str) -> None:
        self.token = token
        self.sequence = sequence
        """The parent's journal that numbered its records; empty: the interval's own."""
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
        self.bytes = 0
        self.held = 0
        self.first = 0
        """The least position that is not ACKed."""
        self.sent = False

    def indexes(self) -> Iterable[int]:
        """The records that are not ACKed."""
        return range(len(self.keys)) if self.waiting is None else sorted(self.waiting)

    def count(self) -> int:
        """How many records are not ACKed."""
        return len(self.keys) if self.waiting is None else len(self.waiting)

    def room(self) -> bool:
        """Whether it may take another record."""
        return len(self.keys) < _SHIPMENT_RECORDS and self.bytes < _SHIPMENT_BYTES

    def measure(self) -> None:
        """Find out anew what its records that are not ACKed hold back."""
        stamps, positions = self.timestamps, self.positions
        if self.waiting is None:
            self.held, self.first = min(stamps), positions[0]
        else:
            self.held = min(stamps[index] for index in self.waiting)
            self.first = positions[min(self.waiting)]


class Outbox:
    """All shipments that are not wholly ACKed.

    Invariants: ``pending`` holds the least timestamp of every shipment; positions rise within a
    shipment; ``_firsts`` has the first position of every shipment by consumer, and possibly former ones;
    ``mark(consumer)`` never exceeds the position of a record of that consumer that is not ACKed. The last
    two are about the interval's own sequence: nothing is stated about a parent's, which siblings send too.
    """

    def __init__(self, locate: Callable[[str, bytes], str]) -> None:
        self._locate = locate
        self._next_token = 1
        self._shipments: dict[int, Shipment] = {}
        self._by_consumer: dict[str, dict[int, Shipment]] = {}
        """Those of the own sequence."""
        self._inherited: dict[int, Shipment] = {}
        """Those of parents' sequences."""
        self._firsts: dict[str, list[tuple[int, int]]] = {}
        self.pending = MinTracker()
        self.records = 0
        self.bytes = 0
        """Of the shipments' values, whole shipments counted until their last record is ACKed."""

    def __iter__(self) -> Iterator[Shipment]:
        return iter(self._shipments.values())

    def __len__(self) -> int:
        return len(self._shipments)

    @property
    def inherited(self) -> int:
        """How many shipments of parents' sequences are not ACKed."""
        return len(self._inherited)

    def get(self, token: int) -> Shipment | None:
        """The shipment of that token, unless it is ACKed."""
        return self._shipments.get(token)

    def add(self, rows: Iterable[ProductionRow], sequence: str = "") -> list[Shipment]:
        """Take productions of one sequence in, in increasing positions; returns their shipments, not sent yet."""
        groups: dict[tuple[str, str, str], Shipment] = {}
        first = self._next_token
        locate = self._locate
        for position, producer, stream, value, timestamp, targets, opaque in rows:
            for consumer, key in targets:
                group = (consumer, stream, locate(consumer, key))
                shipment = groups.get(group)
                if shipment is None or not shipment.room():
                    if shipment is not None:
                        self._insert(shipment)
                    shipment = groups[group] = Shipment(self._next_token, consumer, stream, group[2], sequence)
                    self._next_token += 1
                shipment.bytes += len(value) + len(key)
                shipment.keys.append(key)
                shipment.values.append(value)
                shipment.timestamps.append(timestamp)
                shipment.positions.append(position)
                shipment.producers.append(producer)
                if opaque:
                    shipment.opaque.append(opaque)
        for shipment in groups.values():
            self._insert(shipment)
        return [self._shipments[token] for token in range(first, self._next_token)]

    def _insert(self, shipment: Shipment) -> None:
        shipment.measure()
        self._shipments[shipment.token] = shipment
        if shipment.sequence:
            self._inherited[shipment.token] = shipment
        else:
            self._by_consumer.setdefault(shipment.consumer, {})[shipment.token] = shipment
            self._note_first(shipment)
        self.pending.add(shipment.held)
        self.records += len(shipment.keys)
        self.bytes += shipment.bytes

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
        self._measure_again(shipment)
        return shipment

    def _measure_again(self, shipment: Shipment) -> None:
        """Fewer of the shipment's records are waiting than before."""
        self.pending.remove(shipment.held)
        shipment.measure()
        self.pending.add(shipment.held)
        if not shipment.sequence:
            self._note_first(shipment)

    def _note_first(self, shipment: Shipment) -> None:
        shipments = self._by_consumer[shipment.consumer]
        firsts = self._firsts.setdefault(shipment.consumer, [])
        heapq.heappush(firsts, (shipment.first, shipment.token))
        if len(firsts) > 2 * len(shipments) + _STUCK:
            # The first may be stuck, with those that are gone behind it.
            firsts[:] = [(one.first, one.token) for one in shipments.values()]
            heapq.heapify(firsts)

    def _remove(self, shipment: Shipment) -> None:
        self.pending.remove(shipment.held)
        self.bytes -= shipment.bytes
        del self._shipments[shipment.token]
        if shipment.sequence:
            del self._inherited[shipment.token]
            return
        siblings = self._by_consumer[shipment.consumer]
        del siblings[shipment.token]
        if not siblings:
            del self._by_consumer[shipment.consumer], self._firsts[shipment.consumer]

    def mark(self, consumer: str, otherwise: int) -> int:
        """Every record due to ``consumer`` below this position is ACKed; ``otherwise`` if nothing is pending."""
        firsts = self._firsts.get(consumer)
        if firsts is None:
            return otherwise
        shipments = self._by_consumer[consumer]
        while True:
            position, token = firsts[0]
            shipment = shipments.get(token)
            if shipment is not None and shipment.first == position:
                return position
            heapq.heappop(firsts)

    def statement(self, consumer: str, otherwise: int, stuck_below: int) -> tuple[int, list[int]]:
        """A mark for ``consumer``, and the positions below it that are not ACKed all the same.

        There are none, unless the oldest shipments have been pending from before the position
        ``stuck_below``: a key that fails for ever would otherwise have all receivers remember every id since.
        """
        mark = self.mark(consumer, otherwise)
        if mark >= stuck_below or len(self._by_consumer[consumer]) > _SIFTED:
            return mark, []
        stuck: list[int] = []
        beyond = otherwise
        for shipment in self._by_consumer[consumer].values():
            if shipment.first >= stuck_below:
                beyond = min(beyond, shipment.first)
                continue
            if len(stuck) + shipment.count() > _STUCK:
                return mark, []
            stuck.extend(shipment.positions[index] for index in shipment.indexes())
        return beyond, sorted(position for position in stuck if position < beyond)

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
        return self.add(rows, shipment.sequence)

    def divided(self, shipment: Shipment, indexes: Iterable[int]) -> list[Shipment] | None:
        """The records of these indexes that are not ACKed, as shipments of their own by who owns their keys now.

        None if these are all that is left of the shipment: then it is not divided.
        """
        left = set(shipment.indexes())
        part = left.intersection(indexes)
        if part == left:
            return None
        if not part:
            return []
        rows = list(self.rows_of(shipment, sorted(part)))
        waiting = shipment.waiting = left - part
        # In other lists, for a delivery has these; and what an index means must stay.
        shipment.values, shipment.keys = without(shipment.values, waiting), without(shipment.keys, waiting)
        self.bytes -= shipment.bytes
        shipment.bytes = sum(map(len, shipment.values)) + sum(map(len, shipment.keys))
        self.bytes += shipment.bytes
        self.records -= len(part)
        self._measure_again(shipment)
        return self.add(rows, shipment.sequence)

    @staticmethod
    def rows_of(shipment: Shipment, indexes: Iterable[int] | None = None) -> Iterator[ProductionRow]:
        """The shipment's records that are not ACKed (those of ``indexes``), as a journal stores them."""
        for index in shipment.indexes() if indexes is None else indexes:
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
        """Every production of the own sequence that is not ACKed, by increasing position: a base part."""
        rows = [row for one in self._shipments.values() if not one.sequence for row in self.rows_of(one)]
        rows.sort(key=lambda row: row[0])
        return rows

    def inherited_snapshot(self) -> list[InheritedRow]:
        """Every production of a parent's sequence that is not ACKed, by sequence and increasing position."""
        rows = [(one.sequence, row) for one in self._inherited.values() for row in self.rows_of(one)]
        rows.sort(key=lambda row: (row[0], row[1][0]))
        return rows
