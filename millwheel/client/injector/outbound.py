"""The un-ACKed records of an injector: queues, batches and delivery attempts (section 6.1.1). Pure.

A ``Lane`` is an outbound queue: the un-ACKed batches for one interval of one consumer, with ids of one scope.
A ``Flight`` is one delivery attempt of a batch. Un-ACKed records are sent again with the same ids and bytes, so a
batch may have several attempts in flight. An ACK counts for the record, whichever attempt it answers.

:mod:`millwheel.client.injector.resending` decides what is sent again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from millwheel.client.injector.ids import IdKind, IdScope
from millwheel.client.injector.messages import Columns, Limits, SendBatch
from millwheel.client.injector.routing import ConsumerRouting, Route
from millwheel.model.outbound import AnswerKind, OutboundBatch, OutboundSending, UnackedBatches
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.model.watermarks import MinTracker

__all__ = ["Flight", "InjectedBatch", "Lane", "LaneSender"]

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


class LaneSender:
    """All outbound queues (``Lane``) and delivery attempts (``Flight``): it fills batches, sends them and takes ACKs.

    Invariant: ``_unacked`` and ``_numbers`` have one entry for each sealed batch that is not completely ACKed.
    Invariant: ``_busy`` contains every queue that has a batch to send or a batch that is being filled.
    Invariant: an attempt is in ``_flights``, in its batch's list and in its address's list, or in none of them.
    """

    def __init__(self, limits: Limits) -> None:
        self.watermark: int = MIN_TIMESTAMP
        """The published watermark, in microseconds. Each delivery carries it."""
        self._unacked = UnackedBatches[InjectedBatch]()
        """The sealed batches."""
        self._filled_records = 0
        self._filled_bytes = 0
        """The content of the batches that are being filled."""
        self._limits = limits
        self._lanes: dict[tuple[str, IdScope, str], Lane] = {}
        self._busy: dict[Lane, None] = {}
        self._filling: dict[Lane, None] = {}
        self._links: dict[str, dict[int, None] | None] = {}
        """By address: the tokens of its delivery attempts. None while the address is not connected."""
        self._flights: dict[int, Flight] = {}
        self._next_token = 1
        self._numbers = MinTracker()

    # State.

    @property
    def records(self) -> int:
        """The number of un-ACKed records."""
        return self._unacked.records + self._filled_records

    @property
    def size(self) -> int:
        """The size of the un-ACKed values, in bytes."""
        return self._unacked.bytes + self._filled_bytes

    def oldest_timestamp(self) -> int:
        """The least un-ACKed timestamp, in microseconds. MAX_TIMESTAMP if every record is ACKed."""
        return min([self._unacked.held.min(), *(lane.filling.held for lane in self._filling if lane.filling)])

    def oldest_number(self) -> int:
        """A lower bound on the numbers of un-ACKed records. MAX_TIMESTAMP if every record is ACKed."""
        return min([self._numbers.min(), *(lane.filling.first for lane in self._filling if lane.filling)])

    def lanes(self) -> list[Lane]:
        """A copy of the list of all queues."""
        return list(self._lanes.values())

    def busy_lanes(self) -> dict[Lane, None]:
        """A copy of the set of queues that have something to send."""
        return dict(self._busy)

    def flight(self, token: int) -> Flight | None:
        """The delivery attempt with this token. None if the attempt is over."""
        return self._flights.get(token)

    # Filling.

    def _lane(self, consumer: str, scope: IdScope, route: Route) -> Lane:
        """The queue for records of ``scope`` that go to the interval of ``route``. Created if it does not exist."""
        key = (consumer, scope, route.journal)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(consumer, scope, route, self._limits.max_flights)
        return lane

    def distribute(
        self, consumer: ConsumerRouting, columns: Columns, keys: Sequence[bytes], first: int, now: int
    ) -> dict[Lane, None]:
        """Append records to the queues of their keys' intervals. Returns those queues.

        ``keys``: the records' keys at ``consumer``. ``first``: a lower bound on the records' numbers.
        """
        lanes: dict[Lane, None] = {}
        for at, picks in _by_interval(consumer.starts, keys):
            lane = self._lane(consumer.incarnation, columns.scope, consumer.routes[at])
            values, timestamps, ids = columns.values, columns.timestamps, columns.ids
            if picks is None:
                self._fill(lane, keys, values, timestamps, ids, first, now)
            else:
                pick = [[column[index] for index in picks] for column in (keys, values, timestamps, ids)]
                self._fill(lane, pick[0], pick[1], pick[2], pick[3], first, now)  # type: ignore[arg-type]
            lanes[lane] = None
        return lanes

    def _fill(
        self,
        lane: Lane,
        keys: Sequence[bytes],
        values: Sequence[bytes],
        timestamps: Sequence[int],
        ids: Sequence[Any],
        first: int,
        now: int,
    ) -> None:
        """Append records to the queue's batches, in order."""
        limits, at, count = self._limits, 0, len(keys)
        while at < count:
            batch = lane.filling
            if batch is None:
                batch = self._open(lane, first, now)
            take = min(count - at, limits.batch_records - len(batch.keys))
            size = sum(map(len, values[at : at + take]))
            while batch.bytes + size > limits.batch_bytes and take > 1:
                take = (take + 1) // 2
                size = sum(map(len, values[at : at + take]))
            if batch.keys and batch.bytes + size > limits.batch_bytes:
                self._seal(lane)
                continue
            if take == count:
                batch.extend(keys, values, timestamps, ids, size)
            else:
                part = slice(at, at + take)
                batch.extend(keys[part], values[part], timestamps[part], ids[part], size)
            self._filled_records += take
            self._filled_bytes += size
            at += take
            if len(batch.keys) >= limits.batch_records or batch.bytes >= limits.batch_bytes:
                self._seal(lane)

    def _open(self, lane: Lane, first: int, now: int) -> InjectedBatch:
        batch = lane.filling = InjectedBatch(lane, first)
        lane.opened_at = now
        self._filling[lane] = None
        self._busy[lane] = None
        return batch

    def _seal(self, lane: Lane) -> None:
        """Close the batch that is being filled, and queue it for sending."""
        batch = lane.filling
        assert batch is not None
        lane.filling = None
        del self._filling[lane]
        lane.batches[batch] = None
        lane.queue[batch] = None
        self._filled_records -= len(batch.keys)
        self._filled_bytes -= batch.bytes
        self._unacked.add(batch)
        self._numbers.add(batch.first)

    # Sending.

    def _require(self, batch: InjectedBatch, indexes: set[int]) -> None:
        """Queue records of a batch to be sent again."""
        batch.require(indexes)
        batch.lane.queue[batch] = None
        self._busy[batch.lane] = None

    def pump(self, lane: Lane, now: int) -> tuple[list[SendBatch], int | None]:
        """Send the batches that may be sent now.

        Returns:
            What to send, and the time at which to call again, in microseconds. The time is None if only an event can
            make another batch sendable.
        """
        sends: list[SendBatch] = []
        if lane not in self._busy:
            return sends, None
        tokens = self._links.get(lane.route.address)
        if tokens is None:
            return sends, None
        alarm = None
        # The oldest batch goes first, because it holds the watermark.
        for batch in sorted(lane.queue, key=_age):
            if batch.resume_at > now:
                alarm = _earlier(alarm, batch.resume_at)
                continue
            wait = self._gate(lane, batch, now)
            if wait is not None:
                return sends, _earlier(alarm, wait)
            sends += self._send(lane, batch, tokens, now)
        wait = self._filling_due(lane, now)
        if wait is not None:
            alarm = _earlier(alarm, wait)
        elif lane.filling is not None:
            batch = lane.filling
            self._seal(lane)
            sends += self._send(lane, batch, tokens, now)
        if not lane.queue and lane.filling is None:
            self._busy.pop(lane, None)
        return sends, alarm

    def _filling_due(self, lane: Lane, now: int) -> int | None:
        """None if the batch that is being filled may be sent now, or there is none. Else the time of the next check.

        Records are collected in the batch while earlier batches are in flight, for at most ``linger`` microseconds.
        While the batch could not be sent anyway, it stays open for further records. This makes few large batches
        instead of many small ones.
        """
        batch = lane.filling
        if batch is None:
            return None
        due = lane.opened_at + self._limits.linger
        if now < due and (lane.flying or lane.queue):
            return due
        return self._gate(lane, batch, now)

    def _gate(self, lane: Lane, batch: InjectedBatch, now: int) -> int | None:
        """None if the batch may be sent now, else the time of the next check, in microseconds."""
        if batch.tries == 0 and now < lane.resume_at:
            return lane.resume_at
        if lane.flying < lane.cap:
            return None
        if lane.extra_at == 0:
            lane.extra_at = now + self._limits.retry_last
        if now < lane.extra_at:
            return lane.extra_at
        lane.cap, lane.extra_at = lane.flying + 1, 0
        return None

    def _send(self, lane: Lane, batch: InjectedBatch, tokens: dict[int, None], now: int) -> list[SendBatch]:
        """Begin an attempt. Returns nothing if all records of the batch are in other attempts, or ACKed."""
        del lane.queue[batch]
        indexes = batch.take_unsent()
        if indexes is not None and not indexes:
            return []
        token = self._next_token
        self._next_token += 1
        flight = self._flights[token] = Flight(token, batch, lane.route.address, indexes, now)
        batch.flights.append(flight)
        batch.tries += 1
        tokens[token] = None
        lane.flying += 1
        columns: list[Any] = [batch.keys, batch.values, batch.timestamps, batch.ids]
        if indexes is not None:
            columns = [[column[index] for index in indexes] for column in columns]
        mark, unacked = lane.mark()
        keys, values, timestamps, ids = columns
        send = SendBatch(
            flight.address, token, lane.consumer, lane.route.journal, lane.scope, keys, values, timestamps, ids,
            self.watermark, mark, unacked,
        )  # fmt: skip
        return [send]

    def overdue_at(self) -> int | None:
        """The time at which the oldest attempt is overdue, in microseconds. None if there is no attempt."""
        for flight in self._flights.values():
            return flight.sent_at + self._limits.resend_after
        return None

    # Answers.

    def acked(self, flight: Flight, remaining: Sequence[int]) -> None:
        """All records of the attempt are committed, except ``remaining`` (indexes within the attempt)."""
        batch, lane = flight.batch, flight.batch.lane
        lane.failures = 0
        lane.extra_at = 0
        lane.cap = min(lane.cap + 1, self._limits.max_flights)
        acked = flight.resolve(flight.answered(AnswerKind.ACKED, remaining))
        if flight.over:
            self._end(flight)
        self._settle(batch, acked)

    def _settle(self, batch: InjectedBatch, acked: Collection[int]) -> None:
        """Mark records of a batch as ACKed."""
        if self._unacked.acknowledge(batch, batch.without(acked)):
            self._forget(batch)
            return
        if batch.unsent and batch.waiting is not None:
            batch.unsent &= batch.waiting
        if batch.unsent is not None and not batch.unsent:
            batch.lane.queue.pop(batch, None)

    def _end(self, flight: Flight) -> None:
        """Remove an attempt. Idempotent."""
        if self._flights.pop(flight.token, None) is None:
            return
        flight.batch.flights.remove(flight)
        flight.batch.lane.flying -= 1
        tokens = self._links.get(flight.address)
        if tokens is not None:
            tokens.pop(flight.token, None)

    def _forget(self, batch: InjectedBatch) -> None:
        """Remove all state of a batch that is completely ACKed or given up."""
        lane = batch.lane
        for flight in list(batch.flights):
            self._end(flight)
        del lane.batches[batch]
        lane.queue.pop(batch, None)
        self._unacked.remove(batch)
        self._numbers.remove(batch.first)
        if lane.empty:
            self._drop(lane)

    def _drop(self, lane: Lane) -> None:
        self._lanes.pop((lane.consumer, lane.scope, lane.route.journal), None)
        self._busy.pop(lane, None)
        self._filling.pop(lane, None)


def _by_interval(starts: Sequence[bytes], keys: Sequence[bytes]) -> Collection[tuple[int, Sequence[int] | None]]:
    """The intervals of ``keys``, by their number, each with the indexes of its keys. None stands for all indexes.

    ``starts``: the first key of each interval but the lowest one.
    """
    if not starts:
        return ((0, None),)
    found: dict[int, list[int]] = {}
    for index, key in enumerate(keys):
        found.setdefault(bisect_right(starts, key), []).append(index)
    return [(at, None) for at in found] if len(found) == 1 else found.items()


def _age(batch: InjectedBatch) -> int:
    return batch.first


def _earlier(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
