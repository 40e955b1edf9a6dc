"""Injected records until they are ACKed: what the injectors of a harness keep in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from millwheel.worker.dedup import OpaqueIds, PositionIds, Sender
from millwheel.worker.messages import Delivery

__all__ = ["InjectedBatches", "injector_of"]


def injector_of(stream: str) -> str:
    """The name under which a stream's injector has its low watermark."""
    return f"injector/{stream}"


class InjectedBatches:
    """Batches by journal and token. They are sent again after a crash, and hold their injector's watermark."""

    def __init__(self) -> None:
        self._unacked: dict[tuple[str, int], Delivery] = {}
        self._parted: dict[tuple[str, int], set[int]] = {}
        """Of batches that were refused in part: the indexes of records that are in batches of their own now."""
        self._parts = itertools.count(-1, -1)
        self._positions: dict[str, int] = {}

    def __iter__(self) -> Iterator[Delivery]:
        return iter(list(self._unacked.values()))

    def next_position(self, stream: str) -> int:
        """A number that no other record of the stream has."""
        position = self._positions[stream] = self._positions.get(stream, 0) + 1
        return position

    def open(self, consumer: str, journal: str, stream: str, position: int, watermark: int, opaque: bool) -> Delivery:
        """A batch to be filled, from ``position`` on."""
        unacked = [one.ids for (to, _), one in self._unacked.items() if to == journal and one.stream == stream]
        pending = [min(ids.positions) for ids in unacked if isinstance(ids, PositionIds)]
        origin = f"{injector_of(stream)}/test"
        ids = OpaqueIds([]) if opaque else PositionIds(origin, min(pending, default=position), [])
        sender = Sender(origin, 1, None, injector_of(stream), watermark)
        return Delivery(consumer, journal, stream, sender, ids, [], [], [], position, None)

    def keep(self, delivery: Delivery) -> Delivery:
        """Keep a batch until it is ACKed; returns the copy to send."""
        self._unacked[delivery.journal, delivery.token] = delivery
        return replace(delivery)

    def acked(self, journal: str, token: int, remaining: Sequence[int]) -> bool:
        """All of a batch but ``remaining`` is ACKed; whether it is done with."""
        place = journal, token
        if not self._parted.get(place, set()).issuperset(remaining):
            return False
        self._unacked.pop(place, None)
        self._parted.pop(place, None)
        return True

    def refused(self, journal: str, token: int, indexes: Sequence[int]) -> Delivery:
        """What to send again: the records that were refused, as a batch of their own if the rest was not."""
        delivery = self._unacked[journal, token]
        if 0 < len(indexes) < len(delivery.keys):
            rest = [index for index in range(len(delivery.keys)) if index not in indexes]
            self._unacked[journal, token] = _part(delivery, rest, token)
            self._parted.setdefault((journal, token), set()).update(indexes)
            delivery = _part(delivery, indexes, next(self._parts))
            self._unacked[journal, delivery.token] = delivery
        return replace(delivery)

    def all_again(self) -> list[Delivery]:
        """Every batch, to be sent again: answers that were on their way are lost."""
        self._parted.clear()
        return [replace(delivery) for delivery in self._unacked.values()]

    def discard(self, consumer: str) -> set[str]:
        """Discard what is due to a consumer; returns the streams of that."""
        gone = {place: one.stream for place, one in self._unacked.items() if one.consumer == consumer}
        for place in gone:
            del self._unacked[place]
        return set(gone.values())

    def oldest(self, stream: str) -> int | None:
        """The least timestamp of the stream's records that are not ACKed."""
        return min((min(one.timestamps) for one in self._unacked.values() if one.stream == stream), default=None)


def _part(delivery: Delivery, indexes: Sequence[int], token: int) -> Delivery:
    """Some records of a delivery."""
    ids, columns = delivery.ids, (delivery.keys, delivery.values, delivery.timestamps)
    if isinstance(ids, PositionIds):
        ids = PositionIds(ids.sequence, ids.mark, [ids.positions[index] for index in indexes])
    elif isinstance(ids, OpaqueIds):
        ids = OpaqueIds([ids.ids[index] for index in indexes])
    picked: Any = ([column[index] for index in indexes] for column in columns)
    keys, values, timestamps = picked
    return replace(delivery, ids=ids, keys=keys, values=values, timestamps=timestamps, token=token)
