"""Records that an interval has received and not committed: their queue (sections 4.1, 6.1.1; G13).

The receiver (``receiver.py``) queues the fresh records of a delivery. They hold the input watermark until they are
committed. Records of a blocked key leave the queue (``blocked_key_table.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from operator import lt
from typing import Any, Final

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.model.watermarks import MinTracker
from millwheel.rpc.column_keys import key_list
from millwheel.rpc.columns import RecordColumns, bytes_of, extremes_of
from millwheel.worker.dedup import DeliveryVerdict
from millwheel.worker.messages import Delivery, without

__all__ = ["DeliveryReceipt", "IntervalIntake", "KeySample", "QueuedRecords", "increasing"]

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
        """The receipts with open records of which some were settled or set aside since the last ``to_report``."""

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
        pieces: list[tuple[QueuedRecords, list[int]]] = []
        places: dict[DeliveryReceipt, int] = {}
        last: dict[bytes, int] = {}
        for receipt, index in items:
            receipt.blocked.discard(index)
            key = receipt.delivery.keys[index]
            place = places.get(receipt, -1)
            if place < last.get(key, 0):
                places[receipt] = place = len(pieces)
                indexes: list[int] = []
                pieces.append((QueuedRecords(receipt, indexes), indexes))
            last[key] = place
            pieces[place][1].append(index)
        for _, indexes in pieces:
            indexes.sort()
        self.queue.extendleft(queued for queued, _ in reversed(pieces))

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

    def to_report(self) -> list[DeliveryReceipt]:
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
