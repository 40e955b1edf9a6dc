"""A receiver's state of one query's batches: the completed batch, and the ids from there on (exactly once
from Spark).

A query begins batch b only when every record of the earlier batches is ACKed by all its receivers. So the first
committed record of b proves that all copies of records below b are duplicates, for every key. Therefore receivers that
merge may take the larger bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.worker.dedup.results import DeliveryVerdict, PendingIds

__all__ = ["BatchQuery", "BatchSource"]


class BatchSource:
    """The ids of one batch of one query."""

    __slots__ = ("batch", "pending", "query", "seen")

    def __init__(self, query: str, batch: int) -> None:
        self.query = query
        self.batch = batch
        self.pending: PendingIds[bytes] = PendingIds()
        self.seen: set[bytes] = set()


class BatchQuery:
    """One query. ``batches`` has the batches at or above ``completed``, and lower ones with pending records."""

    __slots__ = ("batches", "completed", "query")

    def __init__(self, query: str) -> None:
        self.query = query
        self.completed: int | None = None
        """The highest batch with a committed record. All batches below it are completed."""
        self.batches: dict[int, BatchSource] = {}

    def check(self, batch: int, ids: Sequence[bytes], verdict: DeliveryVerdict) -> BatchSource:
        """Check the ids of one delivery of ``batch``."""
        source = self.batches.get(batch)
        below = self.completed is not None and batch < self.completed
        if source is None:
            source = BatchSource(self.query, batch)
            if below:
                verdict.duplicates = range(len(ids))
                return source
            self.batches[batch] = source
        pending = source.pending.ids
        if not below and pending.isdisjoint(ids) and source.seen.isdisjoint(ids):
            known = len(pending)
            pending.update(ids)
            if len(pending) - known == len(ids):
                verdict.all_fresh = True
                return source
            pending.difference_update(ids)  # an id is in the delivery twice
        _check_each(source, below, ids, verdict)
        return source

    def commit(self, batch: int, ids: Sequence[bytes]) -> None:
        """The pending ids are committed."""
        self.batches[batch].pending.settle(ids)
        self.remember(batch, ids)

    def remember(self, batch: int, ids: Sequence[bytes]) -> None:
        """The ids are committed. So ``batch`` has begun, and all batches below it are completed."""
        if self.completed is None or batch > self.completed:
            self.completed = batch
        if batch >= self.completed:
            self.batches.setdefault(batch, BatchSource(self.query, batch)).seen.update(ids)
        self._forget_before_completed()

    def inherit(self, parent: BatchQuery) -> None:
        """Merge a parent's state. Its bound on completed batches holds for every key."""
        if parent.completed is None:
            return
        self.completed = parent.completed if self.completed is None else max(self.completed, parent.completed)
        for source in parent.batches.values():
            if source.seen:
                self.remember(source.batch, list(source.seen))
        self._forget_before_completed()

    def _forget_before_completed(self) -> None:
        """Drop the ids of completed batches."""
        if self.completed is None:
            return
        for batch in [batch for batch in self.batches if batch < self.completed]:
            source = self.batches[batch]
            source.seen.clear()
            if not source.pending.ids:
                del self.batches[batch]


def _check_each(source: BatchSource, below: bool, ids: Sequence[bytes], verdict: DeliveryVerdict) -> None:
    fresh: list[int] = []
    duplicates: list[int] = []
    waiting: list[int] = []
    for index, id_ in enumerate(ids):
        if id_ in source.pending.ids:
            waiting.append(index)
        elif below or id_ in source.seen:
            duplicates.append(index)
        else:
            fresh.append(index)
            source.pending.ids.add(id_)
    verdict.fresh, verdict.duplicates, verdict.waiting = fresh, duplicates, waiting
