"""One outbound queue of an injector: its un-ACKed batches, and the attempts to deliver them (section 6.1.1). Pure.

An ``OutboundQueue`` has the un-ACKed batches for one interval of one consumer, with ids of one scope. An
``InjectedAttempt`` is one attempt to deliver a batch. Un-ACKed records are sent again with the same ids and bytes, so a
batch may have several attempts in flight. An ACK counts for the record, whichever attempt it answers.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from millwheel.client.injector.column_division import DELIVERY_BYTES, DELIVERY_RECORDS
from millwheel.client.injector.ids import IdKind, IdScope
from millwheel.client.injector.routing import Route
from millwheel.model.deliveries import MAX_POSITION_SPAN
from millwheel.model.incarnation import IncarnationId
from millwheel.model.outbound import DeliveryAttempt, OutboundBatch
from millwheel.rpc.columns import RecordColumns, bytes_of, joined

__all__ = ["InjectedAttempt", "InjectedBatch", "OutboundQueue"]

_MAX_HOLES: Final = 64
"""The most un-ACKed positions that an ACK mark may pass. They are listed in every message."""


class InjectedBatch(OutboundBatch):
    """Records of one outbound queue.

    ``unsent``: the indexes of un-ACKed records that have to be sent, perhaps again; None means all. ``first``: a lower
    bound on the numbers of the batch's records in the order of acceptance. ``since`` and ``latest``: when the
    oldest and the newest one were accepted.

    ``gapless``: from this position to the batch's last one, the process has accepted a record at each position, and has
    put those for this interval into this batch.

    ``tables``: the columns of which it is made while it is filled. They are joined when it is sealed: until then
    ``keys`` and ``values`` are empty. A batch of single records has none.

    Invariant (G1): a joined batch has the records, times and ids of its tables, in their order.
    Invariant (G13): a batch of several tables has at most ``DELIVERY_RECORDS`` and ``DELIVERY_BYTES``.
    """

    __slots__ = (
        "copies", "first", "gapless", "ids", "latest", "open_attempts",
        "queue", "resume_at", "since", "tables", "tries", "unsent",
    )  # fmt: skip

    def __init__(self, queue: OutboundQueue, first: int, accepted: tuple[int, int]) -> None:
        super().__init__()
        self.queue = queue
        self.first = first
        self.since, self.latest = accepted
        self.ids: Any = []
        self.tables: list[RecordColumns] = []
        self.gapless = 0
        self.unsent: set[int] | None = None
        self.open_attempts: list[InjectedAttempt] = []
        self.tries = self.copies = 0
        """The attempts so far, and how many were sent because those in flight had no answer."""
        self.resume_at = 0
        """It is not sent before this time, in microseconds."""

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

    def takes(self, table: RecordColumns) -> bool:
        """Whether columns may be appended: the batch has such columns, and together they are one delivery at most."""
        if not self.tables:
            return False
        first = self.tables[0]
        fits = len(self.timestamps) + len(table) <= DELIVERY_RECORDS and self.bytes + bytes_of(table) <= DELIVERY_BYTES
        return fits and first.key == table.key and bool(first.batch.schema == table.batch.schema)

    def extend_columns(self, table: RecordColumns, ids: Sequence[Any]) -> None:
        """Append columns. Allowed only before the batch is sealed, if it is empty or takes them."""
        oldest, _ = table.extremes()
        if self.tables:
            self.held = min(self.held, oldest)
            if len(self.tables) == 1:
                self.timestamps = self.timestamps[:]  # those of the first table stay as they are
            self.timestamps.extend(table.timestamps)
            self.ids = _following(self.ids, ids)
        else:
            self.held, self.timestamps, self.ids = oldest, table.timestamps, ids
        self.tables.append(table)
        self.bytes += bytes_of(table)

    def join(self) -> None:
        """Make one table of its columns, if it has some."""
        if self.tables:
            self.values = joined(self.tables, self.timestamps)
            self.keys, self.tables = self.values.keys(), []

    def make_rows(self) -> None:
        """Encode each record by itself, if they are columns."""
        if isinstance(self.values, RecordColumns):
            self.keys, self.values, self.timestamps = list(self.keys), list(self.values), list(self.timestamps)

    def complete(self, sent: list[int] | None) -> bool:
        """Whether every record of its sequence between the first and the last one of ``sent`` that is due to the
        interval is among these or ACKed, and the process has accepted a record at each position between.

        Only of whole batches: what is sent again in part, and what has moved from another interval, is given singly. So
        is a batch that was filled while the others took 2^32 records: a receiver refuses positions that far apart.
        """
        if self.queue.scope.kind is not IdKind.POSITION:
            return False
        first, last = self.ids[0], self.ids[-1]
        return sent is None and self.gapless <= first and last - first < MAX_POSITION_SPAN

    def take_unsent(self) -> list[int] | None:
        """Return the indexes of the unsent records, and mark all records as sent. None means the complete batch."""
        unsent, self.unsent = self.unsent, set()
        if unsent is None:
            return None if self.waiting is None else sorted(self.waiting)
        return sorted(unsent if self.waiting is None else unsent & self.waiting)


def _following(ids: Any, more: Sequence[Any]) -> Any:
    """The ids of a batch and those that follow. Both arguments stay as they are."""
    if isinstance(ids, range) and isinstance(more, range) and ids.step == more.step == 1 and ids.stop == more.start:
        return range(ids.start, more.stop)
    own = array("Q", ids) if isinstance(more, range | array) else list(ids)
    own.extend(more)
    return own


class InjectedAttempt(DeliveryAttempt):
    """One delivery attempt of a batch. ``indexes``: the records that it sends, within the batch; None means all."""

    __slots__ = ("address", "batch", "indexes", "token")

    def __init__(self, token: int, batch: InjectedBatch, address: str, indexes: list[int] | None) -> None:
        super().__init__(len(batch.keys) if indexes is None else len(indexes))
        self.token = token
        self.batch = batch
        self.address = address
        self.indexes = indexes

    def resolve(self, answered: Collection[int]) -> Collection[int]:
        """Convert indexes within the attempt to indexes within the batch."""
        sent = self.indexes
        return answered if sent is None else [sent[index] for index in answered]

    def open(self) -> set[int]:
        """The records without an answer, as indexes within the batch."""
        return set(self.resolve(self.unanswered()))


class OutboundQueue:
    """The un-ACKed batches of one consumer, interval and scope: an outbound queue.

    Invariant: positions rise through ``batches`` and then ``filling``.
    Invariant: ``to_send`` contains exactly the batches that have something to send.
    Invariant: ``in_flight`` is the number of attempts in flight.
    """

    def __init__(self, consumer: IncarnationId, scope: IdScope, route: Route, cap: int) -> None:
        self.consumer = consumer
        self.scope = scope
        self.route = route
        self.batches: dict[InjectedBatch, None] = {}
        self.filling: InjectedBatch | None = None
        self.to_send: dict[InjectedBatch, None] = {}
        self.in_flight = 0
        self.sent_at = 0
        """When a batch was last sent, in microseconds."""
        self.cap = cap
        """The most attempts in flight. A refusal halves it. ACKs raise it."""
        self.failures = 0
        """Refusals since the last ACK."""
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
