"""A receiver's state of one query's batches: the completed batch, and the ids from there on (exactly once
from Spark).

A query begins batch b only when every record of the earlier batches is ACKed by all its receivers. So the first
committed record of b proves that all copies of records below b are duplicates, for every key. Therefore receivers that
merge may take the larger bound.

Ids of a batch only become more until the batch is completed. So full parts of them are stored once, and each later base
names the same parts. A base that wrote all ids would take a time that grows with the batch, at each base (G12, G13).
The rest of each batch, which fills no part, is written by each base.
"""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.store.contract import PartId
from millwheel.worker.dedup.results import DeliveryVerdict, PendingIds

__all__ = ["BatchPart", "BatchQuery", "BatchSource"]


class BatchPart:
    """Ids of one batch that are a base part of their own. They never change.

    ``part``: that base part; None until the journal writes it. ``ids``: the joined ids, until then.
    """

    __slots__ = ("ids", "part")

    def __init__(self, part: PartId | None = None, ids: bytes = b"") -> None:
        self.part = part
        self.ids = ids


class BatchSource:
    """The ids of one batch of one query.

    Invariant: each id in ``seen`` is in ``unstored`` or in one of ``stored`` (G1, G12). Who could break it: an id that
    is committed and not added to ``unstored``, or a base that leaves out a stored part of a batch that is not complete.
    """

    __slots__ = ("batch", "pending", "query", "seen", "stored", "unstored")

    def __init__(self, query: str, batch: int) -> None:
        self.query = query
        self.batch = batch
        self.pending: PendingIds[bytes] = PendingIds()
        self.seen: set[bytes] = set()
        self.stored: list[BatchPart] = []
        self.unstored: list[bytes] = []
        """The ids that each base writes, in an order that a repeated run has, too."""

    def seal_full_parts(self, size: int) -> None:
        """Move each full ``size`` of the unstored ids to ``stored``, as a part that does not change any more."""
        full = len(self.unstored) - len(self.unstored) % size
        for at in range(0, full, size):
            self.stored.append(BatchPart(None, b"".join(self.unstored[at : at + size])))
        del self.unstored[:full]

    def forget(self) -> None:
        """The batch is completed: nothing of it is needed."""
        self.seen.clear()
        self.stored.clear()
        self.unstored.clear()


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

    def remember(self, batch: int, ids: Sequence[bytes], stored: PartId | None = None) -> None:
        """The ids are committed. So ``batch`` has begun, and all batches below it are completed.

        ``stored``: the part of the journal's base that has exactly these ids, if there is one.
        """
        if self.completed is None or batch > self.completed:
            self.completed = batch
        if batch >= self.completed:
            source = self.batches.setdefault(batch, BatchSource(self.query, batch))
            source.seen.update(ids)
            if stored is None:
                source.unstored += ids
            else:
                source.stored.append(BatchPart(stored))
        self._forget_before_completed()

    def inherit(self, parent: BatchQuery) -> None:
        """Merge a parent's state. Its bound on completed batches holds for every key.

        The parts of stored ids belong to the parent's journal, so the child writes the ids once more. A repeated run
        has the same order. A parent that was restored to be inherited knows the order of its parts and entries.
        Another one has a set of its stored ids, so they are sorted, which takes about a second for a million.
        """
        if parent.completed is None:
            return
        self.completed = parent.completed if self.completed is None else max(self.completed, parent.completed)
        for source in parent.batches.values():
            if source.seen:
                known = self.batches.get(source.batch)
                ids = sorted(source.seen) if source.stored else source.unstored
                self.remember(source.batch, ids if known is None else [id_ for id_ in ids if id_ not in known.seen])
        self._forget_before_completed()

    def _forget_before_completed(self) -> None:
        """Drop the ids of completed batches."""
        if self.completed is None:
            return
        for batch in [batch for batch in self.batches if batch < self.completed]:
            source = self.batches[batch]
            source.forget()
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
