"""Outbound batches: productions for one journal, as columns (sections 6.1.1, 6.1.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millwheel.model.outbound import OutboundBatch

if TYPE_CHECKING:
    from millwheel.worker.interval.flows import Flow

__all__ = ["INDEX_BITS", "ProductionBatch"]

INDEX_BITS: Final = 24
"""A production's position is commit << INDEX_BITS | index.

A commit has room for 2^24 productions: MAX_PRODUCTIONS of one key, and those of other keys within batch_bytes. There
are 2^39 commit numbers: 17 years at a thousand per second.
"""

_MAX_BATCH_RECORDS: Final = 8_192
_MAX_BATCH_BYTES: Final = 1 << 20
"""An outbound batch takes no more records at this number or size. It fits into one message (at most 2 MiB)."""


class ProductionBatch(OutboundBatch):
    """An outbound batch of one stream. ``token`` is the number of the current sending. Each resend gets a new one."""

    __slots__ = (
        "after",
        "age",
        "awaited",
        "committed",
        "consumer",
        "first",
        "flow",
        "journal",
        "opaque",
        "positions",
        "producers",
        "sent",
        "sequence",
        "stream",
        "token",
        "used",
    )

    def __init__(self, token: int, consumer: str, stream: str, journal: str, sequence: str) -> None:
        super().__init__()
        self.token = token
        self.sequence = sequence
        """The parent's journal that numbered the records. Empty: the interval's own journal did."""
        self.consumer = consumer
        self.stream = stream
        self.journal = journal
        self.positions: list[int] = []
        self.producers: list[bytes] = []
        self.opaque: list[bytes] = []
        self.first = 0
        """The least position that is not ACKed."""
        self.sent = False
        """Whether the current sending is under way: sent, and neither refused nor lost since."""
        self.used = False
        """Whether it was ever sent under its current token."""
        self.after = 0
        """The number of the sending that the receiver must have accepted before this one. 0: none."""
        self.committed = True
        """Whether it may be sent. A strong production must be in the journal before."""
        self.awaited: set[int] | None = None
        """The tokens whose ACKs its weak commit waits for, with its own."""
        self.age = 0
        """The age of its sequence: a parent's sequence sorts before its children's."""
        self.flow: Flow

    def room(self) -> bool:
        """Whether another record fits."""
        return len(self.keys) < _MAX_BATCH_RECORDS and self.bytes < _MAX_BATCH_BYTES

    def compact(self) -> None:
        """Drop the records that are ACKed.

        The columns are new lists, because a delivery in flight uses the old ones.
        """
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
        """Compute the least timestamp and position of the records that are not ACKed."""
        super().measure()
        self.first = self.positions[0 if self.waiting is None else min(self.waiting)]
