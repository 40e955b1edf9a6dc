"""A sender of weak productions: ids made of their causes, sent before the input commits, by owners and by zombies."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from millwheel.model.keys import ALL_KEYS
from millwheel.worker.dedup import OpaqueIds, Sender
from tests.dedup.world import Copy, Receivers, Record

COMPUTATION = "weak.1"


@dataclass(frozen=True)
class Input:
    """A record of the stream upstream, and the keys that its productions go to."""

    number: int
    timestamp: int
    outputs: tuple[bytes, ...]
    stamp: int
    """The watermark that upstream had reported when it sent it."""

    def productions(self) -> list[Record]:
        """The hook depends on its input alone (G10)."""
        return [Record((self.number, index), key, self.timestamp + index) for index, key in enumerate(self.outputs)]


def opaque_id(record: Record) -> bytes:
    return hashlib.blake2b(repr(record.identity).encode(), digest_size=16).digest()


@dataclass
class Upstream:
    """Sends inputs until they are ACKed, and says how far it is."""

    watermark: int = 0
    unacked: dict[int, Input] = field(default_factory=dict)
    all: list[Input] = field(default_factory=list)

    def send(self, timestamp: int, outputs: tuple[bytes, ...]) -> None:
        """A timestamp below the watermark makes a late record."""
        item = Input(len(self.all), timestamp, outputs, self.watermark)
        self.all.append(item)
        self.unacked[item.number] = item

    def advance(self, to: int) -> None:
        """Up to the oldest un-ACKed record; not at all while that is late."""
        self.watermark = max(self.watermark, min([to, *(item.timestamp for item in self.unacked.values())]))


class Owner:
    """A process that runs inputs: their productions go out at once, and it commits what has been ACKed wholly."""

    def __init__(self, number: int, reported: int) -> None:
        self.number = number
        self.reported = reported
        self.heard = 0
        self.running: dict[int, tuple[Input, dict[Record, None]]] = {}

    def run(self, item: Input) -> None:
        self.heard = max(self.heard, item.stamp)
        self.running.setdefault(item.number, (item, dict.fromkeys(item.productions())))

    def report(self, input_watermark: int) -> int:
        """The output watermark: not past what is received and not committed, and never back."""
        received = [item.timestamp for item, _ in self.running.values()]
        self.reported = max(self.reported, min([input_watermark, *received]))
        return self.reported

    def outbox(self) -> list[Record]:
        return [record for _, unacked in self.running.values() for record in unacked]

    def copies(self, records: list[Record], receivers: Receivers) -> list[Copy]:
        """One delivery for each receiver concerned."""
        found = []
        for receiver in receivers.all:
            due = [record for record in records if record.key in receiver.interval]
            if due:
                sender = Sender("weak.1.j1", self.number, ALL_KEYS, COMPUTATION, self.reported, self.heard)
                found.append(Copy(receiver.journal, OpaqueIds([opaque_id(r) for r in due]), due, sender, self._acked))
        return found

    def _acked(self, record: Record) -> None:
        if record.identity[0] in self.running:
            self.running[record.identity[0]][1].pop(record, None)

    def committable(self) -> list[int]:
        return [number for number, (_, unacked) in self.running.items() if not unacked]
