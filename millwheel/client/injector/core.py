"""The client side of injection as a pure state machine (sections 5.2, 6.1.1, 8.4).

Events in (records, routing, answers, connections, the time), instructions out. Every record accepted is
delivered at least once to whoever owns its key at each consumer, always under the same id and with the
same bytes, until it is ACKed; receivers make that exactly once. The published watermark is never above a
record that is not ACKed, unless the record was late when it came.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from operator import lt
from typing import Any

from millwheel.client.injector.errors import (
    InjectorClosedError,
    InjectorError,
    InjectorSupersededError,
    InvalidRecordsError,
    RecordsLeftError,
    StreamDrainingError,
)
from millwheel.client.injector.ids import IdKind, IdScope
from millwheel.client.injector.lanes import Batch, Flight, Lane
from millwheel.client.injector.messages import Columns, Connect, Disconnect, Instruction, Limits
from millwheel.client.injector.publication import Publication, Published
from millwheel.client.injector.routing import ConsumerRouting, Route, Routing
from millwheel.client.injector.sending import Sending
from millwheel.client.injector.unkeyed import UnkeyedHead, UnkeyedRecords, WaitingRecord
from millwheel.core.sketch import TimestampSketch
from millwheel.core.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.rpc.watermarks import PendingWork
from millwheel.sdk.errors import UsageError

__all__ = ["InjectorCore"]

_ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
_NOT_OWNER = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER
_FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
_SUPERSEDED = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER


class InjectorCore:
    """One process of one stream's injector, from the drawing of its sequencer to its end."""

    def __init__(
        self,
        stream: str,
        process: str,
        *,
        watermark: int = MIN_TIMESTAMP,
        limits: Limits | None = None,
        chance: Callable[[], float] = lambda: 0.5,
    ) -> None:
        """``watermark`` is what this process has published before; ``chance`` gives numbers in [0, 1) for jitter."""
        self.stream = stream
        self.process = process
        self.limits = limits or Limits()
        self.routing: Routing | None = None
        self.failed: InjectorError | None = None
        self.publication = Publication(watermark)
        self.accepted = 0
        """Records accepted, ever; record n was the n-th, counted from 0."""
        self.late = 0
        """Accepted records that were behind the published watermark."""
        self.newest: int = MIN_TIMESTAMP
        """The largest timestamp of a record that was accepted."""
        self.unkeyed = UnkeyedRecords()
        """What waits for its keys at a consumer."""
        self.acked = 0
        """How often a record was ACKed by a consumer, ever."""
        self._sending = Sending(self.limits, self.publication, chance)
        self._alarm_at: int | None = None
        self._positions: dict[IdScope, int] = {}
        """The last position accepted of each sequence."""
        self._watermarks: dict[str, int] = {}
        self._came_at: dict[str, int] = {}
        """By consumer, how many records had been accepted when it came: it is sent those that followed."""

    # What is known and allowed.

    @property
    def unacked(self) -> int:
        """Records that are not ACKed; one for each consumer that has not."""
        return self._sending.records + self.unkeyed.records

    @property
    def unacked_bytes(self) -> int:
        """The bytes of their values."""
        return self._sending.bytes + self.unkeyed.bytes

    def unacked_records(self) -> int:
        """Records that some consumer has not ACKed, each counted once."""
        found: dict[IdScope, set[Any]] = {}
        for lane in self._sending.lanes():
            ids = found.setdefault(lane.scope, set())
            for batch in lane.all_batches():
                ids.update(batch.ids[at] for at in batch.indexes())
        for scope, waiting in self.unkeyed.ids():
            found.setdefault(scope, set()).update(waiting)
        return sum(map(len, found.values()))

    def unacked_by_consumer(self) -> dict[str, int]:
        """By consumer that has not ACKed everything: how many records it has not ACKed."""
        found = {name: count for name, (count, _) in self.unkeyed.consumers().items()}
        for lane in self._sending.lanes():
            count = sum(batch.count() for batch in lane.all_batches())
            if count:
                found[lane.consumer] = found.get(lane.consumer, 0) + count
        return found

    def oldest_route(self, consumer: str) -> Route | None:
        """The interval of ``consumer`` that has the oldest record on its way; None if none is on its way."""
        lanes = [lane for lane in self._sending.lanes() if lane.consumer == consumer and not lane.empty]
        oldest = min(lanes, key=lambda lane: next(lane.all_batches()).first, default=None)
        return None if oldest is None else oldest.route

    def room(self) -> int:
        """How many records may be accepted now (G13)."""
        routing, limits = self.routing, self.limits
        if routing is None or self.unacked_bytes >= limits.window_bytes:
            return 0
        per_record = max(1, len(routing.consumers))
        free = (limits.window_records - self.unacked) // per_record
        return max(free, 0 if self.unacked else 1)

    def throttled(self, newest: int) -> bool:
        """Whether a record of that timestamp has to wait for the low watermark (8.4).

        The low watermark is that of the consumers' slowest. A process whose own published value it is
        waiting for is never throttled: nobody else could raise it.
        """
        routing = self.routing
        if routing is None or not routing.allowed_skew:
            return False
        low = min(
            (self._watermarks.get(name, MIN_TIMESTAMP) for name, to in routing.consumers.items() if not to.log),
            default=MAX_TIMESTAMP,
        )
        return newest - low > routing.allowed_skew and self.published().watermark > low

    def published(self) -> Published:
        """What may be said of this process's watermark now; never less than before."""
        return self.publication.update(min(self._sending.oldest_timestamp(), self.unkeyed.oldest_timestamp()))

    def pending_work(self) -> PendingWork:
        """The timestamps of what is not ACKed, for each consumer that has not, and the newest accepted (7.2)."""
        sketch = TimestampSketch()
        for lane in self._sending.lanes():
            for batch in lane.all_batches():
                sketch.add((batch.timestamps[index], 1) for index in batch.indexes())
        sketch.add((timestamp, 1) for timestamp in self.unkeyed.timestamps())
        return PendingWork(sketch, self.newest)

    def oldest_unacked(self) -> int:
        """A lower bound on the numbers of the records that are not ACKed; MAX_TIMESTAMP if all are."""
        return min(self._sending.oldest_number(), self.unkeyed.oldest_number(MAX_TIMESTAMP))

    def flushed(self, accepted: int) -> bool:
        """Whether the first ``accepted`` records are all ACKed, by every consumer."""
        return self.oldest_unacked() >= accepted

    def acknowledged(self, scope: IdScope) -> int | None:
        """Where a source may start again: all positions of ``scope`` below are ACKed. None if there were none."""
        last = self._positions.get(scope)
        if last is None:
            return None
        return min(self._sending.oldest_position(scope, last + 1), self.unkeyed.oldest_position(scope, last + 1))

    def next_alarm(self) -> int | None:
        """When :meth:`tick` is due at the latest, or None."""
        return self._alarm_at

    def check_open(self) -> None:
        """Raise what keeps this process from taking records: InjectorError."""
        if self.failed is not None:
            raise self.failed
        if self.publication.finishing:
            raise InjectorClosedError(f"injector process {self.process!r} of stream {self.stream!r} has finished")
        if self.routing is not None and self.routing.draining:
            raise StreamDrainingError(self.stream)

    # Events.

    def add(self, columns: Columns, now: int) -> list[Instruction]:
        """Accept records; the caller has asked :meth:`room` and :meth:`throttled`.

        Positions rise strictly within their sequence, or UsageError: a receiver's mark passes what is not
        there. ``columns.keys`` has a column for each consumer of the present routing. A column may end early: the
        records from there on wait in ``unkeyed``.
        """
        self.check_open()
        assert self.routing is not None
        count = len(columns.values)
        if not count:
            return []
        if missing := self.routing.consumers.keys() - columns.keys.keys():
            raise UsageError(f"no keys given for the consumers {', '.join(sorted(missing))}")
        oldest, newest = _extremes(columns.timestamps)
        if columns.scope.kind is IdKind.POSITION:
            self.check_positions(columns.scope, columns.ids)
            self._positions[columns.scope] = columns.ids[-1]  # type: ignore[assignment]
        if oldest < self.publication.value:
            self.late += sum(timestamp < self.publication.value for timestamp in columns.timestamps)
        self.newest = max(self.newest, newest)
        first, self.accepted = self.accepted, self.accepted + count
        lanes: dict[Lane, None] = {}
        for name, consumer in self.routing.consumers.items():
            keys = columns.keys[name]
            if self.unkeyed and self.unkeyed.blocked(name, columns.scope):
                self._hold(name, columns, 0, keys, first)
            elif len(keys) == count:
                self._distribute(consumer, columns, keys, first, now, lanes)
            else:
                if keys:
                    self._distribute(consumer, _cut(columns, len(keys)), keys, first, now, lanes)
                self._hold(name, columns, len(keys), keys, first)
        return self._pumped(lanes, now)

    def _hold(self, consumer: str, columns: Columns, start: int, keys: Sequence[bytes], first: int) -> None:
        """Have the records from ``start`` on wait, with the keys that are known of them."""
        rows = enumerate(zip(columns.ids, columns.values, columns.timestamps, strict=True))
        records = [
            WaitingRecord(first + at, id_, value, timestamp, keys[at] if at < len(keys) else None)
            for at, (id_, value, timestamp) in rows
            if at >= start
        ]
        self.unkeyed.hold(consumer, columns.scope, records, columns.unkeyed.get(consumer, ""))

    def keyed(self, head: UnkeyedHead, keys: Sequence[bytes], why: str, now: int) -> list[Instruction]:
        """The keys of the first records of ``head``: they go on their way. ``why`` the one after them has none.

        ``head`` is what ``unkeyed`` gave. Nothing happens if those records do not wait any more.
        """
        consumer = None if self.routing is None else self.routing.consumers.get(head.consumer)
        if consumer is None or not self.unkeyed.stands(head):
            return []
        lanes: dict[Lane, None] = {}
        if keys:
            taken = self.unkeyed.release(head.consumer, head.scope, len(keys))
            values, timestamps = [row.value for row in taken], [row.timestamp for row in taken]
            columns = Columns(values, timestamps, {}, head.scope, [row.id for row in taken])
            self._distribute(consumer, columns, keys, taken[0].number, now, lanes)
        if len(keys) < len(head.records):
            self.unkeyed.explain(head.consumer, head.scope, why)
        return self._pumped(lanes, now)

    def check_positions(self, scope: IdScope, ids: Sequence[Any]) -> None:
        """UsageError unless these positions rise, and follow all that were accepted."""
        try:
            array("Q", ids)
        except (TypeError, OverflowError) as error:
            raise UsageError(f"positions of {scope.name!r} are whole numbers of 0 to 2^64 - 1: {error}") from error
        last = self._positions.get(scope, -1)
        if ids[0] <= last or not all(map(lt, ids, ids[1:])):
            raise UsageError(
                f"positions of {scope.name!r} must rise from record to record: {ids[0]} came after {last}"
                if ids[0] <= last
                else f"positions of {scope.name!r} must rise from record to record"
            )

    def _distribute(
        self,
        consumer: ConsumerRouting,
        columns: Columns,
        keys: Sequence[bytes],
        first: int,
        now: int,
        lanes: dict[Lane, None],
    ) -> None:
        for route, picks in consumer.group(keys):
            lane = self._sending.lane(consumer.incarnation, columns.scope, route)
            values, timestamps, ids = columns.values, columns.timestamps, columns.ids
            if picks is None:
                self._sending.fill(lane, keys, values, timestamps, ids, first, now)
            else:
                pick = [[column[index] for index in picks] for column in (keys, values, timestamps, ids)]
                self._sending.fill(lane, pick[0], pick[1], pick[2], pick[3], first, now)  # type: ignore[arg-type]
            lanes[lane] = None

    def routed(self, routing: Routing, now: int) -> list[Instruction]:
        """Take a new routing; an older one than the present changes nothing.

        Un-ACKed records go to whoever owns their keys now. A consumer that joins gets the records that are
        accepted from here on; one that is gone gets nothing more, and what it had not ACKed is discarded, if
        others that were sent it, too, still read the stream. Else it was taken by nobody, and the process fails.
        """
        if self.routing is not None and routing.revision < self.routing.revision:
            return []
        left = self._left(routing)
        self.routing = routing
        if left is not None:
            self.failed = self.failed or RecordsLeftError(self.stream, left)
            return []
        self._came_at = {name: self._came_at.get(name, self.accepted) for name in routing.consumers}
        self._watermarks = {name: told for name, told in self._watermarks.items() if name in routing.consumers}
        for name in self.unkeyed.consumers().keys() - routing.consumers.keys():
            self.unkeyed.forget(name)
        out = self._connections(routing)
        lanes: dict[Lane, None] = {}
        homeless: dict[tuple[str, IdScope], list[Batch]] = {}
        for lane in self._sending.lanes():
            consumer = routing.consumers.get(lane.consumer)
            if consumer is None:
                self._sending.remove(lane)
                continue
            route = consumer.by_journal().get(lane.route.journal)
            if route is None:
                homeless.setdefault((lane.consumer, lane.scope), []).extend(lane.all_batches())
                self._sending.remove(lane)
                continue
            if (route.address, route.tenure) != (lane.route.address, lane.route.tenure):
                self._sending.recall(lane)
            lane.route = route
            lanes[lane] = None
        for (name, scope), batches in homeless.items():
            self._rehouse(routing.consumers[name], scope, batches, now, lanes)
        return out + self._pumped(lanes, now)

    def _left(self, routing: Routing) -> str | None:
        """A computation that is gone with records that it had not ACKed, where no computation is left that was there
        when they were accepted: no watermark and no answer may say that they are in."""
        staying = [name for name, one in routing.consumers.items() if name in self._came_at and not one.log]
        alone = (
            self.accepted if routing.draining else min((self._came_at[name] for name in staying), default=self.accepted)
        )
        for lane in self._sending.lanes():
            if lane.consumer not in routing.consumers and any(one.first < alone for one in lane.all_batches()):
                return lane.consumer
        for name in self.unkeyed.consumers().keys() - routing.consumers.keys():
            number = self.unkeyed.first_number(name)
            if number is not None and number < alone:
                return name
        return None

    def _connections(self, routing: Routing) -> list[Instruction]:
        wanted = {route.address for consumer in routing.consumers.values() for route in consumer.routes}
        wanted.discard("")
        gone, new = self._sending.link_to(wanted)
        return [*map(Disconnect, gone), *map(Connect, new)]

    def _rehouse(
        self, consumer: ConsumerRouting, scope: IdScope, batches: list[Batch], now: int, lanes: dict[Lane, None]
    ) -> None:
        rows = [
            (batch.ids[at], batch.keys[at], batch.values[at], batch.timestamps[at])
            for batch in batches
            for at in batch.indexes()
        ]
        if not rows:
            return
        if scope.kind is IdKind.POSITION:
            rows.sort(key=lambda row: row[0])
        ids, keys, values, timestamps = (list(column) for column in zip(*rows, strict=True))
        first = min(batch.first for batch in batches)
        columns = Columns(values, timestamps, {}, scope, ids)
        self._distribute(consumer, columns, keys, first, now, lanes)

    def connected(self, address: str, now: int) -> list[Instruction]:
        """A Deliver stream to ``address`` is open: everything due there goes out."""
        return self._pumped(self._sending.connected(address), now)

    def disconnected(self, address: str) -> None:
        """The stream to ``address`` broke: whatever it had not ACKed is sent again when it is connected."""
        self._sending.disconnected(address)

    def answered(
        self, token: int, outcome: DeliveryOutcome.ValueType, indexes: Sequence[int], message: str, now: int
    ) -> list[Instruction]:
        """A receiver's answer. Those to flights of which nothing is known any more change nothing."""
        flight = self._sending.flight(token)
        if flight is None or self.failed is not None:
            return []
        lane = flight.batch.lane
        if outcome == _ACKED:
            before = self._sending.records
            self._sending.acked(flight, indexes)
            self.acked += before - self._sending.records
        elif outcome == _FULL:
            self._sending.refused(flight, flight.resolve(indexes) if indexes else flight.open, now, full=True)
        elif outcome == _NOT_OWNER:
            self._sending.refused(flight, flight.open, now, full=False)
        elif outcome == _SUPERSEDED:
            self.failed = InjectorSupersededError(self.stream, self.process, message or "a worker knows of it")
        else:
            self.failed = self._invalid(flight, message)
        return self._pumped({lane: None}, now)

    def _invalid(self, flight: Flight, message: str) -> InjectorError:
        batch = flight.batch
        at = sorted(flight.open)
        keys, ids = [batch.keys[index] for index in at], [batch.ids[index] for index in at]
        return InvalidRecordsError(self.stream, batch.lane.consumer, keys, ids, message or "no reason given")

    def superseded(self, why: str) -> None:
        """The authority or the master says that this process has a successor."""
        self.failed = self.failed or InjectorSupersededError(self.stream, self.process, why)

    def observed(self, watermarks: Mapping[str, int]) -> None:
        """Broadcast low watermarks by computation, microseconds."""
        self._watermarks.update(watermarks)

    def tick(self, now: int) -> list[Instruction]:
        """Do what is due by ``now``."""
        self._alarm_at = None
        self._sending.resend_overdue(now)
        return self._pumped(self._sending.busy_lanes(), now)

    def _pumped(self, lanes: Mapping[Lane, None], now: int) -> list[Instruction]:
        if self.failed is not None:
            return []
        self.published()
        out: list[Instruction] = []
        for lane in lanes:
            alarm = self._sending.pump(lane, now, out)
            if alarm is not None:
                self._alarm(alarm)
        overdue = self._sending.overdue_at()
        if overdue is not None:
            self._alarm(overdue)
        return out

    def _alarm(self, at: int) -> None:
        # The earliest is enough: the tick that it leads to finds the later ones again.
        if self._alarm_at is None or at < self._alarm_at:
            self._alarm_at = at


def _cut(columns: Columns, count: int) -> Columns:
    """The first ``count`` records."""
    part = slice(count)
    return Columns(columns.values[part], columns.timestamps[part], {}, columns.scope, columns.ids[part])


def _extremes(timestamps: Sequence[int]) -> tuple[int, int]:
    """The least and the largest of some timestamps; UsageError unless all are whole microseconds, as messages hold."""
    try:
        whole = array("q", timestamps)
    except (TypeError, OverflowError) as error:
        raise UsageError(f"a record's timestamp is a whole number of microseconds: {error}") from error
    oldest, newest = min(whole), max(whole)
    if oldest <= MIN_TIMESTAMP or newest >= MAX_TIMESTAMP:
        raise UsageError("a record's timestamp is a time in microseconds, not an infinity")
    return oldest, newest
