"""What a sender keeps of its batches until they are ACKed, and what answers mean (section 6.1.1). Pure.

Injectors and intervals both send *batches* to the owners of key intervals, and send them again until each record is
ACKed. They decide differently what may be sent. An interval keeps an order (``worker/interval/outbox/flows.py``), and
an injector fills a window (``millwheel/client/injector/outbound.py``). The rest is the same, and is here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from millwheel.model.watermarks import MinTracker
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome

__all__ = [
    "AnswerKind",
    "DeliveryAttempt",
    "OutboundBatch",
    "OutstandingAttempts",
    "UnackedBatches",
    "answer_kind",
]


class AnswerKind(Enum):
    """What an answer means to the sender, whichever sender that is."""

    ACKED = 1
    """The records are committed, except those with the answer's indexes. The sender drops the ACKed ones."""
    FULL = 2
    """The receiver has no room for the records with the answer's indexes. Without indexes: for any of them."""
    REFUSED = 3
    """The receiver has accepted no record: it does not own the interval, or misses an earlier batch."""
    SUPERSEDED = 4
    """A newer sender has taken over. This sender stops."""
    INVALID = 5
    """The receiver can never accept the records as they are."""


_KINDS: Final = {
    DeliveryOutcome.DELIVERY_OUTCOME_ACKED: AnswerKind.ACKED,
    DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL: AnswerKind.FULL,
    DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER: AnswerKind.REFUSED,
    DeliveryOutcome.DELIVERY_OUTCOME_OUT_OF_ORDER: AnswerKind.REFUSED,
    DeliveryOutcome.DELIVERY_OUTCOME_NO_COLUMNS: AnswerKind.REFUSED,
    DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER: AnswerKind.SUPERSEDED,
}


def answer_kind(outcome: DeliveryOutcome.ValueType) -> AnswerKind:
    """What an outcome means. INVALID if it is unknown."""
    return _KINDS.get(outcome, AnswerKind.INVALID)


class OutboundBatch:
    """Records for one interval of one consumer, as columns of equal length: lists while the batch is being filled.

    ``waiting``: the indexes of un-ACKed records; None means all. ``bytes``: the size of the batch, which counts
    completely until its last record is ACKed. ``held``: the least timestamp of the un-ACKed records.
    """

    __slots__ = ("bytes", "held", "keys", "timestamps", "values", "waiting")

    def __init__(self) -> None:
        self.keys: Any = []
        self.values: Any = []
        self.timestamps: Any = []
        self.waiting: set[int] | None = None
        self.bytes = 0
        self.held = 0

    def indexes(self) -> Sequence[int]:
        """The indexes of the un-ACKed records, in order."""
        return range(len(self.timestamps)) if self.waiting is None else sorted(self.waiting)

    def count(self) -> int:
        """The number of un-ACKed records."""
        return len(self.timestamps) if self.waiting is None else len(self.waiting)

    def without(self, acked: Collection[int]) -> Collection[int]:
        """The indexes of the un-ACKed records that are not among ``acked``, which are indexes of the batch."""
        if self.waiting is not None:
            return self.waiting.difference(acked)
        count = len(self.timestamps)
        return () if len(acked) == count else set(range(count)).difference(acked)

    def measure(self) -> None:
        """Compute ``held``. At least one record must be un-ACKed."""
        stamps = self.timestamps
        self.held = min(stamps) if self.waiting is None else min(stamps[index] for index in self.waiting)


BatchT = TypeVar("BatchT", bound=OutboundBatch)
SubjectT = TypeVar("SubjectT")


class UnackedBatches(Generic[BatchT]):
    """Totals over the batches of one sender that are not completely ACKed.

    Invariant: ``records`` is the number of their un-ACKed records, ``bytes`` their size, and ``held`` has the least
    un-ACKed timestamp of each.
    """

    __slots__ = ("bytes", "held", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.held = MinTracker()

    def add(self, batch: BatchT) -> None:
        """Add a batch. It must be measured."""
        self.records += batch.count()
        self.bytes += batch.bytes
        self.held.add(batch.held)

    def remove(self, batch: BatchT) -> None:
        """Remove a batch that is ACKed, or whose records go elsewhere."""
        self.records -= batch.count()
        self.bytes -= batch.bytes
        self.held.remove(batch.held)

    def resized(self, batch: BatchT, before: int) -> None:
        """Register that the batch had ``before`` bytes until now."""
        self.bytes += batch.bytes - before

    def acknowledge(self, batch: BatchT, left: Collection[int]) -> bool:
        """Register that all records are ACKed, except those with the indexes ``left``.

        A record that was ACKed before stays ACKed. Indexes outside the batch are ignored.

        Returns:
            Whether the batch is completely ACKed. The caller then removes it.
        """
        before, waiting = batch.count(), batch.waiting
        if not left:
            self.records -= before
            batch.waiting = set()
            return True
        kept = {index for index in left if index < before} if waiting is None else waiting.intersection(left)
        if len(kept) == before:
            return not before
        self.records -= before - len(kept)
        batch.waiting = kept
        if not kept:
            return True
        self.held.remove(batch.held)
        batch.measure()
        self.held.add(batch.held)
        return False


class DeliveryAttempt:
    """One attempt to deliver a batch: which of its records have no answer yet. Indexes are places within the attempt.

    A receiver may refuse an attempt in part (FULL, with the indexes). It may ACK an attempt in steps (with the indexes
    that are not ACKed, refused ones included). The attempt is over when every record is refused or ACKed.
    """

    __slots__ = ("_open", "records")

    def __init__(self, records: int) -> None:
        self.records = records
        self._open: set[int] | None = None
        """The records without an answer; None means all."""

    @property
    def over(self) -> bool:
        """Whether every record has its answer."""
        return not self.records if self._open is None else not self._open

    def unanswered(self) -> Collection[int]:
        """The records without an answer. The result must not be modified."""
        return range(self.records) if self._open is None else self._open

    def answered(self, kind: AnswerKind, indexes: Sequence[int]) -> Collection[int]:
        """Process an answer. Indexes outside the attempt are ignored.

        Returns:
            The records that it ACKs or refuses, without those that had an answer before.
        """
        before = self.unanswered()
        if kind is AnswerKind.ACKED and indexes:
            self._open = set(before).intersection(indexes)
            return set(before) - self._open
        if kind is AnswerKind.FULL and indexes:
            self._open = set(before).difference(indexes)
            return set(before) - self._open
        self._open = set()
        return before


class OutstandingAttempts(Generic[SubjectT]):
    """Attempts with answers to come, by token. ``SubjectT``: what the caller knows each of them by."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[DeliveryAttempt, SubjectT]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, token: int) -> bool:
        return token in self._open

    def add(self, token: int, records: int, subject: SubjectT) -> None:
        """Add an attempt of ``records`` records."""
        self._open[token] = DeliveryAttempt(records), subject

    def answered(self, token: int, kind: AnswerKind, indexes: Sequence[int]) -> SubjectT | None:
        """Process an answer, and drop the attempt if it is over. Returns its subject, or None if it is unknown."""
        known = self._open.get(token)
        if known is None:
            return None
        attempt, subject = known
        attempt.answered(kind, indexes)
        if attempt.over:
            del self._open[token]
        return subject

    def clear(self) -> list[SubjectT]:
        """Drop all attempts. Returns their subjects, oldest first."""
        known, self._open = self._open, {}
        return [subject for _, subject in known.values()]
