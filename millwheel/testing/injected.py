"""Injected records without an ACK: the memory of the harness's injectors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from millwheel.model.incarnation import IncarnationId, injector_group
from millwheel.worker.dedup import OpaqueIds, PositionIds, Sender
from millwheel.worker.messages import Delivery

__all__ = ["InjectedBatches", "injector_group"]


class InjectedBatches:
    """Batches without an ACK, by journal and token.

    They are sent again after a crash. They also hold the injector's watermark.
    """

    def __init__(self) -> None:
        self._unacked: dict[tuple[str, int], Delivery] = {}
        self._parted: dict[tuple[str, int], set[int]] = {}
        """For partly refused batches: the indexes of the records that were moved to separate batches."""
        self._tokens = itertools.count(1)
        """The numbers of batches. Invariant: no two batches for one journal have the same one, of whichever streams."""
        self._positions: dict[str, int] = {}

    def __iter__(self) -> Iterator[Delivery]:
        return iter(list(self._unacked.values()))

    def next_position(self, stream: str) -> int:
        """A new number for a record. No other record of the stream has the same one."""
        position = self._positions[stream] = self._positions.get(stream, 0) + 1
        return position

    def open(
        self, consumer: IncarnationId, journal: str, stream: str, position: int, watermark: int, opaque: bool
    ) -> Delivery:
        """An empty batch, whose records begin at ``position``."""
        unacked = [one.ids for (to, _), one in self._unacked.items() if to == journal and one.stream == stream]
        pending = [min(ids.positions) for ids in unacked if isinstance(ids, PositionIds)]
        origin = f"{injector_group(stream)}/test"
        ids = OpaqueIds([]) if opaque else PositionIds(origin, min(pending, default=position), [])
        sender = Sender(origin, 1, None, injector_group(stream), watermark)
        return Delivery(consumer, journal, stream, sender, ids, [], [], [], next(self._tokens), None)

    def keep(self, delivery: Delivery) -> Delivery:
        """Keep a batch until its ACK. Returns the copy to send."""
        self._unacked[delivery.journal, delivery.token] = delivery
        return replace(delivery)

    def acked(self, journal: str, token: int, remaining: Sequence[int]) -> bool:
        """Handle an ACK for all records of a batch except ``remaining``. Returns whether the batch is complete."""
        place = journal, token
        if not self._parted.get(place, set()).issuperset(remaining):
            return False
        self._unacked.pop(place, None)
        self._parted.pop(place, None)
        return True

    def refused(self, journal: str, token: int, indexes: Sequence[int]) -> Delivery:
        """The records to send again. If only a part of a batch was refused, that part becomes a separate batch."""
        delivery = self._unacked[journal, token]
        if 0 < len(indexes) < len(delivery.keys):
            rest = [index for index in range(len(delivery.keys)) if index not in indexes]
            self._unacked[journal, token] = _part(delivery, rest, token)
            self._parted.setdefault((journal, token), set()).update(indexes)
            delivery = _part(delivery, indexes, next(self._tokens))
            self._unacked[journal, delivery.token] = delivery
        return replace(delivery)

    def all_again(self) -> list[Delivery]:
        """All batches, to send them again. Their answers were lost."""
        self._parted.clear()
        return [replace(delivery) for delivery in self._unacked.values()]

    def discard(self, consumer: IncarnationId) -> set[str]:
        """Discard the batches for a consumer. Returns the streams that had such batches."""
        gone = {place: one.stream for place, one in self._unacked.items() if one.consumer == consumer}
        for place in gone:
            del self._unacked[place]
        return set(gone.values())

    def oldest(self, stream: str) -> int | None:
        """The smallest timestamp of the stream's records without an ACK."""
        return min((min(one.timestamps) for one in self._unacked.values() if one.stream == stream), default=None)


def _part(delivery: Delivery, indexes: Sequence[int], token: int) -> Delivery:
    """A delivery with only some of the records."""
    ids, columns = delivery.ids, (delivery.keys, delivery.values, delivery.timestamps)
    if isinstance(ids, PositionIds):
        ids = PositionIds(ids.sequence, ids.mark, [ids.positions[index] for index in indexes])
    elif isinstance(ids, OpaqueIds):
        ids = OpaqueIds([ids.ids[index] for index in indexes])
    picked: Any = ([column[index] for index in indexes] for column in columns)
    keys, values, timestamps = picked
    return replace(delivery, ids=ids, keys=keys, values=values, timestamps=timestamps, token=token)
