"""Records that an interval has received and not committed: queued, or set aside with a blocked key (section 4.1).

Processing is serial per key. A key is *blocked* while its state is read, while its asynchronous hook runs, or until a
failed hook is retried. Records that arrive for a blocked key wait with it. The other keys go on.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, Final

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.model.watermarks import MinTracker
from millwheel.worker.dedup import DeliveryVerdict
from millwheel.worker.interval.failing_keys import KeyFailure
from millwheel.worker.interval.holds import Hold
from millwheel.worker.messages import Delivery, without

__all__ = [
    "BlockedKey",
    "DeliveryReceipt",
    "IntervalIntake",
    "Item",
    "QueuedRecords",
    "RecordItem",
    "TimerItem",
    "Wait",
]

_FEW: Final = 16
"""With this many blocked records or fewer, each completed record of a delivery is reported to its sender at once."""


class DeliveryReceipt:
    """The records of one delivery that are not committed, until the delivery is ACKed.

    - ``verdict`` is the result of the duplicate check.
    - ``open`` is the number of records that are neither committed nor given back.
    - ``blocked`` has the indexes of records set aside with blocked keys.
    - ``excluded`` has the indexes that were refused and will be sent again.
    - ``held`` is the timestamp at which the receipt holds the input watermark.
    - ``average`` is the average size of a value in bytes.
    - ``answered`` is the number of open records by the last answer to the sender.
    """

    __slots__ = ("answered", "average", "blocked", "delivery", "excluded", "held", "open", "verdict")

    def __init__(self, delivery: Delivery, verdict: Any, open_records: int, held: int, average: int) -> None:
        self.delivery = delivery
        self.verdict = verdict
        self.open = open_records
        self.held = held
        self.average = average
        self.blocked: set[int] = set()
        self.excluded: Sequence[int] = ()
        self.answered = open_records

    def worth_reporting(self) -> bool:
        """Whether to report progress to the sender: only blocked records are left, and far fewer than last reported.

        An answer names every record that is left, so answering each time would be quadratic. Above a small number an
        answer goes out when the number has halved.
        """
        return self.open == len(self.blocked) < self.answered and (2 * self.open <= self.answered or self.open <= _FEW)


class QueuedRecords:
    """Queued records of one delivery. ``indexes[cursor:]`` have not run."""

    __slots__ = ("cursor", "indexes", "receipt")

    def __init__(self, receipt: DeliveryReceipt, indexes: Sequence[int]) -> None:
        self.receipt = receipt
        self.indexes = indexes
        self.cursor = 0


class Wait(Enum):
    """Why a key is blocked."""

    READY = "for the commit at hand, or for its next attempt"
    STATE = "for its state to be read"
    HOOK = "for its asynchronous hook to end"


RecordItem = tuple[DeliveryReceipt, int]
TimerItem = tuple[int, bool, str]
"""Time, whether it is in processing time, tag."""
Item = RecordItem | TimerItem


class BlockedKey:
    """A blocked key, with its records in order and its timers that have become due meanwhile.

    The next ``alone`` hooks run one per commit, because a hook of the key failed. The effect of one hook can be undone
    separately only if the commit has no other work of the key. ``attempts`` counts the failures of ``failing``.
    ``failure`` describes the last of them for operators. ``hold`` covers the event-time timers in ``due``.
    """

    __slots__ = ("alone", "attempts", "due", "failing", "failure", "hold", "items", "retry_at", "wait")

    def __init__(self, wait: Wait) -> None:
        self.wait = wait
        self.items: deque[RecordItem] = deque()
        self.due: list[TimerItem] = []
        self.hold: Hold | None = None
        self.alone = 0
        self.attempts = 0
        self.failing: Item | None = None
        self.failure: KeyFailure | None = None
        self.retry_at = 0

    def take_due(self) -> tuple[list[TimerItem], Hold | None]:
        """Take the due timers and their hold. The caller releases it."""
        taken = self.due, self.hold
        self.due, self.hold = [], None
        return taken


class IntervalIntake:
    """The queue of received records and the blocked keys.

    ``pending`` is a lower bound of the timestamps of all its records.

    Invariant: ``ready`` has the blocked keys whose wait is READY, except those with a retry time. ``_retries`` has the
    retry times, and possibly outdated ones.
    """

    def __init__(self) -> None:
        self.line: deque[QueuedRecords] = deque()
        self.blocked: dict[bytes, BlockedKey] = {}
        self.ready: dict[bytes, None] = {}
        self.pending = MinTracker()
        self.records = 0
        self.bytes = 0
        self.newest: int = MIN_TIMESTAMP
        """The largest timestamp of any record admitted so far."""
        self._retries: list[tuple[int, bytes]] = []

    def admit(self, delivery: Delivery, verdict: DeliveryVerdict | None, indexes: Sequence[int]) -> DeliveryReceipt:
        """Queue fresh records of a delivery. They hold the input watermark from now on."""
        stamps, values = delivery.timestamps, delivery.values
        whole = len(indexes) == len(stamps)
        fresh = stamps if whole else [stamps[index] for index in indexes]
        held, newest = min(fresh), max(fresh)
        if newest > self.newest:
            self.newest = newest
        size = sum(map(len, values)) if whole else sum(len(values[index]) for index in indexes)
        if not whole:
            # Values that are not admitted would stay in memory uncounted, so they are dropped. The list may be shared
            # with the sender, so it is replaced.
            delivery.values = without(values, frozenset(indexes))
        receipt = DeliveryReceipt(delivery, verdict, len(indexes), held, size // len(indexes))
        self.pending.add(held, len(indexes))
        self.records += len(indexes)
        self.bytes += size
        self.line.append(QueuedRecords(receipt, indexes))
        return receipt

    def bring_forward(self, chunk: QueuedRecords) -> None:
        """Move queued records to the front, after earlier records of the same sending computation and keys (G15)."""
        delivery = chunk.receipt.delivery
        keys = {delivery.keys[index] for index in chunk.indexes[chunk.cursor :]}
        before: list[QueuedRecords] = []
        rest: deque[QueuedRecords] = deque()
        found = False
        for one in self.line:
            if one is chunk:
                found = True
                continue
            other = one.receipt.delivery
            if found or other.order is None or other.sender.computation != delivery.sender.computation:
                rest.append(one)
                continue
            left = one.indexes[one.cursor :]
            first = [index for index in left if other.keys[index] in keys]
            if first:
                before.append(QueuedRecords(one.receipt, first))
            if len(first) < len(left):
                if first:
                    one.indexes, one.cursor = [index for index in left if other.keys[index] not in keys], 0
                rest.append(one)
        self.line.clear()
        self.line.extend([*before, chunk, *rest])

    def is_done(self, receipt: DeliveryReceipt, until: int) -> bool:
        """Whether a delivery's records up to ``until`` are all committed, or blocked by a failed or running hook."""
        if receipt.held > until:
            return True  # the rest runs when there is room
        if receipt.open != len(receipt.blocked):
            return False
        keys = receipt.delivery.keys
        waits = (self.blocked.get(keys[index]) for index in receipt.blocked)
        return all(one is not None and (one.failing is not None or one.wait is Wait.HOOK) for one in waits)

    # Blocked keys.

    def block(self, key: bytes, wait: Wait) -> BlockedKey:
        """Block the key, or change why it is blocked."""
        blocked = self.blocked.get(key)
        if blocked is None:
            blocked = self.blocked[key] = BlockedKey(wait)
        blocked.wait = wait
        blocked.retry_at = 0
        if wait is Wait.READY:
            self.ready[key] = None
        else:
            self.ready.pop(key, None)
        return blocked

    def retry(self, key: bytes, at: int) -> None:
        """Keep a blocked key blocked until time ``at`` (by ``elapsed``)."""
        self.blocked[key].retry_at = at
        self.ready.pop(key, None)
        heapq.heappush(self._retries, (at, key))

    def next_retry(self) -> int | None:
        """The earliest retry time of a blocked key. None: no key waits for a time."""
        while self._retries:
            at, key = self._retries[0]
            blocked = self.blocked.get(key)
            if blocked is not None and blocked.retry_at == at:
                return at
            heapq.heappop(self._retries)
        return None

    def ready_keys(self, now: int) -> list[bytes]:
        """The blocked keys that can run now, by time ``now``."""
        while (at := self.next_retry()) is not None and at <= now:
            _, key = heapq.heappop(self._retries)
            self.block(key, Wait.READY)
        return list(self.ready)

    def unblock(self, key: bytes) -> None:
        """Unblock the key: its records return to the front of the queue, in order."""
        self.ready.pop(key, None)
        blocked = self.blocked.pop(key)
        assert not blocked.due, "its due timers were returned before"
        self._to_line(blocked.items)

    def set_aside(self, key: bytes, receipt: DeliveryReceipt, index: int) -> None:
        """Append a record to the work of its blocked key."""
        self.blocked[key].items.append((receipt, index))
        receipt.blocked.add(index)

    def put_back(self, blocked: BlockedKey, items: Sequence[RecordItem]) -> None:
        """Prepend records that ran and were undone to the work of their blocked key."""
        blocked.items.extendleft(reversed(items))
        for receipt, index in items:
            receipt.blocked.add(index)

    def _to_line(self, items: Iterable[RecordItem]) -> None:
        chunks: list[QueuedRecords] = []
        indexes: list[int] = []
        for receipt, index in items:
            receipt.blocked.discard(index)
            if not chunks or chunks[-1].receipt is not receipt:
                indexes = []
                chunks.append(QueuedRecords(receipt, indexes))
            indexes.append(index)
        self.line.extendleft(reversed(chunks))

    def settle(self, receipt: DeliveryReceipt, indexes: Sequence[int]) -> bool:
        """Remove committed or given-back records. Returns whether these were the last of their delivery."""
        delivery = receipt.delivery
        values = delivery.values
        count = len(indexes)
        self.records -= count
        self.bytes -= sum(map(len, values)) if count == len(values) else sum(len(values[index]) for index in indexes)
        receipt.open -= count
        self.pending.remove(receipt.held, count)
        if receipt.open == 0:
            return True
        if receipt.worth_reporting():
            # Only blocked records are left. The delivery's other records no longer hold the watermark.
            held = min(delivery.timestamps[index] for index in receipt.blocked)
            if held != receipt.held:
                self.pending.remove(receipt.held, receipt.open)
                self.pending.add(held, receipt.open)
                receipt.held = held
        return False
