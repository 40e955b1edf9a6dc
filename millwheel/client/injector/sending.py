"""The un-ACKed records of an injector: filling batches, sending them, and taking answers in (section 6.1.1). Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from millwheel.client.injector.ids import IdScope
from millwheel.client.injector.lanes import Batch, Flight, Lane, backoff
from millwheel.client.injector.messages import Instruction, Limits, Send
from millwheel.client.injector.publication import Publication
from millwheel.client.injector.routing import Route
from millwheel.core.watermarks import MinTracker

__all__ = ["Sending"]


class Sending:
    """All lanes and flights. ``records`` and ``bytes`` are what is not ACKed.

    Invariants: ``_held`` and ``_numbers`` have one entry for each sealed batch that is not wholly ACKed;
    ``_busy`` has every lane with something to send or being filled; a flight is in ``_flights``, in its
    batch's and in its address's list, or nowhere.
    """

    def __init__(self, limits: Limits, publication: Publication, chance: Callable[[], float]) -> None:
        self.records = 0
        self.bytes = 0
        self._limits = limits
        self._publication = publication
        self._chance = chance
        self._lanes: dict[tuple[str, IdScope, str], Lane] = {}
        self._busy: dict[Lane, None] = {}
        self._filling: dict[Lane, None] = {}
        self._links: dict[str, dict[int, None] | None] = {}
        """By address: its flights, or None while it is not connected."""
        self._flights: dict[int, Flight] = {}
        self._next_token = 1
        self._held = MinTracker()
        self._numbers = MinTracker()

    # What is known.

    def oldest_timestamp(self) -> int:
        """The least timestamp that is not ACKed; MAX_TIMESTAMP if all are."""
        return min([self._held.min(), *(lane.filling.held for lane in self._filling if lane.filling)])

    def oldest_number(self) -> int:
        """A lower bound on the numbers of the records that are not ACKed; MAX_TIMESTAMP if all are."""
        return min([self._numbers.min(), *(lane.filling.first for lane in self._filling if lane.filling)])

    def oldest_position(self, scope: IdScope, otherwise: int) -> int:
        """The least position of ``scope`` that is not ACKed by all; ``otherwise`` if all are."""
        return min((lane.first_position() for lane in self._lanes.values() if lane.scope == scope), default=otherwise)

    def lanes(self) -> list[Lane]:
        """All lanes; a copy."""
        return list(self._lanes.values())

    def busy_lanes(self) -> dict[Lane, None]:
        """The lanes with something to send; a copy."""
        return dict(self._busy)

    def flight(self, token: int) -> Flight | None:
        """The flight of that token, unless it is over."""
        return self._flights.get(token)

    # Filling.

    def lane(self, consumer: str, scope: IdScope, route: Route) -> Lane:
        """The lane for records of ``scope`` that go by ``route``."""
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
        """Put records into the lane's batches, in order."""
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
            self.records += take
            self.bytes += size
            at += take
            if len(batch.keys) >= limits.batch_records or batch.bytes >= limits.batch_bytes:
                self._seal(lane)

    def _open(self, lane: Lane, first: int, now: int) -> Batch:
        batch = lane.filling = Batch(lane, first)
        lane.opened_at = now
        self._filling[lane] = None
        self._busy[lane] = None
        return batch

    def _seal(self, lane: Lane) -> None:
        batch = lane.filling
        assert batch is not None
        lane.filling = None
        del self._filling[lane]
        lane.batches[batch] = None
        lane.queue[batch] = None
        self._held.add(batch.held)
        self._numbers.add(batch.first)

    # Sending.

    def link_to(self, wanted: set[str]) -> tuple[list[str], list[str]]:
        """Be concerned with these addresses only; returns those that go and those that come."""
        gone = [address for address in self._links if address not in wanted]
        new = sorted(wanted.difference(self._links))
        for address in gone:
            self.disconnected(address)
            del self._links[address]
        self._links.update(dict.fromkeys(new))
        return gone, new

    def connected(self, address: str) -> dict[Lane, None]:
        """A stream to ``address`` is open; returns the lanes that have something for it."""
        if address not in self._links:
            return {}
        if self._links[address] is None:
            self._links[address] = {}
        return {lane: None for lane in self._busy if lane.route.address == address}

    def disconnected(self, address: str) -> None:
        """What was on its way to ``address`` is to be sent again."""
        tokens = self._links.get(address)
        if tokens is None:
            return
        for token in list(tokens):
            self._bring_back(self._flights[token])
        self._links[address] = None

    def recall(self, lane: Lane) -> None:
        """The lane's owner has changed: whatever is on its way is to be sent again, at once."""
        for batch in lane.batches:
            for flight in list(batch.flights):
                self._bring_back(flight)
            batch.resume_at = 0
        lane.resume_at = lane.failures = lane.extra_at = 0
        lane.cap = self._limits.max_flights

    def _bring_back(self, flight: Flight) -> None:
        self._end(flight)
        flight.batch.resume_at = 0
        self._require(flight.batch, flight.open)

    def _require(self, batch: Batch, indexes: set[int]) -> None:
        batch.require(indexes)
        batch.lane.queue[batch] = None
        self._busy[batch.lane] = None

    def pump(self, lane: Lane, now: int, out: list[Instruction]) -> int | None:
        """Send what may be sent; returns when to look again, if time alone changes that."""
        if lane not in self._busy:
            return None
        tokens = self._links.get(lane.route.address)
        if tokens is None:
            return None
        alarm = None
        # The oldest first: it is what holds the watermark back.
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
        self, lane: Lane, tokens: dict[int, None], now: int, out: list[Instruction], alarm: int | None
    ) -> int | None:
        """Send the batch that is being filled, where nothing sealed could go instead.

        A record waits for others while earlier ones are on their way, and not for long; and as long as it could
        not go anyway it stays where others can join it: what waits is few large batches, not many small ones.
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

    def _gate(self, lane: Lane, batch: Batch, now: int) -> int | None:
        """None if the batch may go now, else when to ask again."""
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

    def _send(self, lane: Lane, batch: Batch, tokens: dict[int, None], now: int, out: list[Instruction]) -> None:
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
            Send(
                flight.address, token, lane.consumer, lane.route.journal, lane.scope, keys, values, timestamps, ids,
                self._publication.value, mark, unacked,
            )
        )  # fmt: skip

    def overdue_at(self) -> int | None:
        """When the oldest flight has been without an answer for too long."""
        for flight in self._flights.values():
            return flight.sent_at + self._limits.resend_after
        return None

    def resend_overdue(self, now: int) -> None:
        """Have flights without an answer sent again; an answer to the first copy still counts."""
        due = now - self._limits.resend_after
        overdue = []
        for flight in self._flights.values():
            if flight.sent_at > due:
                break
            overdue.append(flight)
        for flight in overdue:
            # It goes to the end of the line, so that the flights stay in the order of their times.
            self._flights[flight.token] = self._flights.pop(flight.token)
            flight.sent_at = now
            if len(flight.batch.flights) > 1:
                self._end(flight)
            self._require(flight.batch, flight.open)

    # Answers.

    def acked(self, flight: Flight, remaining: Sequence[int]) -> None:
        """Everything that flew is committed, but for the ``remaining`` (indexes of the flight)."""
        batch, lane = flight.batch, flight.batch.lane
        lane.failures = 0
        lane.extra_at = 0
        lane.cap = min(lane.cap + 1, self._limits.max_flights)
        acked = flight.open - flight.resolve(remaining) if remaining else flight.open
        flight.open = flight.open - acked
        if not flight.open:
            self._end(flight)
        self._settle(batch, acked)

    def _settle(self, batch: Batch, acked: set[int]) -> None:
        before = batch.count()
        if len(acked) == before == len(batch.keys):
            left: set[int] = set()
        else:
            left = (set(range(len(batch.keys))) if batch.waiting is None else batch.waiting) - acked
        self.records -= before - len(left)
        if not left:
            self.bytes -= batch.bytes
            self._forget(batch)
            return
        if len(left) == before:
            return
        batch.waiting = left
        if batch.unsent:
            batch.unsent &= left
        if batch.unsent is not None and not batch.unsent:
            batch.lane.queue.pop(batch, None)
        self._held.remove(batch.held)
        batch.held = min(batch.timestamps[index] for index in left)
        self._held.add(batch.held)

    def refused(self, flight: Flight, indexes: set[int], now: int, *, full: bool) -> None:
        """Records of a flight are not taken now; ``full``: for want of room. They are sent again later.

        Not those of which another copy is on its way: that copy is the one being processed.
        """
        batch, lane = flight.batch, flight.batch.lane
        indexes = indexes & flight.open
        flight.open = flight.open - indexes
        if not flight.open:
            self._end(flight)
        for other in batch.flights:
            if other is not flight:
                indexes = indexes - other.open
        if batch.waiting is not None:
            indexes = indexes & batch.waiting
        if not indexes:
            return
        if batch.tries == 1:
            lane.failures += 1
            lane.resume_at = now + backoff(self._limits, lane.failures, self._chance())
            if full:
                lane.cap = max(1, lane.flying // 2)
        batch.resume_at = now + backoff(self._limits, batch.tries, self._chance())
        self._require(batch, indexes)

    def _end(self, flight: Flight) -> None:
        if self._flights.pop(flight.token, None) is None:
            return
        flight.batch.flights.remove(flight)
        flight.batch.lane.flying -= 1
        tokens = self._links.get(flight.address)
        if tokens is not None:
            tokens.pop(flight.token, None)

    def _forget(self, batch: Batch) -> None:
        """The batch is wholly ACKed, or given up: no trace of it stays."""
        lane = batch.lane
        for flight in list(batch.flights):
            self._end(flight)
        del lane.batches[batch]
        lane.queue.pop(batch, None)
        self._held.remove(batch.held)
        self._numbers.remove(batch.first)
        if lane.empty:
            self._drop(lane)

    def remove(self, lane: Lane) -> None:
        """Give up a lane: its records go by other lanes, or nowhere."""
        if lane.filling is not None:
            self._seal(lane)
        batches = list(lane.batches)
        for batch in batches:
            self.records -= batch.count()
            self.bytes -= batch.bytes
            self._forget(batch)
        self._drop(lane)

    def _drop(self, lane: Lane) -> None:
        self._lanes.pop((lane.consumer, lane.scope, lane.route.journal), None)
        self._busy.pop(lane, None)
        self._filling.pop(lane, None)


def _age(batch: Batch) -> int:
    return batch.first


def _earlier(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
