"""Records that an interval has received and not committed: in line, or set aside by key (section 4.1).

Processing is serial per key. A key that has to wait (its state is being read, a hook of it is
still running, or has failed and will be tried again) is *parked*, with every record that arrives for
it, while the other keys go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from millwheel.core.watermarks import MinTracker
from millwheel.worker.dedup import Verdict
from millwheel.worker.messages import Delivery

__all__ = ["Chunk", "Intake", "Item", "ParkedKey", "Receipt", "TimerItem", "Wait"]


class Receipt:
    """What is still to be committed of one delivery before it is ACKed.

    ``verdict`` is the duplicate check's. ``open`` counts the records that are neither committed nor
    given back; ``parked`` has the indexes of those set aside, ``excluded`` those that were refused and
    will be sent again. ``held`` is the timestamp that the receipt holds the input watermark at.
    """

    __slots__ = ("delivery", "excluded", "held", "open", "parked", "verdict")

    def __init__(self, delivery: Delivery, verdict: Any, open_records: int, held: int) -> None:
        self.delivery = delivery
        self.verdict = verdict
        self.open = open_records
        self.held = held
        self.parked: set[int] = set()
        self.excluded: Sequence[int] = ()


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
    """A key that waits, and its work in order.

    The first ``alone`` items run one a commit: a hook of the key failed, and what a hook did can be undone
    by itself only where nothing else of the key is in the commit. ``attempts`` counts the failures of
    the first item; ``due`` are timers that came due meanwhile.
    """

    __slots__ = ("alone", "attempts", "due", "items", "retry_at", "wait")

    def __init__(self, wait: Wait) -> None:
        self.wait = wait
        self.items: deque[Item] = deque()
        self.due: list[TimerItem] = []
        self.alone = 0
        self.attempts = 0
        self.retry_at = 0


class Intake:
    """The line of chunks and the parked keys. ``pending`` bounds the timestamps of all of it from below."""

    def __init__(self) -> None:
        self.line: deque[Chunk] = deque()
        self.parked: dict[bytes, ParkedKey] = {}
        self.pending = MinTracker()
        self.records = 0
        self.bytes = 0

    def admit(self, delivery: Delivery, verdict: Verdict | None, indexes: Sequence[int]) -> Receipt:
        """Put fresh records of a delivery in line; they hold the input watermark from now on."""
        stamps = delivery.timestamps
        whole = len(indexes) == len(stamps)
        held = min(stamps) if whole else min(stamps[index] for index in indexes)
        receipt = Receipt(delivery, verdict, len(indexes), held)
        self.pending.add(held)
        self.records += len(indexes)
        values = delivery.values
        self.bytes += sum(map(len, values)) if whole else sum(len(values[index]) for index in indexes)
        self.line.append(Chunk(receipt, indexes))
        return receipt

    def park(self, key: bytes, wait: Wait) -> ParkedKey:
        """Have the key wait."""
        parked = self.parked.get(key)
        if parked is None:
            parked = self.parked[key] = ParkedKey(wait)
        else:
            parked.wait = wait
        return parked

    def set_aside(self, key: bytes, receipt: Receipt, index: int) -> None:
        """Put a record behind the other work of its parked key."""
        self.parked[key].items.append((receipt, index))
        receipt.parked.add(index)

    def put_back(self, parked: ParkedKey, items: Sequence[Item]) -> None:
        """Put work that ran, and was undone, before the other work of its parked key."""
        parked.items.extendleft(reversed(items))
        for item in items:
            if len(item) == 2:
                item[0].parked.add(item[1])

    def to_line(self, items: Iterable[Item]) -> None:
        """Put a key's records at the head of the line again, in order."""
        chunks: list[Chunk] = []
        for item in items:
            assert len(item) == 2, "timers of a key run before its records go back in line"
            receipt, index = item
            receipt.parked.discard(index)
            if chunks and chunks[-1].receipt is receipt:
                chunks[-1].indexes = [*chunks[-1].indexes, index]
            else:
                chunks.append(Chunk(receipt, [index]))
        self.line.extendleft(reversed(chunks))

    def settle(self, receipt: Receipt, indexes: Sequence[int]) -> bool:
        """Records are committed (or given back); returns whether that was the last of their delivery."""
        delivery = receipt.delivery
        values = delivery.values
        count = len(indexes)
        self.records -= count
        self.bytes -= sum(map(len, values)) if count == len(values) else sum(len(values[index]) for index in indexes)
        receipt.open -= count
        if receipt.open == 0:
            self.pending.remove(receipt.held)
            return True
        if receipt.open == len(receipt.parked):
            # Only parked records remain: the rest of the delivery holds the watermark no more.
            held = min(delivery.timestamps[index] for index in receipt.parked)
            if held != receipt.held:
                self.pending.remove(receipt.held)
                self.pending.add(held)
                receipt.held = held
        return False
