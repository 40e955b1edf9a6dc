"""The un-ACKed records of an injector: fill batches, send them, and process answers (section 6.1.1). Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from millwheel.client.injector.ids import IdScope
from millwheel.client.injector.lanes import Flight, InjectedBatch, Lane
from millwheel.client.injector.messages import InjectorEffect, Limits, SendBatch
from millwheel.client.injector.publication import Publication
from millwheel.client.injector.routing import Route
from millwheel.model.backoff import Backoff
from millwheel.model.outbound import AnswerKind, UnackedBatches
from millwheel.model.watermarks import MinTracker

__all__ = ["OutboundBatches"]


class OutboundBatches:
    """All outbound queues (``Lane``) and delivery attempts (``Flight``).

    Invariant: ``_unacked`` and ``_numbers`` have one entry for each sealed batch that is not completely ACKed.
    Invariant: ``_busy`` contains every queue that has a batch to send or a batch that is being filled.
    Invariant: an attempt is in ``_flights``, in its batch's list and in its address's list, or in none of them.
    """

    def __init__(self, limits: Limits, publication: Publication, chance: Callable[[], float]) -> None:
        self._unacked = UnackedBatches[InjectedBatch]()
        """The sealed batches."""
        self._filled_records = 0
        self._filled_bytes = 0
        """The content of the batches that are being filled."""
        self._limits = limits
        self._publication = publication
        self._backoff = Backoff(limits.retry_first, limits.retry_last)
        self._chance = chance
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

    def oldest_position(self, scope: IdScope, otherwise: int) -> int:
        """The least position of ``scope`` that some consumer has not ACKed. ``otherwise`` if there is none."""
        return min((lane.first_position() for lane in self._lanes.values() if lane.scope == scope), default=otherwise)

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

    def lane(self, consumer: str, scope: IdScope, route: Route) -> Lane:
        """The queue for records of ``scope`` that go to the interval of ``route``. Created if it does not exist."""
        key = (consumer, scope, route.journal)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(consumer, scope, route, self._limits.max_flights)
        return lane

    def fill(
        self,
        lane: Lane,
        keys: Sequence[bytes],
        values: Sequence[bytes],
        timestamps: Sequence[int],
        ids: Sequence[Any],
        first: int,
        now: int,
    ) -> None:
        """Append records to the queue's batches, in order. ``first`` is the number of the first accepted record."""
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

    def link_to(self, wanted: set[str]) -> tuple[list[str], list[str]]:
        """Set the addresses to connect to. Returns the removed addresses and the added ones."""
        gone = [address for address in self._links if address not in wanted]
        new = sorted(wanted.difference(self._links))
        for address in gone:
            self.disconnected(address)
            del self._links[address]
        self._links.update(dict.fromkeys(new))
        return gone, new

    def connected(self, address: str) -> dict[Lane, None]:
        """Mark ``address`` as connected. Returns the queues that have something to send to it."""
        if address not in self._links:
            return {}
        if self._links[address] is None:
            self._links[address] = {}
        return {lane: None for lane in self._busy if lane.route.address == address}

    def disconnected(self, address: str) -> None:
        """Mark ``address`` as not connected. Batches in flight to it have to be sent again."""
        tokens = self._links.get(address)
        if tokens is None:
            return
        for token in list(tokens):
            self._bring_back(self._flights[token])
        self._links[address] = None

    def recall(self, lane: Lane) -> None:
        """Send all batches in flight again at once, because the interval has another owner."""
        for batch in lane.batches:
            for flight in list(batch.flights):
                self._bring_back(flight)
            batch.resume_at = 0
        lane.resume_at = lane.failures = lane.extra_at = 0
        lane.cap = self._limits.max_flights

    def _bring_back(self, flight: Flight) -> None:
        """End an attempt, and send its unanswered records again at once."""
        self._end(flight)
        flight.batch.resume_at = 0
        self._require(flight.batch, flight.open())

    def _require(self, batch: InjectedBatch, indexes: set[int]) -> None:
        """Queue records of a batch to be sent again."""
        batch.require(indexes)
        batch.lane.queue[batch] = None
        self._busy[batch.lane] = None

    def pump(self, lane: Lane, now: int, out: list[InjectorEffect]) -> int | None:
        """Send the batches that may be sent now.

        Returns:
            The time at which to call again, in microseconds. None if only an event can make another batch sendable.
        """
        if lane not in self._busy:
            return None
        tokens = self._links.get(lane.route.address)
        if tokens is None:
            return None
        alarm = None
        # The oldest batch goes first, because it holds the watermark.
        for batch in sorted(lane.queue, key=_age):
            if batch.resume_at > now:
                alarm = _earlier(alarm, batch.resume_at)
                continue
            wait = self._gate(lane, batch, now)
            if wait is not None:
                return _earlier(alarm, wait)
            self._send(lane, batch, tokens, now, out)
        alarm = self._pump_filling(lane, tokens, now, out, alarm)
        if not lane.queue and lane.filling is None:
            self._busy.pop(lane, None)
        return alarm

    def _pump_filling(
        self, lane: Lane, tokens: dict[int, None], now: int, out: list[InjectorEffect], alarm: int | None
    ) -> int | None:
        """Send the batch that is being filled, unless a sealed batch has to go first.

        Records are collected in the batch while earlier batches are in flight, for at most ``linger`` microseconds.
        While the batch could not be sent anyway, it stays open for further records. This makes few large batches
        instead of many small ones.
        """
        batch = lane.filling
        if batch is None:
            return alarm
        due = lane.opened_at + self._limits.linger
        if now < due and (lane.flying or lane.queue):
            return _earlier(alarm, due)
        wait = self._gate(lane, batch, now)
        if wait is not None:
            return _earlier(alarm, wait)
        self._seal(lane)
        self._send(lane, batch, tokens, now, out)
        return alarm

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

    def _send(
        self, lane: Lane, batch: InjectedBatch, tokens: dict[int, None], now: int, out: list[InjectorEffect]
    ) -> None:
        del lane.queue[batch]
        indexes = batch.take_unsent()
        if indexes is not None and not indexes:
            return
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
        out.append(
            SendBatch(
                flight.address, token, lane.consumer, lane.route.journal, lane.scope, keys, values, timestamps, ids,
                self._publication.value, mark, unacked,
            )
        )  # fmt: skip

    def overdue_at(self) -> int | None:
        """The time at which the oldest attempt is overdue, in microseconds. None if there is no attempt."""
        for flight in self._flights.values():
            return flight.sent_at + self._limits.resend_after
        return None

    def resend_overdue(self, now: int) -> None:
        """Send batches without an answer again. An answer to the first copy still counts."""
        due = now - self._limits.resend_after
        overdue = []
        for flight in self._flights.values():
            if flight.sent_at > due:
                break
            overdue.append(flight)
        for flight in overdue:
            # The attempt moves to the end, so that ``_flights`` stays ordered by ``sent_at``.
            self._flights[flight.token] = self._flights.pop(flight.token)
            flight.sent_at = now
            if len(flight.batch.flights) > 1:
                self._end(flight)
            self._require(flight.batch, flight.open())

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

    def refused(self, flight: Flight, kind: AnswerKind, refused: Sequence[int], now: int) -> None:
        """A receiver did not accept some records of an attempt. The records are sent again after a back-off.

        A record that is also in another attempt of the same batch is left out: the receiver is processing that copy.

        Args:
            flight: The attempt.
            kind: Why. If the receiver had no room, fewer batches are then kept in flight.
            refused: The refused records, as indexes within the attempt. Without any: the complete attempt.
            now: The time, in microseconds.
        """
        batch, lane = flight.batch, flight.batch.lane
        indexes = set(flight.resolve(flight.answered(kind, refused)))
        if flight.over:
            self._end(flight)
        for other in batch.flights:
            if other is not flight:
                indexes = indexes - other.open()
        if batch.waiting is not None:
            indexes = indexes & batch.waiting
        if not indexes:
            return
        if batch.tries == 1:
            lane.failures += 1
            lane.resume_at = now + self._delay(lane.failures)
            if kind is AnswerKind.FULL:
                lane.cap = max(1, lane.flying // 2)
        batch.resume_at = now + self._delay(batch.tries)
        self._require(batch, indexes)

    def _delay(self, failures: int) -> int:
        """Microseconds to wait after ``failures`` failed attempts."""
        return int(self._backoff.delay(failures, self._chance()))

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

    def remove(self, lane: Lane) -> None:
        """Remove a queue. Its records go to other queues or are discarded."""
        if lane.filling is not None:
            self._seal(lane)
        batches = list(lane.batches)
        for batch in batches:
            self._forget(batch)
        self._drop(lane)

    def _drop(self, lane: Lane) -> None:
        self._lanes.pop((lane.consumer, lane.scope, lane.route.journal), None)
        self._busy.pop(lane, None)
        self._filling.pop(lane, None)


def _age(batch: InjectedBatch) -> int:
    return batch.first


def _earlier(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
