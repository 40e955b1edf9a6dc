"""Shipments: productions on their way to one journal, as columns (sections 6.1.1, 6.1.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from millwheel.worker.interval.flows import Flow

__all__ = ["INDEX_BITS", "Shipment"]

INDEX_BITS: Final = 24
"""A production's position is commit << INDEX_BITS | index. A commit has room for 2^24 productions: MAX_PRODUCTIONS of
one key, and what batch_bytes lets other keys make. There are 2^39 commits: 17 years at a thousand a second."""

_SHIPMENT_RECORDS: Final = 8_192
_SHIPMENT_BYTES: Final = 1 << 20
"""A shipment takes no more records once it has so many, or so many bytes: one goes into a message (at most 2 MiB)."""


class Shipment:
    """Records of one stream for one interval of one consumer; ``waiting`` None: none of them is ACKed.

    ``token`` is the number of its sending. Each time that it is sent again it gets another.
    """

    __slots__ = (
        "after",
        "age",
        "awaited",
        "bytes",
        "committed",
        "consumer",
        "first",
        "flow",
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
        "used",
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
        """Whether it was sent, and neither refused nor lost since."""
        self.used = False
        """Whether it was ever sent under its present token."""
        self.after = 0
        """The number of the sending that the receiver must have taken before this one; 0: none."""
        self.committed = True
        """Whether it may be sent. A strong production may not before its commit is in the journal."""
        self.awaited: set[int] | None = None
        """The tokens whose ACKs its weak commit waits for, its own among them."""
        self.age = 0
        """How old its sequence is: parents' come before their children's."""
        self.flow: Flow

    def indexes(self) -> Iterable[int]:
        """The records that are not ACKed."""
        return range(len(self.keys)) if self.waiting is None else sorted(self.waiting)

    def count(self) -> int:
        """How many records are not ACKed."""
        return len(self.keys) if self.waiting is None else len(self.waiting)

    def room(self) -> bool:
        """Whether it may take another record."""
        return len(self.keys) < _SHIPMENT_RECORDS and self.bytes < _SHIPMENT_BYTES

    def compact(self) -> None:
        """Keep the records that are not ACKed alone. In other lists: a delivery of its last sending has these."""
        if self.waiting is None:
            return
        kept = sorted(self.waiting)
        self.keys = [self.keys[index] for index in kept]
        self.values = [self.values[index] for index in kept]
        self.timestamps = [self.timestamps[index] for index in kept]
        self.positions = [self.positions[index] for index in kept]
        self.producers = [self.producers[index] for index in kept]
        self.opaque = [self.opaque[index] for index in kept] if self.opaque else []
        self.waiting = None
        self.bytes = sum(map(len, self.values)) + sum(map(len, self.keys))

    def measure(self) -> None:
        """Find out anew what its records that are not ACKed hold back."""
        stamps, positions = self.timestamps, self.positions
        if self.waiting is None:
            self.held, self.first = min(stamps), positions[0]
        else:
            self.held = min(stamps[index] for index in self.waiting)
            self.first = positions[min(self.waiting)]
