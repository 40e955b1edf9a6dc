"""Records that an interval has received and not committed: their admission and their queue (sections 4.1, 6.1.1; G13).

An interval admits a delivery within limits, after the duplicate check. Its fresh records are queued, and hold the input
watermark until they are committed. Records of a blocked key leave the queue (``blocked_key_table.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import lt
from typing import Any, Final

from millwheel.model.page_keys import PAGE_BYTE
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.model.watermarks import MinTracker
from millwheel.rpc.column_keys import ColumnKeys, key_list
from millwheel.rpc.columns import RecordColumns, bytes_of, extremes_of
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.admission import DeliveryAdmission, column_problem
from millwheel.worker.dedup import DeliveryVerdict
from millwheel.worker.id_segments import AdmissionState
from millwheel.worker.interval.clocks import IntervalClocks
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.messages import Acknowledge, Delivery, OwnerEffect, without

__all__ = ["DeliveryReceipt", "IntervalIntake", "IntervalReceiver", "KeySample", "QueuedRecords", "increasing"]

_ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
_INVALID = DeliveryOutcome.DELIVERY_OUTCOME_INVALID
_NOT_OWNER = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER
_FEW_BLOCKED: Final = 16
"""With this many blocked records or fewer, each completed record of a delivery is reported to its sender at once."""

_MAX_PICKS: Final = 256
"""With this many picks, a key that halves the load is found with an error of about three percent of the load."""
_RECORDS_PER_PICK: Final = 100
"""There is one pick for so many records of a delivery, and at least one for each delivery."""
_MAX_PICKS_PER_DELIVERY: Final = 4
"""Maximum picks of one delivery."""

_MULTIPLIER, _INCREMENT, _MASK = 6364136223846793005, 1442695040888963407, (1 << 64) - 1


class DeliveryReceipt:
    """The records of one delivery that are not committed, until the delivery is ACKed.

    - ``verdict`` is the result of the duplicate check.
    - ``open`` is the number of records that are neither committed nor given back.
    - ``blocked`` has the indexes of records set aside with blocked keys. ``IntervalIntake.set_aside`` adds to it.
    - ``excluded`` has the indexes that were refused and will be sent again.
    - ``held`` is the timestamp at which the receipt holds the input watermark.
    - ``size`` is the size of the admitted values in bytes, and ``average`` that of one.
    - ``answered`` is the number of open records by the last answer to the sender.
    - ``since`` is the time of the receipt, a time of ``elapsed``.
    - ``span`` is that of the delivery. 0: it is unknown, the delivery was admitted in part, or a key was blocked.
    """

    __slots__ = (
        *("answered", "average", "blocked", "delivery", "excluded", "held", "open", "since", "size", "span", "verdict"),
    )

    def __init__(self, delivery: Delivery, verdict: Any, open_records: int, held: int, size: int, since: int) -> None:
        self.delivery = delivery
        self.verdict = verdict
        self.open = open_records
        self.held = held
        self.size = size
        self.average = size // open_records
        self.blocked: set[int] = set()
        self.excluded: Sequence[int] = ()
        self.answered = open_records
        self.since = since
        self.span = delivery.span if open_records == len(delivery.keys) else 0

    def came_at(self) -> int:
        """When the oldest record that is not committed came to its sender, a time of ``elapsed``.

        Records are committed in the order in which they came, unless a key was blocked. They came evenly, as far as is
        known. So a delivery of a whole outage is not as old as its first record until its end.
        """
        came = self.since - self.delivery.waited
        if not self.span:
            return came
        count = len(self.delivery.keys)
        return came + self.span * (count - self.open) // count

    def worth_reporting(self) -> bool:
        """Whether to report progress to the sender: only blocked records are left, and far fewer than last reported.

        An answer names every record that is left, so answering each time would be quadratic. Above a small number an
        answer goes out when the number has halved.
        """
        if not self.open == len(self.blocked) < self.answered:
            return False
        return self.open <= _FEW_BLOCKED or 2 * self.open <= self.answered


class QueuedRecords:
    """Queued records of one delivery. ``indexes[cursor:]`` have not run.

    Invariant (G1): the indexes increase. Windows by columns read all records of a delivery at once, without a look at
    each index. Who could break it: what puts records into the queue. That is ``admit``, ``requeue`` and
    ``bring_forward``. ``PaneGate`` checks it, and ``check_invariants`` does.
    """

    __slots__ = ("cursor", "indexes", "receipt")

    def __init__(self, receipt: DeliveryReceipt, indexes: Sequence[int]) -> None:
        self.receipt = receipt
        self.indexes = indexes
        self.cursor = 0


def increasing(indexes: Sequence[int]) -> bool:
    """Whether each index is larger than the one before it."""
    return isinstance(indexes, range) or all(map(lt, indexes, indexes[1:]))


class IntervalIntake:
    """The received records that are not committed: their queue, totals and deliveries.

    ``pending`` is a lower bound of the timestamps of all its records. ``records`` and ``bytes`` count the queued
    records, those of blocked keys, and those of commits under way.
    """

    def __init__(self) -> None:
        self.queue: deque[QueuedRecords] = deque()
        self.pending = MinTracker()
        self.records = 0
        self.bytes = 0
        self.newest: int = MIN_TIMESTAMP
        """The largest timestamp of any record admitted so far."""
        self.sample = KeySample()
        self.received = 0
        """The records that were admitted so far."""
        self.came_until: int = MIN_TIMESTAMP
        """When the newest of them came to its sender, a time of ``elapsed``."""
        self.unfinished: dict[DeliveryReceipt, None] = {}
        """The receipts with open records, the oldest first."""
        self._changed: dict[DeliveryReceipt, None] = {}
        """The receipts with open records of which some were settled or set aside since the last ``narrowed``."""

    def admit(
        self, delivery: Delivery, verdict: DeliveryVerdict | None, indexes: Sequence[int], now: int = 0
    ) -> DeliveryReceipt:
        """Queue fresh records of a delivery. They hold the input watermark from now on."""
        stamps, values = delivery.timestamps, delivery.values
        whole = len(indexes) == len(stamps)
        fresh = stamps if whole else [stamps[index] for index in indexes]
        held, newest = extremes_of(fresh)
        if newest > self.newest:
            self.newest = newest
        if whole:
            size = bytes_of(values)
        else:
            # Values that are not admitted would stay in memory uncounted, so they are dropped. The list may be shared
            # with the sender, so it is replaced.
            delivery.values = without(values, frozenset(indexes))
            delivery.keys = key_list(delivery.keys)
            size = bytes_of(delivery.values)
        receipt = DeliveryReceipt(delivery, verdict, len(indexes), held, size, now)
        self.unfinished[receipt] = None
        self.pending.add(held, len(indexes))
        self.records += len(indexes)
        self.bytes += size
        self.received += len(indexes)
        self.came_until = max(self.came_until, now - delivery.waited + delivery.span)
        self.queue.append(QueuedRecords(receipt, indexes))
        return receipt

    def requeue(self, items: Iterable[tuple[DeliveryReceipt, int]]) -> None:
        """Return the records of keys that are not blocked any more to the front of the queue.

        Invariant (G5): the records of a key keep their order. Those of one delivery run together as far as that allows.
        In one delivery, the order of a key is that of its indexes. So sorted indexes keep it.
        """
        chunks: list[tuple[QueuedRecords, list[int]]] = []
        places: dict[DeliveryReceipt, int] = {}
        last: dict[bytes, int] = {}
        for receipt, index in items:
            receipt.blocked.discard(index)
            key = receipt.delivery.keys[index]
            place = places.get(receipt, -1)
            if place < last.get(key, 0):
                places[receipt] = place = len(chunks)
                indexes: list[int] = []
                chunks.append((QueuedRecords(receipt, indexes), indexes))
            last[key] = place
            chunks[place][1].append(index)
        for _, indexes in chunks:
            indexes.sort()
        self.queue.extendleft(chunk for chunk, _ in reversed(chunks))

    def settle(self, receipt: DeliveryReceipt, indexes: Sequence[int]) -> bool:
        """Remove committed or given-back records. Returns whether these were the last of their delivery."""
        delivery = receipt.delivery
        values = delivery.values
        self.sample.note(delivery.keys, indexes)
        count = len(indexes)
        self.records -= count
        if count == len(values):
            self.bytes -= receipt.size
        elif isinstance(values, RecordColumns):
            self.bytes -= bytes_of(values, count)
        else:
            self.bytes -= sum(len(values[index]) for index in indexes)
        receipt.open -= count
        self.pending.remove(receipt.held, count)
        if receipt.open == 0:
            del self.unfinished[receipt]
            self._changed.pop(receipt, None)
            return True
        self._changed[receipt] = None
        return False

    def set_aside(self, receipt: DeliveryReceipt, index: int) -> None:
        """A record waits with its blocked key from now on. The delivery's records end in any order."""
        receipt.blocked.add(index)
        receipt.span = 0
        self._changed[receipt] = None

    def narrowed(self) -> list[DeliveryReceipt]:
        """The deliveries of which only blocked records are left, and whose progress is worth reporting to their sender.

        Their other records no longer hold the watermark. The caller reports them: another call does not name them.
        """
        if not self._changed:
            return []
        found = [receipt for receipt in self._changed if receipt.worth_reporting()]
        self._changed = {}
        for receipt in found:
            receipt.answered = receipt.open
            held = min(receipt.delivery.timestamps[index] for index in receipt.blocked)
            if held != receipt.held:
                self.pending.remove(receipt.held, receipt.open)
                self.pending.add(held, receipt.open)
                receipt.held = held
        return found


