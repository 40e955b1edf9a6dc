"""Un-ACKed records on their way to one interval (section 6.1.1). Pure.

A ``Lane`` is an outbound queue: the un-ACKed batches for one interval of one consumer, with ids of one scope.
A ``Flight`` is one delivery attempt of a batch. Un-ACKed records are sent again with the same ids and bytes, so a
batch may have several attempts in flight. An ACK counts for the record, whichever attempt it answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from millwheel.client.injector.ids import IdKind, IdScope
from millwheel.client.injector.routing import Route
from millwheel.model.outbound import OutboundBatch, OutboundSending

__all__ = ["Flight", "InjectedBatch", "Lane"]

_MAX_HOLES: Final = 64
"""The most un-ACKed positions that an ACK mark may pass. They are listed in every message."""


class InjectedBatch(OutboundBatch):
    """Records of one outbound queue.

    ``unsent``: the indexes of un-ACKed records that have to be sent, perhaps again; None means all. ``first``: a lower
    bound on the numbers of the batch's records in the order of acceptance.
    """

    __slots__ = ("first", "flights", "ids", "lane", "resume_at", "tries", "unsent")

    def __init__(self, lane: Lane, first: int) -> None:
        super().__init__()
        self.lane = lane
        self.first = first
        self.ids: list[Any] = []
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


class Flight(OutboundSending):
    """One delivery attempt of a batch. ``indexes``: the records that it sends, within the batch; None means all."""

    __slots__ = ("address", "batch", "indexes", "sent_at", "token")

    def __init__(self, token: int, batch: InjectedBatch, address: str, indexes: list[int] | None, sent_at: int) -> None:
        super().__init__(len(batch.keys) if indexes is None else len(indexes))
        self.token = token
        self.batch = batch
        self.address = address
        self.indexes = indexes
        self.sent_at = sent_at

    def resolve(self, answered: Collection[int]) -> Collection[int]:
        """Convert indexes within the attempt to indexes within the batch."""
        sent = self.indexes
        return answered if sent is None else [sent[index] for index in answered]

    def open(self) -> set[int]:
        """The records without an answer, as indexes within the batch."""
        return set(self.resolve(self.unanswered()))


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
        self.batches: dict[InjectedBatch, None] = {}
        self.filling: InjectedBatch | None = None
        self.queue: dict[InjectedBatch, None] = {}
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

    def all_batches(self) -> Iterator[InjectedBatch]:
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
