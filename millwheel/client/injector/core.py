"""The client side of injection as a pure state machine (sections 5.2, 6.1.1, 8.4).

Events go in: records, routing, answers, connections and the time. Effects come out
(:mod:`millwheel.model.core_protocol`).

Guarantee: every accepted record is delivered at least once to the owner of its key at each consumer, until the
owner ACKs it. Every delivery has the same id and the same bytes, so receivers can drop duplicates (exactly once).

Invariant: the published watermark is never above the timestamp of an un-ACKed record, except for a record that was
already late when it was accepted.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from operator import lt
from typing import Any, assert_never

from millwheel.client.injector.errors import (
    InjectorClosedError,
    InjectorError,
    InjectorSupersededError,
    InvalidRecordsError,
    RecordsLeftError,
    StreamDrainingError,
)
from millwheel.client.injector.ids import IdKind, IdScope
from millwheel.client.injector.lanes import Flight, InjectedBatch, Lane
from millwheel.client.injector.messages import (
    Columns,
    Connect,
    ConnectionLost,
    ConnectionOpened,
    DeliveryAnswered,
    Disconnect,
    EndDeclared,
    IdleDeclared,
    IdleEnded,
    InjectorEffect,
    InjectorEvent,
    KeysFound,
    Limits,
    ProcessSuperseded,
    PublicationStarted,
    PublishWatermark,
    RoutingArrived,
    SessionFailed,
    Tick,
    WatermarkDeclared,
    WatermarkReached,
    WatermarksBroadcast,
)
from millwheel.client.injector.publication import Publication, Published
from millwheel.client.injector.routing import ConsumerRouting, Route, StreamRouting
from millwheel.client.injector.sending import OutboundBatches
from millwheel.client.injector.unkeyed import UnkeyedRecords, WaitingRecord
from millwheel.model.core_protocol import RisingValues, require
from millwheel.model.outbound import AnswerKind, answer_kind
from millwheel.model.sketch import TimestampSketch
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.watermarks import PendingWork
from millwheel.sdk.errors import UsageError

__all__ = ["InjectorCore"]


class InjectorCore:
    """One injector process of one stream, from the allocation of its sequencer to its end.

    Driven as :class:`millwheel.model.core_protocol.Core` says, by any steady clock.
    """

    def __init__(
        self,
        stream: str,
        process: str,
        *,
        watermark: int = MIN_TIMESTAMP,
        limits: Limits | None = None,
        chance: Callable[[], float] = lambda: 0.5,
    ) -> None:
        """Create the core.

        Args:
            stream: The stream that the injector feeds.
            process: The name of this process.
            watermark: The watermark that this process has already published, in microseconds.
            limits: Bounds on batches and on un-ACKed records.
            chance: Returns numbers in [0, 1), used as jitter.
        """
        self.stream = stream
        self.process = process
        self.limits = limits or Limits()
        self.routing: StreamRouting | None = None
        self.failed: InjectorError | None = None
        self.publication = Publication(watermark)
        self.accepted = 0
        """Records accepted so far. Record number n is the n-th of them, counted from 0."""
        self.late = 0
        """Accepted records that were behind the published watermark."""
        self.newest: int = MIN_TIMESTAMP
        """The largest timestamp of an accepted record, in microseconds."""
        self.unkeyed = UnkeyedRecords()
        """Records that wait for their keys at a consumer."""
        self.acked = 0
        """ACKs received so far, one for each record and consumer."""
        self._sending = OutboundBatches(self.limits, self.publication, chance)
        self._alarm_at: int | None = None
        self._positions: dict[IdScope, int] = {}
        """The last accepted position of each sequence."""
        self._watermarks: dict[str, int] = {}
        self._came_at: dict[str, int] = {}
        """By consumer: the value of ``accepted`` when the consumer joined. Only later records are sent to it."""
        self._published = Published(watermark, False)
        self._reported: Published | None = None
        """The last watermark in an effect."""
        self._rising = RisingValues()

    # State and admission.

    @property
    def unacked(self) -> int:
        """Un-ACKed records. A record counts once for each consumer that has not ACKed it."""
        return self._sending.records + self.unkeyed.records

    @property
    def unacked_bytes(self) -> int:
        """The total size of the values in ``unacked``, in bytes."""
        return self._sending.size + self.unkeyed.bytes

    def unacked_records(self) -> int:
        """Records that at least one consumer has not ACKed, each counted once."""
        found: dict[IdScope, set[Any]] = {}
        for lane in self._sending.lanes():
            ids = found.setdefault(lane.scope, set())
            for batch in lane.all_batches():
                ids.update(batch.ids[at] for at in batch.indexes())
        for scope, waiting in self.unkeyed.ids():
            found.setdefault(scope, set()).update(waiting)
        return sum(map(len, found.values()))

    def unacked_by_consumer(self) -> dict[str, int]:
        """The number of un-ACKed records of each consumer. A consumer without any is left out."""
        found = {name: count for name, (count, _) in self.unkeyed.consumers().items()}
        for lane in self._sending.lanes():
            count = sum(batch.count() for batch in lane.all_batches())
            if count:
                found[lane.consumer] = found.get(lane.consumer, 0) + count
        return found

    def oldest_route(self, consumer: str) -> Route | None:
        """The interval of ``consumer`` that the oldest outbound record goes to. None if no record is outbound."""
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
        """Whether a record with the timestamp ``newest`` has to wait for the low watermark (8.4).

        The low watermark is the least of the consumers' low watermarks. If it waits for this process's own published
        value, the process is not throttled: no other process can raise that value, so throttling would be a deadlock.
        """
        routing = self.routing
        if routing is None or not routing.allowed_skew:
            return False
        low = min(
            (self._watermarks.get(name, MIN_TIMESTAMP) for name, to in routing.consumers.items() if not to.log),
            default=MAX_TIMESTAMP,
        )
        return newest - low > routing.allowed_skew and self._published.watermark > low

    @property
    def published(self) -> Published:
        """The watermark that this process may publish now. The value never falls."""
        return self._published

    def _update_published(self) -> None:
        oldest = min(self._sending.oldest_timestamp(), self.unkeyed.oldest_timestamp())
        self._published = self.publication.update(oldest)

    def pending_work(self) -> PendingWork:
        """The timestamps of un-ACKed records, one for each consumer, and the newest accepted timestamp (7.2)."""
        sketch = TimestampSketch()
        for lane in self._sending.lanes():
            for batch in lane.all_batches():
                sketch.add((batch.timestamps[index], 1) for index in batch.indexes())
        sketch.add((timestamp, 1) for timestamp in self.unkeyed.timestamps())
        return PendingWork(sketch, self.newest)

    def oldest_unacked(self) -> int:
        """A lower bound on the numbers of un-ACKed records. MAX_TIMESTAMP if every record is ACKed."""
        return min(self._sending.oldest_number(), self.unkeyed.oldest_number(MAX_TIMESTAMP))

    def flushed(self, accepted: int) -> bool:
        """Whether every consumer has ACKed the first ``accepted`` records."""
        return self.oldest_unacked() >= accepted

    def acknowledged(self, scope: IdScope) -> int | None:
        """The position to restart a source from: every lower position of ``scope`` is ACKed.

        None if no record of ``scope`` was accepted.
        """
        last = self._positions.get(scope)
        if last is None:
            return None
        return min(self._sending.oldest_position(scope, last + 1), self.unkeyed.oldest_position(scope, last + 1))

    def check_open(self) -> None:
        """Raise an InjectorError if this process cannot accept records."""
        if self.failed is not None:
            raise self.failed
        if self.publication.finishing:
            raise InjectorClosedError(f"injector process {self.process!r} of stream {self.stream!r} has finished")
        if self.routing is not None and self.routing.draining:
            raise StreamDrainingError(self.stream)

    # The protocol.

    def step(self, event: InjectorEvent, now: int) -> Sequence[InjectorEffect]:
        """Process ``event`` at the time ``now``, in microseconds.

        Raises:
            UsageError: Positions of records do not rise, or a consumer has no column of keys.
            InjectorError: Records came, and this process does not accept records any more.
        """
        match event:
            case Columns():
                out = self._on_records(event, now)
            case DeliveryAnswered():
                out = self._on_answer(event, now)
            case Tick():
                out = self._on_tick(now)
            case KeysFound():
                out = self._on_keys(event, now)
            case ConnectionOpened():
                out = self._pumped(self._sending.connected(event.address), now)
            case ConnectionLost():
                self._sending.disconnected(event.address)
                return []
            case RoutingArrived():
                out = self._on_routing(event.routing, now)
            case WatermarksBroadcast():
                self._watermarks.update(event.values)
                return []
            case ProcessSuperseded():
                self.failed = self.failed or InjectorSupersededError(self.stream, self.process, event.why)
                return []
            case SessionFailed():
                self.failed = self.failed or event.error
                return []
            case _:
                out = self._on_publication(event)
        if self._published != self._reported:
            self._reported = self._published
            out.append(PublishWatermark(self._published))
        return out

    def next_deadline(self) -> int | None:
        """The time by which a ``Tick`` must come. None: nothing waits for a time."""
        return self._alarm_at

    def check_invariants(self) -> None:
        """Check the core's invariants. Raises InvariantError."""
        sending, value = self._sending, self.publication.value
        self._rising.check(accepted=self.accepted, late=self.late, acked=self.acked, newest=self.newest)
        self._rising.check(published=value, declared=self.publication.declared)
        open_records = sum(batch.count() for lane in sending.lanes() for batch in lane.all_batches())
        require(sending.records == open_records, "each un-ACKed record is in an outbound batch, once (G1)")
        require(sending.size >= 0 and (sending.size == 0 or open_records > 0), "its bytes are balanced (G13)")
        oldest = min(sending.oldest_timestamp(), self.unkeyed.oldest_timestamp())
        require(value <= oldest or self.late > 0, "only a late record is below the published watermark (G7)")
        require(self.unacked > 0 or self.oldest_unacked() == MAX_TIMESTAMP, "the oldest un-ACKed record is one (G1)")

    def _on_publication(
        self,
        event: PublicationStarted | WatermarkDeclared | IdleDeclared | IdleEnded | WatermarkReached | EndDeclared,
    ) -> list[InjectorEffect]:
        publication = self.publication
        match event:
            case PublicationStarted():
                publication.start(event.watermark)
            case WatermarkDeclared():
                publication.declare(event.watermark)
            case IdleDeclared():
                publication.idle()
            case IdleEnded():
                publication.wake()
            case WatermarkReached():
                publication.raise_to(event.watermark)
            case EndDeclared():
                publication.finish()
            case _:
                assert_never(event)
        self._update_published()
        return []

    # Events.

    def _on_records(self, columns: Columns, now: int) -> list[InjectorEffect]:
        """Accept records.

        Invariant: positions rise strictly within their sequence. A receiver treats every position below its ACK mark as
        processed, so a lower position that came later would be dropped as a duplicate.
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
        """Make the records from ``start`` on wait in ``unkeyed``, together with those of their keys that are known."""
        rows = enumerate(zip(columns.ids, columns.values, columns.timestamps, strict=True))
        records = [
            WaitingRecord(first + at, id_, value, timestamp, keys[at] if at < len(keys) else None)
            for at, (id_, value, timestamp) in rows
            if at >= start
        ]
        self.unkeyed.hold(consumer, columns.scope, records, columns.unkeyed.get(consumer, ""))

    def _on_keys(self, event: KeysFound, now: int) -> list[InjectorEffect]:
        """Send the first records of the event's head under its keys."""
        head, keys = event.head, event.keys
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
            self.unkeyed.explain(head.consumer, head.scope, event.why)
        return self._pumped(lanes, now)

    def check_positions(self, scope: IdScope, ids: Sequence[Any]) -> None:
        """Raise UsageError unless these positions rise and are above every accepted position of ``scope``."""
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
        """Append records to the outbound queues of their keys' intervals. Adds those queues to ``lanes``."""
        for route, picks in consumer.group(keys):
            lane = self._sending.lane(consumer.incarnation, columns.scope, route)
            values, timestamps, ids = columns.values, columns.timestamps, columns.ids
            if picks is None:
                self._sending.fill(lane, keys, values, timestamps, ids, first, now)
            else:
                pick = [[column[index] for index in picks] for column in (keys, values, timestamps, ids)]
                self._sending.fill(lane, pick[0], pick[1], pick[2], pick[3], first, now)  # type: ignore[arg-type]
            lanes[lane] = None

    def _on_routing(self, routing: StreamRouting, now: int) -> list[InjectorEffect]:
        """Replace the routing. A routing that is older than the current one is ignored.

        Un-ACKed records are sent again to the current owners of their keys. A consumer that joins gets only records
        that are accepted from now on. A consumer that left gets nothing more, and its un-ACKed records are discarded.
        Discarding is safe only if a remaining consumer was also sent those records. Otherwise no consumer has
        processed them, so the process fails.
        """
        if self.routing is not None and routing.revision < self.routing.revision:
            return []
        left = self._left(routing)
        self.routing = routing
        if left is not None:
            self.failed = self.failed or RecordsLeftError(self.stream, left)
            return []
        self._came_at = {name: self._came_at.get(name, self.accepted) for name in routing.consumers}
        self._watermarks = {name: mark for name, mark in self._watermarks.items() if name in routing.consumers}
        for name in self.unkeyed.consumers().keys() - routing.consumers.keys():
            self.unkeyed.forget(name)
        out = self._connections(routing)
        lanes: dict[Lane, None] = {}
        homeless: dict[tuple[str, IdScope], list[InjectedBatch]] = {}
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

    def _left(self, routing: StreamRouting) -> str | None:
        """Find a removed consumer whose un-ACKed records no remaining consumer was sent. None if there is none.

        A remaining consumer was sent a record only if it had joined before the record was accepted. Logs do not count
        as remaining consumers. While the stream drains, no consumer counts. The caller must fail in this case: neither
        a watermark nor an ACK may claim that such records were processed.
        """
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

    def _connections(self, routing: StreamRouting) -> list[InjectorEffect]:
        wanted = {route.address for consumer in routing.consumers.values() for route in consumer.routes}
        wanted.discard("")
        gone, new = self._sending.link_to(wanted)
        return [*map(Disconnect, gone), *map(Connect, new)]

    def _rehouse(
        self, consumer: ConsumerRouting, scope: IdScope, batches: list[InjectedBatch], now: int, lanes: dict[Lane, None]
    ) -> None:
        """Move un-ACKed records of intervals that were split or merged to the queues of the new intervals."""
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

    def _on_answer(self, event: DeliveryAnswered, now: int) -> list[InjectorEffect]:
        out: list[InjectorEffect] = []
        for token in event.tokens:
            out += self._on_answered(token, event, now)
        return out

    def _on_answered(self, token: int, event: DeliveryAnswered, now: int) -> list[InjectorEffect]:
        outcome, indexes, message = event.outcome, event.indexes, event.message
        flight = self._sending.flight(token)
        if flight is None or self.failed is not None:
            return []
        lane = flight.batch.lane
        kind = answer_kind(outcome)
        if kind is AnswerKind.ACKED:
            before = self._sending.records
            self._sending.acked(flight, indexes)
            self.acked += before - self._sending.records
        elif kind is AnswerKind.FULL or kind is AnswerKind.REFUSED:
            self._sending.refused(flight, kind, indexes, now)
        elif kind is AnswerKind.SUPERSEDED:
            self.failed = InjectorSupersededError(self.stream, self.process, message or "a worker knows of it")
        else:
            self.failed = self._invalid(flight, message)
        return self._pumped({lane: None}, now)

    def _invalid(self, flight: Flight, message: str) -> InjectorError:
        batch = flight.batch
        at = sorted(flight.open())
        keys, ids = [batch.keys[index] for index in at], [batch.ids[index] for index in at]
        return InvalidRecordsError(self.stream, batch.lane.consumer, keys, ids, message or "no reason given")

    def _on_tick(self, now: int) -> list[InjectorEffect]:
        """Do everything that is due by ``now``."""
        self._alarm_at = None
        self._sending.resend_overdue(now)
        return self._pumped(self._sending.busy_lanes(), now)

    def _pumped(self, lanes: Mapping[Lane, None], now: int) -> list[InjectorEffect]:
        """Send what is due in the queues ``lanes``, and set the next alarm."""
        self._update_published()
        if self.failed is not None:
            return []
        out: list[InjectorEffect] = []
        for lane in lanes:
            alarm = self._sending.pump(lane, now, out)
            if alarm is not None:
                self._alarm(alarm)
        overdue = self._sending.overdue_at()
        if overdue is not None:
            self._alarm(overdue)
        return out

    def _alarm(self, at: int) -> None:
        # The earliest alarm is enough: the tick at that time computes the later ones again.
        if self._alarm_at is None or at < self._alarm_at:
            self._alarm_at = at


def _cut(columns: Columns, count: int) -> Columns:
    """The first ``count`` records of ``columns``, without keys."""
    part = slice(count)
    return Columns(columns.values[part], columns.timestamps[part], {}, columns.scope, columns.ids[part])


def _extremes(timestamps: Sequence[int]) -> tuple[int, int]:
    """The least and the largest timestamp, in microseconds.

    Raises:
        UsageError: A timestamp is not an integer, does not fit into 64 bits, or is an infinity.
    """
    try:
        whole = array("q", timestamps)
    except (TypeError, OverflowError) as error:
        raise UsageError(f"a record's timestamp is a whole number of microseconds: {error}") from error
    oldest, newest = min(whole), max(whole)
    if oldest <= MIN_TIMESTAMP or newest >= MAX_TIMESTAMP:
        raise UsageError("a record's timestamp is a time in microseconds, not an infinity")
    return oldest, newest