class KeySample:
    """The keys of the last picked records, each with the number of records that it represents.

    Picks are pseudo-random, and equal for equal histories. A core has no other source of randomness.
    """

    __slots__ = ("_at", "_chance", "_picked")

    def __init__(self) -> None:
        self._picked: list[tuple[bytes, float]] = []
        self._at = 0
        self._chance = 1

    def note(self, keys: Sequence[bytes], indexes: Sequence[int]) -> None:
        """Sample the committed records ``indexes`` of a delivery with these ``keys``."""
        count = len(indexes)
        if not count:
            return
        picks = 1 if count < _RECORDS_PER_PICK else min(count // _RECORDS_PER_PICK, _MAX_PICKS_PER_DELIVERY)
        for _ in range(picks):
            self._chance = (self._chance * _MULTIPLIER + _INCREMENT) & _MASK
            self._pick(keys[indexes[(self._chance >> 33) % count]], count / picks)

    def _pick(self, key: bytes, weight: float) -> None:
        if len(self._picked) < _MAX_PICKS:
            self._picked.append((key, weight))
            return
        self._picked[self._at] = (key, weight)
        self._at = (self._at + 1) % _MAX_PICKS

    def shares(self) -> list[tuple[bytes, float]]:
        """The sampled keys in order, each with its share of the records. The shares add up to 1."""
        weights: dict[bytes, float] = {}
        for key, weight in self._picked:
            weights[key] = weights.get(key, 0.0) + weight
        total = sum(weights.values())
        return [(key, weights[key] / total) for key in sorted(weights)]


class IntervalReceiver:
    """Admits deliveries, and queues their fresh records. The only caller of ``IntervalIntake.admit``."""

    def __init__(
        self,
        setup: IntervalSetup,
        clocks: IntervalClocks,
        intake: IntervalIntake,
        ids: AdmissionState,
        is_done: Callable[[DeliveryReceipt, int], bool],
    ) -> None:
        """
        Args:
            setup: The interval's settings and program.
            clocks: Its watermark.
            intake: Its queue.
            ids: The ids that it knows.
            is_done: Whether all records of a delivery up to a timestamp are done, or blocked by a failing hook.
        """
        self.admission = DeliveryAdmission(ids, self, setup.settings.queue_bytes, is_done)
        self._setup = setup
        self._clocks = clocks
        self._intake = intake
        self.began = 0
        """When this owner began to serve, a time of ``elapsed``."""

    def deliver(self, delivery: Delivery) -> list[OwnerEffect]:
        """Admit a delivery. Every record of it is eventually ACKed or answered with another outcome."""
        if delivery.stream not in self._setup.program.inputs:
            # Sender and receiver follow a changing topology. One of them has an old version, so the sender looks up the
            # topology again.
            name = self._setup.program.name
            return [Acknowledge(delivery, _NOT_OWNER, (), f"{name!r} does not consume stream {delivery.stream!r}")]
        if (problem := self._problem(delivery)) is not None:
            return [Acknowledge(delivery, _INVALID, (), problem)]
        if not delivery.keys:
            return [Acknowledge(delivery, _ACKED)]
        for watermark in (delivery.sender.watermark, delivery.sender.received_watermark):
            if watermark is not None and watermark > self._clocks.highest_stated:
                self._clocks.highest_stated = watermark
        out: list[OwnerEffect] = []
        self.admission.arrivals.arrived(delivery, out)
        return out

    def _problem(self, delivery: Delivery) -> str | None:
        """Why the records can never be accepted as they are. None: no problem."""
        keys, own = delivery.keys, self._setup.config.keys
        if (problem := column_problem(delivery)) is not None or not keys:
            return problem
        # The lowest and the highest interval have a bound on one side only.
        if (own.start and _least(keys) < own.start) or (own.end is not None and _greatest(keys) >= own.end):
            return f"keys outside the interval {own}: look up the interval map again"
        if not (isinstance(keys, ColumnKeys) and keys.has_texts) and PAGE_BYTE in b"".join(keys):
            return "a key with the byte 0xFF: a key is text in UTF-8, which never has this byte"
        return None

    # The queue, as the admission sees it.

    def has_room(self) -> bool:
        """Whether there is room for any record."""
        intake, settings = self._intake, self._setup.settings
        return intake.records < settings.queue_records and intake.bytes < settings.queue_bytes

    def bound(self, delivery: Delivery) -> tuple[int, str] | None:
        """The bound is the minimum of the groups' broadcast watermarks. Records on a feedback stream need no turn."""
        order, feedback = delivery.order, self._setup.config.feedback
        if delivery.stream in feedback or (order is not None and not feedback.isdisjoint(order.streams)):
            return None
        return self._clocks.inputs.value, "intake is full"

    def put(
        self, delivery: Delivery, verdict: DeliveryVerdict | None, fresh: Sequence[int], excluded: Sequence[int]
    ) -> DeliveryReceipt | None:
        """Queue the fresh records."""
        now = self._clocks.elapsed
        receipt = self._intake.admit(delivery, verdict, fresh, now)
        received, size = self._setup.meter.measures.received[delivery.stream], receipt.average * len(fresh)
        received[0] += len(fresh)
        received[1] += size
        if now - delivery.waited < self.began:
            received[2] += len(fresh)
            received[3] += size
        receipt.excluded = excluded
        return receipt if receipt.held <= self._clocks.inputs.value else None


def _least(keys: Sequence[bytes]) -> bytes:
    return keys.extremes()[0] if isinstance(keys, ColumnKeys) else min(keys)


def _greatest(keys: Sequence[bytes]) -> bytes:
    return keys.extremes()[1] if isinstance(keys, ColumnKeys) else max(keys)
