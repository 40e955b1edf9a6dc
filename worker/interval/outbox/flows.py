"""Outbound batches, and ordered flows: the order in which they reach one journal (sections 6.1.1, 6.1.2; G15).

All outbound batches that an interval sends to one journal form one *flow*. Each attempt has a number, and states the
number that the receiver must have accepted before it. A receiver refuses an attempt that is out of order.

After a refusal the flow halts. ``outbox_flows.py`` decides how it continues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

from millwheel.model.incarnation import IncarnationId
from millwheel.model.outbound import OutboundBatch
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.worker.messages import DeliveryOrder

__all__ = ["INDEX_BITS", "MAX_BATCH_BYTES", "MAX_BATCH_RECORDS", "Flow", "ProductionBatch"]

INDEX_BITS: Final = 24
"""A production's position is commit << INDEX_BITS | index.

A commit has room for 2^24 productions: MAX_PRODUCTIONS of one key, and those of other keys within batch_bytes, or some
times as many bytes by a call for many records (``batch_running.py``). Each counts at least 64 bytes. There are 2^39
commit numbers: 17 years at a thousand per second.
"""

MAX_BATCH_RECORDS: Final = 8_192
MAX_BATCH_BYTES: Final = 1 << 20
"""An outbound batch takes no more records at this number or size. It fits into one message (at most 2 MiB)."""


class ProductionBatch(OutboundBatch):
    """An outbound batch of one stream. ``token`` is the number of the current attempt. Each resend gets a new one.

    It has many attributes: the columns of its records, and the state of its attempt.
    """

    def __init__(self, token: int, consumer: IncarnationId, stream: str, journal: str, sequence: str) -> None:
        super().__init__()
        self.token = token
        self.since = 0
        """When its records came into the outbox, a time of ``elapsed``."""
        self.sequence = sequence
        """The parent's journal that numbered the records. Empty: the interval's own journal did."""
        self.consumer = consumer
        self.stream = stream
        self.journal = journal
        self.positions: Any = []
        """They rise. ``compact`` makes a list without the ACKed ones."""
        self.producers: list[bytes] = []
        self.opaque: list[bytes] = []
        self.complete = False
        """Whether it is known to be complete, as ``PositionIds.complete`` says it to the receiver. ``compact`` resets
        it."""
        self.first = 0
        """The least position that is not ACKed."""
        self.sent = False
        """Whether the current attempt is under way: sent, and neither refused nor lost since."""
        self.used = False
        """Whether it was ever sent under its current token."""
        self.after = 0
        """The number of the attempt that the receiver must have accepted before this one. 0: none."""
        self.committed = True
        """Whether it may be sent. A strong production must be in the journal before."""
        self.awaited: set[int] | None = None
        """The tokens whose ACKs its weak commit waits for, with its own."""
        self.age = 0
        """The age of its sequence: a parent's sequence sorts before its children's."""
        self.flow: Flow

    @property
    def gapless(self) -> bool:
        """Whether its positions follow one another."""
        return bool(self.positions[-1] - self.positions[0] < len(self.positions))

    def room(self) -> bool:
        """Whether another record fits."""
        return len(self.keys) < MAX_BATCH_RECORDS and self.bytes < MAX_BATCH_BYTES

    def compact(self) -> None:
        """Drop the records that are ACKed.

        The columns are new lists, because a delivery in flight uses the old ones.

        What is left is complete, too, since the rest is ACKed. It is not stated: where the receiver has those in
        other ranges, each record is checked all the same. So what a complete batch leaves out is due to other
        intervals. The simulator checks that.
        """
        if self.waiting is None:
            return
        kept = sorted(self.waiting)
        self.keys = [self.keys[index] for index in kept]
        self.values = [self.values[index] for index in kept]
        self.timestamps = [self.timestamps[index] for index in kept]
        self.positions = [self.positions[index] for index in kept]
        self.producers = [self.producers[index] for index in kept]
        self.opaque = [self.opaque[index] for index in kept] if self.opaque else []
        self.waiting, self.complete = None, False
        self.bytes = sum(map(len, self.values)) + sum(map(len, self.keys))

    def measure(self) -> None:
        """Compute the least timestamp and position of the records that are not ACKed."""
        super().measure()
        self.first = self.positions[0 if self.waiting is None else min(self.waiting)]


class Flow:
    """The outbound batches for one journal of one consumer.

    Invariant: ``waiting`` has the outbound batches to send next, in order. Only copies of what the receiver has already
    accepted may be out of order.

    Invariant: a flow that starts (``last`` is 0) sends everything that is not ACKed, oldest first.
    """

    def __init__(self, consumer: IncarnationId, journal: str) -> None:
        self.consumer = consumer
        self.journal = journal
        self.batches: dict[ProductionBatch, None] = {}
        """The outbound batches that are not ACKed: sent, waiting, or not committed yet."""
        self.waiting: deque[ProductionBatch] = deque()
        self.last = 0
        """The number of the last attempt, which the next one follows. 0: the next one starts the flow."""
        self.halted = 0
        """The refused number. Nothing is sent until the flow continues. 0: none was refused."""
        self.refused: tuple[int, bool] | None = None
        """The first refused number, and whether the receiver had no room."""
        self.window = 0
        """Outbound batches that may be sent before the receiver answers. 0: no limit."""
        self.asked = 0
        """The number whose answer opens the window."""

    @property
    def blocked(self) -> bool:
        """Whether nothing can be sent now."""
        return bool(self.halted or self.asked)

    def answered(self, token: int) -> bool:
        """Register that the receiver accepted that sending. Returns whether more can be sent now."""
        if token != self.asked or not token:
            return False
        self.asked = 0
        self.window *= 2
        return not self.halted

    def next_round(self) -> list[tuple[ProductionBatch, bool]]:
        """The outbound batches to send now, in order, each with whether the receiver must confirm it at once."""
        waiting, batches = self.waiting, self.batches
        while waiting and (waiting[0] not in batches or waiting[0].sent):
            waiting.popleft()
        if self.blocked or not waiting:
            return []
        if not self.window or len(waiting) <= self.window:
            # Nothing is left behind these, so the flow has no window from here on.
            self.window = 0
            taken = [one for one in waiting if one in batches]
            waiting.clear()
            return [(one, False) for one in taken]
        taken = []
        while waiting and len(taken) < self.window:
            one = waiting.popleft()
            if one in batches:
                taken.append(one)
        return [(one, one is taken[-1]) for one in taken]

    def orders(self, taken: Iterable[tuple[ProductionBatch, bool]]) -> Iterator[tuple[ProductionBatch, DeliveryOrder]]:
        """Assign each attempt its place in the flow. The tokens of the outbound batches are the numbers, and rise."""
        chosen = list(taken)
        if len(chosen) == 1 and not self.waiting:
            one = chosen[0][0]
            one.after, one.sent, self.last = self.last, True, one.token
            yield one, DeliveryOrder(one.token, one.after, one.held)
            return
        behind = [one for one in self.waiting if one in self.batches]
        pending = min((one.held for one in behind), default=int(MAX_TIMESTAMP))
        streams = {one.stream for one in behind}
        least: list[tuple[int, frozenset[str]]] = []
        for one, _ in reversed(chosen):
            pending = min(pending, one.held)
            least.append((pending, frozenset(streams - {one.stream})))
            streams.add(one.stream)
        for (one, asks), (held, others) in zip(chosen, reversed(least), strict=True):
            one.after, one.sent, self.last = self.last, True, one.token
            if asks:
                self.asked = one.token
            yield one, DeliveryOrder(one.token, one.after, held, tuple(sorted(others)), asks)
