"""The un-ACKed records of an injector: how batches are filled, sent and ACKed (section 6.1.1). Pure.

The queues, batches and delivery attempts are in :mod:`millwheel.client.injector.outbound_queue`.
:mod:`millwheel.client.injector.resend_policy` decides what is sent again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, Final

from millwheel.client.injector.column_division import DELIVERY_BYTES, divided
from millwheel.client.injector.ids import IdScope
from millwheel.client.injector.messages import KeyedRecords, Limits, SendBatch
from millwheel.client.injector.outbound_queue import InjectedAttempt, InjectedBatch, OutboundQueue
from millwheel.client.injector.routing import ConsumerRouting, Route
from millwheel.model.incarnation import IncarnationId
from millwheel.model.outbound import AnswerKind, UnackedBatches
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.model.watermarks import MinTracker
from millwheel.rpc.column_keys import ColumnKeys
from millwheel.rpc.columns import RecordColumns

__all__ = ["OutboundQueues", "earlier"]

_NEVER: Final = 1 << 64
"""Above all positions."""
_MANY_BYTES: Final = DELIVERY_BYTES // 2
"""A batch of columns with so many bytes gathers no further ones: a larger delivery costs hardly less a record."""


class OutboundQueues:
    """All outbound queues and their attempts: it fills batches, sends them and takes ACKs.

    It has many attributes: each is a bound, a total, or an index of the batches and attempts.

    Invariant: ``_unacked`` and ``_numbers`` have one entry for each sealed batch that is not completely ACKed.
    Invariant: ``_busy`` contains every queue that has a batch to send or a batch that is being filled.
    Invariant: an attempt is in ``_attempts``, in its batch's list and in its address's list, or in none of them.
    Invariant: a batch in flight waits for an answer (``_awaiting``), or a copy of it is in its queue's ``to_send``.
    """

    def __init__(self, limits: Limits, waits: Sequence[int]) -> None:
        """``waits``: how long a batch may be without an answer, by its copies so far, in microseconds."""
        self.watermark: int = MIN_TIMESTAMP
        """The published watermark, in microseconds. Each delivery carries it."""
        self.ranges = False
        """Whether receivers take deliveries with complete positions."""
        self.without_columns: set[str] = set()
        """The addresses whose workers have answered that they read no columns."""
        self.resent = 0
        """Records of repeated delivery attempts so far."""
        self._unacked = UnackedBatches[InjectedBatch]()
        """The sealed batches."""
        self._filled_records = 0
        self._filled_bytes = 0
        """The content of the batches that are being filled."""
        self._limits = limits
        self._queues: dict[tuple[IncarnationId, IdScope, str], OutboundQueue] = {}
        self._busy: dict[OutboundQueue, None] = {}
        self._filling: dict[OutboundQueue, None] = {}
        self._links: dict[str, dict[int, None] | None] = {}
        """By address: the tokens of its delivery attempts. None while the address is not connected."""
        self._attempts: dict[int, InjectedAttempt] = {}
        self._waits = waits
        self._awaiting: list[dict[InjectedBatch, int]] = [{} for _ in waits]
        """By number of copies: since when each batch waits for an answer, in microseconds. The times rise."""
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
        return min([self._unacked.held.min(), *(queue.filling.held for queue in self._filling if queue.filling)])

    def oldest_number(self) -> int:
        """A lower bound on the numbers of un-ACKed records. MAX_TIMESTAMP if every record is ACKed."""
        return min([self._numbers.min(), *(queue.filling.first for queue in self._filling if queue.filling)])

    def queues(self) -> list[OutboundQueue]:
        """A copy of the list of all queues."""
        return list(self._queues.values())

    def busy_queues(self) -> dict[OutboundQueue, None]:
        """A copy of the set of queues that have something to send."""
        return dict(self._busy)

    def find_attempt(self, token: int) -> InjectedAttempt | None:
        """The delivery attempt with this token. None if the attempt is over."""
        return self._attempts.get(token)

    # Filling.

    def _queue(self, consumer: IncarnationId, scope: IdScope, route: Route) -> OutboundQueue:
        """The queue for records of ``scope`` that go to the interval of ``route``. Created if it does not exist."""
        key = (consumer, scope, route.journal)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = OutboundQueue(consumer, scope, route, self._limits.max_in_flight)
        return queue

    def distribute(
        self,
        consumer: ConsumerRouting,
        columns: KeyedRecords,
        keys: Sequence[bytes],
        first: int,
        now: int,
        accepted: tuple[int, int] | None = None,
        gapless: int = _NEVER,
    ) -> dict[OutboundQueue, None]:
        """Append records to the queues of their keys' intervals. Returns those queues.

        ``keys``: the records' keys at ``consumer``. ``first``: a lower bound on the records' numbers. ``accepted``:
        when the oldest and the newest one were accepted. None: now. ``gapless``: the process has accepted a record at
        each position from this one to the last of these, and none of them goes to this consumer later or has gone to
        other queues than of these intervals. By default this is not stated of any position.
        """
        accepted = accepted or (now, now)
        queues: dict[OutboundQueue, None] = {}
        if isinstance(keys, ColumnKeys) and isinstance(columns.values, RecordColumns):
            for at, part, part_ids in divided(keys.records, consumer.starts, columns.ids):
                queue = self._queue(consumer.incarnation, columns.scope, consumer.routes[at])
                self._put(queue, part, part_ids, first, accepted, gapless)
                queues[queue] = None
            return queues
        for at, picks in _by_interval(consumer.starts, keys):
            queue = self._queue(consumer.incarnation, columns.scope, consumer.routes[at])
            values, timestamps, ids = columns.values, columns.timestamps, columns.ids
            if picks is None:
                self._fill(queue, keys, values, timestamps, ids, first, accepted, gapless)
            else:
                # One call for each column, however many records it has.
                pick = itemgetter(*picks) if len(picks) > 1 else itemgetter(slice(picks[0], picks[0] + 1))
                some = pick(keys), pick(values), pick(timestamps), pick(ids)
                self._fill(queue, *some, first, accepted, gapless)
            queues[queue] = None
        return queues

    def _fill(
        self,
        queue: OutboundQueue,
        keys: Sequence[bytes],
        values: Sequence[bytes],
        timestamps: Sequence[int],
        ids: Sequence[Any],
        first: int,
        accepted: tuple[int, int],
        gapless: int,
    ) -> None:
        """Append records to the queue's batches, in order."""
        limits, at, count = self._limits, 0, len(keys)
        while at < count:
            if queue.filling is not None and queue.filling.tables:
                self._seal(queue)
            batch = self._opened(queue, first, accepted, gapless)
            take = min(count - at, limits.batch_records - len(batch.keys))
            size = sum(map(len, values[at : at + take]))
            while batch.bytes + size > limits.batch_bytes and take > 1:
                take = (take + 1) // 2
                size = sum(map(len, values[at : at + take]))
            if batch.keys and batch.bytes + size > limits.batch_bytes:
                self._seal(queue)
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
                self._seal(queue)

    def _put(
        self, queue: OutboundQueue, values: RecordColumns, ids: Sequence[Any], first: int,
        accepted: tuple[int, int], gapless: int,
    ) -> None:  # fmt: skip
        """Append records as columns: to the batch that is being filled, or as the first ones of another batch."""
        if queue.filling is not None and not queue.filling.takes(values):
            self._seal(queue)
        batch = self._opened(queue, first, accepted, gapless)
        before = batch.bytes
        batch.extend_columns(values, ids)
        self._filled_records += len(values)
        self._filled_bytes += batch.bytes - before
        if len(batch.timestamps) >= self._limits.batch_records or batch.bytes >= _MANY_BYTES:
            self._seal(queue)

    def _opened(self, queue: OutboundQueue, first: int, accepted: tuple[int, int], gapless: int) -> InjectedBatch:
        """The batch that is being filled, to which such records are about to be appended."""
        batch = queue.filling
        if batch is None:
            batch = queue.filling = InjectedBatch(queue, first, accepted)
            self._filling[queue] = None
            self._busy[queue] = None
        batch.since, batch.latest = min(batch.since, accepted[0]), max(batch.latest, accepted[1])
        batch.gapless = max(batch.gapless, gapless)
        return batch

    def _seal(self, queue: OutboundQueue) -> None:
        """Close the batch that is being filled, and queue it for sending."""
        batch = queue.filling
        assert batch is not None
        batch.join()  # first: it may raise, and the batch is then still there
        queue.filling = None
        del self._filling[queue]
        queue.batches[batch] = None
        queue.to_send[batch] = None
        self._filled_records -= len(batch.keys)
        self._filled_bytes -= batch.bytes
        self._unacked.add(batch)
        self._numbers.add(batch.first)

    # Sending.

    def pump(self, queue: OutboundQueue, now: int) -> tuple[list[SendBatch], int | None]:
        """Send the batches that may be sent now.

        Returns:
            What to send, and the time at which to call again, in microseconds. The time is None if only an event can
            make another batch sendable.
        """
        sends: list[SendBatch] = []
        if queue not in self._busy:
            return sends, None
        tokens = self._links.get(queue.route.address)
        if tokens is None:
            return sends, None
        alarm = None
        # The oldest batch goes first, because it holds the watermark.
        for batch in sorted(queue.to_send, key=attrgetter("first")):
            if batch.resume_at > now:
                alarm = earlier(alarm, batch.resume_at)
                continue
            wait = self._gate(queue, batch, now)
            if wait is not None:
                return sends, earlier(alarm, wait)
            sends += self._send(queue, batch, tokens, now)
        wait = self._filling_due(queue, now)
        if wait is not None:
            alarm = earlier(alarm, wait)
        elif queue.filling is not None:
            batch = queue.filling
            self._seal(queue)
            sends += self._send(queue, batch, tokens, now)
        if not queue.to_send and queue.filling is None:
            self._busy.pop(queue, None)
        return sends, alarm

    def _filling_due(self, queue: OutboundQueue, now: int) -> int | None:
        """None if the batch that is being filled may be sent now, or there is none. Else the time of the next check.

        While earlier batches are in flight, the batch is sent ``linger`` microseconds after the one before it, or
        later if many are. It collects records until then. While it could not be sent anyway, it stays open for further
        records.
        """
        batch = queue.filling
        if batch is None:
            return None
        if queue.in_flight or queue.to_send:
            due = queue.sent_at + self._limits.linger * max(4, queue.in_flight) // 4
            if now < due:
                return due
        return self._gate(queue, batch, now)

    def _gate(self, queue: OutboundQueue, batch: InjectedBatch, now: int) -> int | None:
        """None if the batch may be sent now, else the time of the next check, in microseconds."""
        if batch.tries == 0 and now < queue.resume_at:
            return queue.resume_at
        if queue.in_flight < queue.cap:
            return None
        if queue.extra_at == 0:
            queue.extra_at = now + self._limits.retry_last
        if now < queue.extra_at:
            return queue.extra_at
        queue.cap, queue.extra_at = queue.in_flight + 1, 0
        return None

    def _send(self, queue: OutboundQueue, batch: InjectedBatch, tokens: dict[int, None], now: int) -> list[SendBatch]:
        """Begin an attempt. Returns nothing if all records of the batch are in other attempts, or ACKed."""
        del queue.to_send[batch]
        indexes = batch.take_unsent()
        if indexes is not None and not indexes:
            return []
        if queue.route.address in self.without_columns:
            batch.make_rows()
        token = self._next_token
        self._next_token += 1
        attempt = self._attempts[token] = InjectedAttempt(token, batch, queue.route.address, indexes)
        batch.open_attempts.append(attempt)
        self._awaiting[batch.copies].setdefault(batch, now)
        if batch.tries:
            self.resent += attempt.records
        batch.tries += 1
        tokens[token] = None
        queue.in_flight += 1
        queue.sent_at = now
        columns: list[Any] = [batch.keys, batch.values, batch.timestamps, batch.ids]
        if indexes is not None:
            columns = [[column[index] for index in indexes] for column in columns]
        keys, values, timestamps, ids = columns
        send = SendBatch(
            attempt.address, token, queue.consumer, queue.route.journal, queue.scope, keys, values, timestamps, ids,
            self.watermark, *queue.mark(), max(0, now - batch.since),
            batch.latest - batch.since if indexes is None else 0, self.ranges and batch.complete(indexes),
        )  # fmt: skip
        return [send]

    def overdue_at(self) -> int | None:
        """The time at which an answer is overdue next, in microseconds. None if no batch waits for an answer."""
        earliest = None
        for copies, since in enumerate(self._awaiting):
            if since:
                earliest = earlier(earliest, next(iter(since.values())) + self._waits[copies])
        return earliest

    # Answers.

    def acked(self, attempt: InjectedAttempt, remaining: Sequence[int]) -> None:
        """All records of the attempt are committed, except ``remaining`` (indexes within the attempt)."""
        batch, queue = attempt.batch, attempt.batch.queue
        queue.failures = 0
        queue.extra_at = 0
        queue.cap = min(queue.cap + 1, self._limits.max_in_flight)
        acked = attempt.resolve(attempt.answered(AnswerKind.ACKED, remaining))
        if attempt.over:
            self._end(attempt)
        self._settle(batch, acked)

    def _settle(self, batch: InjectedBatch, acked: Collection[int]) -> None:
        """Mark records of a batch as ACKed."""
        if self._unacked.acknowledge(batch, batch.without(acked)):
            self._forget(batch)
            return
        if batch.unsent and batch.waiting is not None:
            batch.unsent &= batch.waiting
        if batch.unsent is not None and not batch.unsent:
            batch.queue.to_send.pop(batch, None)

    def _end(self, attempt: InjectedAttempt) -> None:
        """Remove an attempt. Idempotent."""
        if self._attempts.pop(attempt.token, None) is None:
            return
        batch = attempt.batch
        batch.open_attempts.remove(attempt)
        if not batch.open_attempts:
            self._awaiting[batch.copies].pop(batch, None)
            batch.copies = 0
        batch.queue.in_flight -= 1
        tokens = self._links.get(attempt.address)
        if tokens is not None:
            tokens.pop(attempt.token, None)

    def _forget(self, batch: InjectedBatch) -> None:
        """Remove all state of a batch that is completely ACKed or given up."""
        queue = batch.queue
        for attempt in list(batch.open_attempts):
            self._end(attempt)
        del queue.batches[batch]
        queue.to_send.pop(batch, None)
        self._unacked.remove(batch)
        self._numbers.remove(batch.first)
        if queue.empty:
            self._drop(queue)

    def _drop(self, queue: OutboundQueue) -> None:
        self._queues.pop((queue.consumer, queue.scope, queue.route.journal), None)
        self._busy.pop(queue, None)
        self._filling.pop(queue, None)


def _by_interval(starts: Sequence[bytes], keys: Sequence[bytes]) -> Collection[tuple[int, Sequence[int] | None]]:
    """The intervals of ``keys``, by their number, each with the indexes of its keys. None stands for all indexes.

    ``starts``: the first key of each interval but the lowest one.
    """
    if not starts:
        return ((0, None),)
    found: defaultdict[int, list[int]] = defaultdict(list)
    for index, at in enumerate(map(bisect_right, repeat(starts), keys)):
        found[at].append(index)
    return [(at, None) for at in found] if len(found) == 1 else found.items()


def earlier(one: int | None, other: int | None) -> int | None:
    """The earlier one of two times. None stands for never."""
    return min(one, other) if one is not None and other is not None else other if one is None else one
