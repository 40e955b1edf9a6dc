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
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import lt
from typing import Any, Final, assert_never

from millwheel.client.injector.errors import (
    InjectorClosedError,
    InjectorError,
    InjectorSupersededError,
    InvalidRecordsError,
    RecordsLeftError,
    StreamDrainingError,
)
from millwheel.client.injector.ids import IdKind, IdScope, falling
from millwheel.client.injector.messages import (
    Connect,
    ConnectionLost,
    ConnectionOpened,
    DeliveryAnswered,
    Disconnect,
    EffectlessEvent,
    EndDeclared,
    IdleDeclared,
    IdleEnded,
    InjectorEffect,
    InjectorEvent,
    KeyedRecords,
    KeysFound,
    Limits,
    ProcessSuperseded,
    PublicationStarted,
    Published,
    PublishWatermark,
    RoutingArrived,
    SessionFailed,
    Tick,
    WatermarkDeclared,
    WatermarkReached,
    WatermarksBroadcast,
    WritesPending,
)
from millwheel.client.injector.outbound import earlier
from millwheel.client.injector.outbound_queue import InjectedAttempt, OutboundQueue
from millwheel.client.injector.publication import Publication
from millwheel.client.injector.rerouting import Rerouting
from millwheel.client.injector.resend_policy import ResendingQueues
from millwheel.client.injector.routing import StreamRouting
from millwheel.client.injector.unkeyed import UnkeyedRecords
from millwheel.model.core_protocol import RisingValues, require
from millwheel.model.outbound import AnswerKind, answer_kind
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.columns import RecordColumns
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.sdk.errors import UsageError

__all__ = ["InjectorCore"]

_SHARING: Final = 25
"""So many consumers share the window. With more of them it grows: each has a share of this size."""


