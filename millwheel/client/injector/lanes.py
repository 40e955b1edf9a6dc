"""Un-ACKed records on their way to one interval (section 6.1.1). Pure.

A ``Lane`` is an outbound queue: the un-ACKed batches for one interval of one consumer, with ids of one scope.
A ``Flight`` is one delivery attempt of a batch. Un-ACKed records are sent again with the same ids and bytes, so a
batch may have several attempts in flight. An ACK counts for the record, whichever attempt it answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from millwheel.client.injector.ids import IdKind, IdScope
from millwheel.client.injector.routing import Route

__all__ = ["Flight", "Lane", "OutboundBatch"]

_MAX_HOLES: Final = 64
"""The most un-ACKed positions that an ACK mark may pass. They are listed in every message."""


class OutboundBatch:
    """Records of one outbound queue, as columns.

    ``waiting``: the indexes of un-ACKed records; None means all. ``unsent``: the indexes among them that have to be
    sent, perhaps again; None means all. ``held``: the least timestamp of the un-ACKed records, in microseconds.
    ``first``: a lower bound on the numbers of the batch's records in the order of acceptance.
    """

    __slots__ = (
        "bytes",
        "first",
        "flights",
        "held",
        "ids",
        "keys",
        "lane",
        "resume_at",
        "timestamps",
        "tries",
        "unsent",
        "values",
        "waiting",
    )

    def __init__(self, lane: Lane, first: int) -> None:
        self.lane = lane
        self.first = first
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self.timestamps: list[int] = []
        self.ids: list[Any] = []
        self.bytes = 0
        self.held = 0
        self.waiting: set[int] | None = None
        self.unsent: set[int] | None = None
        self.flights: list[Flight] = []
        self.tries = 0
        self.resume_at = 0

    def extend(
        self, keys: Sequence[bytes], values: Sequence[bytes], timestamps: Sequence[int], ids: Sequence[Any], size: int
    ) -> None:
        """Append records whose values have ``size`` bytes in total. Allowed only before the batch is sealed."""
        oldest = min(timestamps)
        self.held = min(self.held, oldest) if self.keys else oldest
        self.keys += keys
        self.values += values
        self.timestamps += timestamps
        self.ids += ids
        self.bytes += size

    def count(self) -> int:
        """How many records are un-ACKed."""
        return len(self.keys) if self.waiting is None else len(self.waiting)

    def indexes(self) -> Sequence[int]:
        """The indexes of the un-ACKed records, in order."""
        return range(len(self.keys)) if self.waiting is None else sorted(self.waiting)

    def require(self, indexes: set[int]) -> None:
        """Mark these records as unsent, except those that are ACKed."""
        if self.waiting is not None:
            indexes = indexes & self.waiting
        self.unsent = None if self.unsent is None or len(indexes) == len(self.keys) else self.unsent | indexes

    def take_unsent(self) -> list[int] | None:
        """Return the indexes of the unsent records, and mark all records as sent. None means the complete batch."""
        unsent, self.unsent = self.unsent, set()
        if unsent is None:
            return None if self.waiting is None else sorted(self.waiting)
        return sorted(unsent if self.waiting is None else unsent & self.waiting)


class Flight:
    """One delivery attempt of a batch.

    ``indexes``: the records that it sends, as indexes within the batch; None means all. ``open``: those of them
    without an answer.
    """

    __slots__ = ("address", "batch", "indexes", "open", "sent_at", "token")

    def __init__(self, token: int, batch: OutboundBatch, address: str, indexes: list[int] | None, sent_at: int) -> None:
        self.token = token
        self.batch = batch
        self.address = address
        self.indexes = indexes
        self.sent_at = sent_at
        self.open = set(range(len(batch.keys)) if indexes is None else indexes)

    def resolve(self, answered: Sequence[int]) -> set[int]:
        """Convert indexes within an answer to indexes within the batch. Indexes that were not sent are dropped."""
        sent = self.indexes
        if sent is None:
            return {index for index in answered if index < len(self.batch.keys)}
        return {sent[index] for index in answered if index < len(sent)}


class Lane:
    """The un-ACKed batches of one consumer, interval and scope: an outbound queue.

    Invariant: positions rise through ``batches`` and then ``filling``.
    Invariant: ``queue`` contains exactly the batches that have something to send.
    Invariant: ``flying`` is the number of attempts in flight.
    """

    __slots__ = (
        "batches",
        "cap",
        "consumer",
        "extra_at",
        "failures",
        "filling",
        "flying",
        "opened_at",
        "queue",
        "resume_at",
        "route",
        "scope",
    )

    def __init__(self, consumer: str, scope: IdScope, route: Route, cap: int) -> None:
        self.consumer = consumer
        self.scope = scope
        self.route = route
        self.batches: dict[OutboundBatch, None] = {}
        self.filling: OutboundBatch | None = None
        self.queue: dict[OutboundBatch, None] = {}
        self.flying = 0
        self.opened_at = 0
        self.cap = cap
        """The most attempts in flight. A refusal halves it. ACKs raise it."""
        self.failures = 0
        self.resume_at = 0
        """No batch is sent for the first time before this time, in microseconds."""
        self.extra_at = 0
        """When one attempt more than ``cap`` may start, in microseconds; 0 if unset.

        Without it, unanswered attempts would block the queue."""

    @property
    def empty(self) -> bool:
        """Whether every record is ACKed."""
        return not self.batches and self.filling is None

    def all_batches(self) -> Iterator[OutboundBatch]:
        """The sealed batches and then the one that is being filled: positions rise."""
        yield from self.batches
        if self.filling is not None:
            yield self.filling

    def first_position(self) -> int:
        """The least un-ACKed position. The scope must have positions, and the queue must not be empty."""
        batch = next(self.all_batches())
        position: int = batch.ids[batch.indexes()[0]]
        return position

    def mark(self) -> tuple[int, list[int]]:
        """The ACK mark of this interval and the positions below it that are un-ACKed.

        Every other position below the mark that goes to this interval is ACKed. The mark passes batches that are
        mostly ACKed, and lists the rest of them. Otherwise one blocked record would make receivers keep the ids of
        all records after it.
        """
        if self.scope.kind is not IdKind.POSITION:
            return 0, []
        listed: list[int] = []
        for batch in self.all_batches():
            waiting = batch.waiting
            if waiting is None or len(listed) + len(waiting) > _MAX_HOLES:
                return batch.ids[batch.indexes()[0]], listed
            listed += [batch.ids[index] for index in sorted(waiting)]
        return (listed[-1] + 1 if listed else 0), listed
