"""Records that an interval has received and not committed: in line, or set aside by key (section 4.1).

Processing is serial per key. A key that has to wait (its state is being read, a hook of it is
still running, or has failed and will be tried again) is *parked*, with every record that arrives for
it, while the other keys go on.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, Final

from millwheel.core.time import MIN_TIMESTAMP
from millwheel.core.watermarks import MinTracker
from millwheel.worker.dedup import Verdict
from millwheel.worker.interval.failing_keys import KeyFailure
from millwheel.worker.messages import Delivery, without

__all__ = ["Chunk", "Intake", "Item", "ParkedKey", "Receipt", "RecordItem", "TimerItem", "Wait"]

_FEW: Final = 16
"""Parked records of a delivery about which its sender is told each time that one of them is done."""


class Receipt:
    """What is still to be committed of one delivery before it is ACKed.

    ``verdict`` is the duplicate check's. ``open`` counts the records that are neither committed nor
    given back; ``parked`` has the indexes of those set aside, ``excluded`` those that were refused and
    will be sent again. ``held`` is the timestamp that the receipt holds the input watermark at, ``average`` the
    bytes of a value of it, ``told`` how many records the sender knows to be missing.
    """

    __slots__ = ("average", "delivery", "excluded", "held", "open", "parked", "told", "verdict")

    def __init__(self, delivery: Delivery, verdict: Any, open_records: int, held: int, average: int) -> None:
        self.delivery = delivery
        self.verdict = verdict
        self.open = open_records
        self.held = held
        self.average = average
        self.parked: set[int] = set()
        self.excluded: Sequence[int] = ()
        self.told = open_records

    def worth_telling(self) -> bool:
        """Whether only parked records are left, so many fewer than the sender knows of that it should be told.

        By halves, since what is told names every record that is left: to tell each time would be quadratic.
        """
        return self.open == len(self.parked) < self.told and (2 * self.open <= self.told or self.open <= _FEW)


class Chunk:
    """Records of one delivery in line: ``indexes[cursor:]`` have not run."""

    __slots__ = ("cursor", "indexes", "receipt")

    def __init__(self, receipt: Receipt, indexes: Sequence[int]) -> None:
        self.receipt = receipt
        self.indexes = indexes
        self.cursor = 0


class Wait(Enum):
    """Why a key is parked."""

    READY = "for the commit at hand, or for its next attempt"
    STATE = "for its state to be read"
    HOOK = "for its asynchronous hook to end"


RecordItem = tuple[Receipt, int]
TimerItem = tuple[int, bool, str]
"""at, wall, tag."""
Item = RecordItem | TimerItem


class ParkedKey:
    """A key that waits, its records in order, and its timers that came due meanwhile.

    The next ``alone`` hooks run one a commit: a hook of the key failed, and what a hook did can be undone
    by itself only where nothing else of the key is in the commit. ``attempts`` counts the failures of
    ``failing``; ``failure`` says what the last of them raised, for operators.
    """

    __slots__ = ("alone", "attempts", "due", "failing", "failure", "items", "retry_at", "wait")

    def __init__(self, wait: Wait) -> None:
        self.wait = wait
        self.items: deque[RecordItem] = deque()
        self.due: list[TimerItem] = []
        self.alone = 0
        self.attempts = 0
        self.failing: Item | None = None
        self.failure: KeyFailure | None = None
        self.retry_at = 0


class Intake:
    """The line of chunks and the parked keys. ``pending`` bounds the timestamps of all records of it from below.

    Invariant: ``ready`` has the parked keys whose wait is READY, and ``_retries`` the times of those of
    them that wait for a moment.
    """

    def __init__(self) -> None:
        self.line: deque[Chunk] = deque()
        self.parked: dict[bytes, ParkedKey] = {}
        self.ready: dict[bytes, None] = {}
        self.pending = MinTracker()
        self.records = 0
        self.bytes = 0
        self.newest: int = MIN_TIMESTAMP
        """The largest timestamp of a record that was ever admitted."""
        self._retries: list[tuple[int, bytes]] = []

    def admit(self, delivery: Delivery, verdict: Verdict | None, indexes: Sequence[int]) -> Receipt:
        """Put fresh records of a delivery in line; they hold the input watermark from now on."""
        stamps, values = delivery.timestamps, delivery.values
        whole = len(indexes) == len(stamps)
        fresh = stamps if whole else [stamps[index] for index in indexes]
        held, newest = min(fresh), max(fresh)
        if newest > self.newest:
            self.newest = newest
        size = sum(map(len, values)) if whole else sum(len(values[index]) for index in indexes)
        if not whole:
            # What is not taken would be held as long as what is, and is not counted. The list may be the sender's, too.
            delivery.values = without(values, frozenset(indexes))
        receipt = Receipt(delivery, verdict, len(indexes), held, size // len(indexes))
        self.pending.add(held, len(indexes))
        self.records += len(indexes)
        self.bytes += size
        self.line.append(Chunk(receipt, indexes))
        return receipt

    def bring_forward(self, chunk: Chunk) -> None:
        """Put a chunk first in line, behind what its sending computation has sent before for the same keys (G15)."""
        delivery = chunk.receipt.delivery
        keys = {delivery.keys[index] for index in chunk.indexes[chunk.cursor :]}
        before: list[Chunk] = []
        rest: deque[Chunk] = deque()
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
                before.append(Chunk(one.receipt, first))
            if len(first) < len(left):
                if first:
                    one.indexes, one.cursor = [index for index in left if other.keys[index] not in keys], 0
                rest.append(one)
        self.line.clear()
        self.line.extend([*before, chunk, *rest])

    def is_done(self, receipt: Receipt, until: int) -> bool:
        """Whether nothing up to ``until`` is left of a delivery but what a hook blocks: it failed, or is running."""
        if receipt.held > until:
            return True  # what is left runs when there is room
        if receipt.open != len(receipt.parked):
            return False
        keys = receipt.delivery.keys
        waits = (self.parked.get(keys[index]) for index in receipt.parked)
        return all(one is not None and (one.failing is not None or one.wait is Wait.HOOK) for one in waits)

    # Parked keys.

    def park(self, key: bytes, wait: Wait) -> ParkedKey:
        """Have the key wait."""
        parked = self.parked.get(key)
        if parked is None:
            parked = self.parked[key] = ParkedKey(wait)
        parked.wait = wait
        parked.retry_at = 0
        if wait is Wait.READY:
            self.ready[key] = None
        else:
            self.ready.pop(key, None)
        return parked

    def retry(self, key: bytes, at: int) -> None:
        """Have the key, which is parked, wait until ``at``."""
        self.parked[key].retry_at = at
        self.ready.pop(key, None)
        heapq.heappush(self._retries, (at, key))

    def next_retry(self) -> int | None:
        """When the first of the keys that wait for a moment may go on."""
        while self._retries:
            at, key = self._retries[0]
            parked = self.parked.get(key)
            if parked is not None and parked.retry_at == at:
                return at
            heapq.heappop(self._retries)
        return None

    def ready_keys(self, now: int) -> list[bytes]:
        """The parked keys that wait for nothing but their turn."""
        while (at := self.next_retry()) is not None and at <= now:
            _, key = heapq.heappop(self._retries)
            self.park(key, Wait.READY)
        return list(self.ready)

    def unpark(self, key: bytes) -> None:
        """The key goes on: its records go back to the head of the line, in order."""
        self.ready.pop(key, None)
        self._to_line(self.parked.pop(key).items)

    def set_aside(self, key: bytes, receipt: Receipt, index: int) -> None:
        """Put a record behind the other work of its parked key."""
        self.parked[key].items.append((receipt, index))
        receipt.parked.add(index)

    def put_back(self, parked: ParkedKey, items: Sequence[RecordItem]) -> None:
        """Put records that ran, and were undone, before the others of their parked key."""
        parked.items.extendleft(reversed(items))
        for receipt, index in items:
            receipt.parked.add(index)

    def _to_line(self, items: Iterable[RecordItem]) -> None:
        chunks: list[Chunk] = []
        indexes: list[int] = []
        for receipt, index in items:
            receipt.parked.discard(index)
            if not chunks or chunks[-1].receipt is not receipt:
                indexes = []
                chunks.append(Chunk(receipt, indexes))
            indexes.append(index)
        self.line.extendleft(reversed(chunks))

    def settle(self, receipt: Receipt, indexes: Sequence[int]) -> bool:
        """Records are committed (or given back); returns whether that was the last of their delivery."""
        delivery = receipt.delivery
        values = delivery.values
        count = len(indexes)
        self.records -= count
        self.bytes -= sum(map(len, values)) if count == len(values) else sum(len(values[index]) for index in indexes)
        receipt.open -= count
        self.pending.remove(receipt.held, count)
        if receipt.open == 0:
            return True
        if receipt.worth_telling():
            # Only parked records remain: the rest of the delivery holds the watermark no more.
            held = min(delivery.timestamps[index] for index in receipt.parked)
            if held != receipt.held:
                self.pending.remove(receipt.held, receipt.open)
                self.pending.add(held, receipt.open)
                receipt.held = held
        return False