class InjectorCore:
    """One injector process of one stream, from the allocation of its sequencer to its end.

    Driven as :class:`millwheel.model.core_protocol.Core` says, by any steady clock.

    It has many attributes: six are counts for drivers and operators (``accepted``, ``acked``, ``known``, ``late``,
    ``newest``, ``refused``).
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
        self.acked = self.known = 0
        """ACKs received so far, one for each record and consumer; those for records that had taken effect before."""
        self.refused: defaultdict[DeliveryOutcome.ValueType, int] = defaultdict(int)
        """Refusals of deliveries so far. Their records are sent again."""
        self.outbound = ResendingQueues(self.limits, chance)
        self.outbound.watermark = watermark
        self._rerouting = Rerouting(self.outbound, self.unkeyed)
        self._positions: dict[IdScope, int] = {}
        """The last accepted position of each scope."""
        self._gapless: dict[IdScope, int] = {}
        """By scope: from this position to the last accepted one, a record was accepted at each."""
        self._alarm_at: int | None = None
        self._watermarks: dict[str, int] = {}
        self._rising = RisingValues()

    # State and admission.

    @property
    def unacked(self) -> int:
        """Un-ACKed records. A record counts once for each consumer that has not ACKed it."""
        return self.outbound.records + self.unkeyed.records

    @property
    def unacked_bytes(self) -> int:
        """The total size of the values in ``unacked``, in bytes."""
        return self.outbound.size + self.unkeyed.bytes

    @property
    def window(self) -> int:
        """The most un-ACKed records, a record counted once for each consumer (G13).

        Each consumer has room for a part of ``window_records``, however many there are: otherwise each would get small
        deliveries. The bytes of values are bounded in any case, by ``window_bytes``: with large values it has effect
        first. They count once for each consumer, too: a delivery to one may keep them when all others are ACKed.
        """
        window = self.limits.window_records
        consumers = 0 if self.routing is None else len(self.routing.consumers)
        return window if consumers <= _SHARING else window * consumers // _SHARING

    def room(self) -> int:
        """How many records may be accepted now (G13)."""
        routing = self.routing
        if routing is None or self.unacked_bytes >= self.limits.window_bytes:
            return 0
        per_record = max(1, len(routing.consumers))
        free = (self.window - self.unacked) // per_record
        return max(free, 0 if self.unacked else 1)

    def fits(self, count: int) -> bool:
        """Whether so many records may be accepted together: if there is room for them, or for half of the window (G13).

        Many records of a call need not wait until others are ACKed: one of those may be un-ACKed for ever.
        """
        consumers = len(self.routing.consumers) if self.routing is not None else 0
        half = self.window // max(1, consumers) // 2
        return self.room() >= max(1, min(count, half))

    def refills(self, count: int) -> bool:
        """Whether a sender that waits for room goes on: an eighth of the window is free, or all that it asks for.

        Each ACK of one consumer frees little. If that let a sender go on, a stream with many consumers would get
        batches of a few records for ever, because each of those makes ACKs of as few.
        """
        consumers = len(self.routing.consumers) if self.routing is not None else 0
        return self.fits(max(count, self.window // max(1, consumers) // 8))

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
        return newest - low > routing.allowed_skew and self.publication.published.watermark > low

    @property
    def published(self) -> Published:
        """The watermark that this process may publish now. The value never falls."""
        return self.publication.published

    def oldest_unacked(self) -> int:
        """A lower bound on the numbers of un-ACKed records. MAX_TIMESTAMP if every record is ACKed."""
        oldest = self.outbound.oldest_number()
        return min(oldest, self.unkeyed.oldest_number()) if self.unkeyed.records else oldest

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
        return min(self.outbound.oldest_position(scope, last + 1), self.unkeyed.oldest_position(scope, last + 1))

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
            case KeyedRecords():
                out = self._on_records(event, now)
            case DeliveryAnswered():
                out = self._on_answer(event, now)
            case Tick():
                out = self._on_tick(now)
            case KeysFound():
                out = self._pumped(self._rerouting.find_keys(event, self.routing, now), now)
            case ConnectionOpened():
                out = self._pumped(self.outbound.connected(event.address), now)
            case RoutingArrived():
                out = self._on_routing(event.routing, now)
            case ConnectionLost() | WritesPending() | WatermarksBroadcast() | ProcessSuperseded() | SessionFailed():
                self._on_effectless(event)
                return []
            case _:
                self._on_publication(event)
                out = []
        if (unreported := self.publication.take_unreported()) is not None:
            out.append(PublishWatermark(unreported))
        return out

    def next_deadline(self) -> int | None:
        """The time by which a ``Tick`` must come. None: nothing waits for a time."""
        return self._alarm_at

    def check_invariants(self) -> None:
        """Check the core's invariants. Raises InvariantError."""
        outbound, value = self.outbound, self.publication.value
        self._rising.check(accepted=self.accepted, late=self.late, acked=self.acked, newest=self.newest)
        self._rising.check(published=value, declared=self.publication.declared)
        open_records = sum(batch.count() for queue in outbound.queues() for batch in queue.all_batches())
        require(outbound.records == open_records, "each un-ACKed record is in an outbound batch, once (G1)")
        require(outbound.size >= 0 and (outbound.size == 0 or open_records > 0), "its bytes are balanced (G13)")
        oldest = min(outbound.oldest_timestamp(), self.unkeyed.oldest_timestamp())
        require(self.publication.oldest_unacked == oldest, "the oldest un-ACKed timestamp is known (G7)")
        require(value <= oldest or self.late > 0, "only a late record is below the published watermark (G7)")
        require(self.unacked > 0 or self.oldest_unacked() == MAX_TIMESTAMP, "the oldest un-ACKed record is one (G1)")

    def _on_effectless(self, event: EffectlessEvent) -> None:
        match event:
            case ConnectionLost():
                self.outbound.disconnected(event.address)
            case WritesPending():
                self.outbound.unwritten = event.tokens
            case WatermarksBroadcast():
                self._watermarks.update(event.values)
            case ProcessSuperseded():
                self.failed = self.failed or InjectorSupersededError(self.stream, self.process, event.why)
            case _:
                self.failed = self.failed or event.error

    def _on_publication(
        self,
        event: PublicationStarted | WatermarkDeclared | IdleDeclared | IdleEnded | WatermarkReached | EndDeclared,
    ) -> None:
        publication = self.publication
        match event:
            case WatermarkDeclared():
                publication.declare(event.watermark)
            case IdleDeclared():
                publication.idling = not publication.finishing
            case IdleEnded():
                publication.idling = False
            case EndDeclared():
                publication.finishing, publication.idling = True, False
            case PublicationStarted():
                publication.declare(event.watermark)
                publication.raise_to(event.watermark)
            case WatermarkReached():
                publication.raise_to(event.watermark)
            case _:
                assert_never(event)
        self.outbound.watermark = publication.update().watermark

    # Events.

    def _on_records(self, columns: KeyedRecords, now: int) -> list[InjectorEffect]:
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
        oldest, newest = _extremes(columns)
        if columns.scope.kind is IdKind.POSITION:
            self.check_positions(columns.scope, columns.ids)
            self._note_positions(columns.scope, columns.ids)
        if oldest < self.publication.value:
            self.late += sum(timestamp < self.publication.value for timestamp in columns.timestamps)
        self.newest = max(self.newest, newest)
        first, self.accepted = self.accepted, self.accepted + count
        queues: dict[OutboundQueue, None] = {}
        for name, consumer in self.routing.consumers.items():
            keys = columns.keys[name]
            if len(keys) == count and not (self.unkeyed.records and self.unkeyed.blocked(name, columns.scope)):
                gapless = self._gapless.get(columns.scope, 0)
                queues |= self.outbound.distribute(consumer, columns, keys, first, now, gapless=gapless)
            else:
                queues |= self._rerouting.accept_unkeyed(consumer, columns, keys, first, now)
        return self._pumped(queues, now)

    def _note_positions(self, scope: IdScope, ids: Sequence[Any]) -> None:
        before, first, last = self._positions.get(scope, -1), ids[0], ids[-1]
        if last - first != len(ids) - 1:
            self._gapless[scope] = last
        elif first != before + 1 or scope not in self._gapless:
            self._gapless[scope] = first
        self._positions[scope] = last

    def check_positions(self, scope: IdScope, ids: Sequence[Any]) -> None:
        """Raise UsageError unless these positions rise and are above every accepted position of ``scope``."""
        before = self._positions.get(scope, -1)
        if isinstance(ids, range) and ids.step == 1 and before < ids.start and ids.stop <= 1 << 64:
            return
        try:
            array("Q", ids)
        except (TypeError, OverflowError) as error:
            raise UsageError(f"positions of {scope.name!r} are whole numbers of 0 to 2^64 - 1: {error}") from error
        if ids[0] <= before or not all(map(lt, ids, ids[1:])):
            one, after = next((one, after) for one, after in pairwise((before, *ids)) if after <= one)
            raise falling(scope, after, one)

    def _on_routing(self, routing: StreamRouting, now: int) -> list[InjectorEffect]:
        """Replace the routing. A routing that is older than the current one is ignored."""
        if self.routing is not None and routing.revision < self.routing.revision:
            return []
        self.routing = routing
        self.outbound.ranges = routing.position_ranges
        left = self._rerouting.left_behind(routing, self.accepted)
        if left is not None:
            self.failed = self.failed or RecordsLeftError(self.stream, left)
            return []
        self._watermarks = {name: mark for name, mark in self._watermarks.items() if name in routing.consumers}
        gone, new = self.outbound.link_to(routing.addresses())
        queues = self._rerouting.reroute(routing, self.accepted, now)
        return [*map(Disconnect, gone), *map(Connect, new), *self._pumped(queues, now)]

    def _on_answer(self, event: DeliveryAnswered, now: int) -> list[InjectorEffect]:
        return [effect for token in event.tokens for effect in self._apply_answer(token, event, now)]

    def _apply_answer(self, token: int, event: DeliveryAnswered, now: int) -> list[InjectorEffect]:
        outcome, indexes, message = event.outcome, event.indexes, event.message
        attempt = self.outbound.find_attempt(token)
        if attempt is None or self.failed is not None:
            return []
        queue = attempt.batch.queue
        kind = answer_kind(outcome)
        if kind is AnswerKind.ACKED:
            before = self.outbound.records
            self.outbound.acked(attempt, indexes)
            self.acked += before - self.outbound.records
            if message and attempt.batch.tries == 1:  # a repeated batch may find its own first attempt
                self.known += before - self.outbound.records
        elif kind is AnswerKind.FULL or kind is AnswerKind.REFUSED:
            self.refused[outcome] += 1
            if outcome == DeliveryOutcome.DELIVERY_OUTCOME_NO_COLUMNS:
                self.outbound.without_columns.add(attempt.address)
            self.outbound.refused(attempt, kind, indexes, now)
        elif kind is AnswerKind.SUPERSEDED:
            self.failed = InjectorSupersededError(self.stream, self.process, message or "a worker knows of it")
        else:
            self.failed = self._invalid(attempt, message)
        return self._pumped({queue: None}, now)

    def _invalid(self, attempt: InjectedAttempt, message: str) -> InjectorError:
        batch = attempt.batch
        at = sorted(attempt.open())
        keys, ids = [batch.keys[index] for index in at], [batch.ids[index] for index in at]
        return InvalidRecordsError(self.stream, batch.queue.consumer, keys, ids, message or "no reason given")

    def _on_tick(self, now: int) -> list[InjectorEffect]:
        """Do everything that is due by ``now``."""
        self._alarm_at = None
        self.outbound.resend_overdue(now)
        return self._pumped(self.outbound.busy_queues(), now)

    def _pumped(self, queues: Mapping[OutboundQueue, None], now: int) -> list[InjectorEffect]:
        """Send what is due in ``queues``, and set the next alarm, after records were accepted, ACKed or discarded."""
        oldest = self.outbound.oldest_timestamp()
        if self.unkeyed.records:
            oldest = min(oldest, self.unkeyed.oldest_timestamp())
        self.publication.oldest_unacked = oldest
        self.outbound.watermark = self.publication.update().watermark
        if self.failed is not None:
            return []
        out: list[InjectorEffect] = []
        for queue in queues:
            sends, alarm = self.outbound.pump(queue, now)
            out += sends
            self._alarm_at = earlier(self._alarm_at, alarm)
        # The earliest alarm is enough: the tick at that time computes the later ones again.
        self._alarm_at = earlier(self._alarm_at, self.outbound.overdue_at())
        return out


def _extremes(columns: KeyedRecords) -> tuple[int, int]:
    """The least and the largest timestamp, in microseconds.

    Raises:
        UsageError: A timestamp is not an integer, does not fit into 64 bits, or is an infinity.
    """
    if isinstance(columns.values, RecordColumns):
        oldest, newest = columns.values.extremes()
    else:
        try:
            whole = array("q", columns.timestamps)
        except (TypeError, OverflowError) as error:
            raise UsageError(f"a record's timestamp is a whole number of microseconds: {error}") from error
        oldest, newest = min(whole), max(whole)
    if oldest <= MIN_TIMESTAMP or newest >= MAX_TIMESTAMP:
        raise UsageError("a record's timestamp is a time in microseconds, not an infinity")
    return oldest, newest
