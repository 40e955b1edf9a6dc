"""The traced records of one sender whose ACKs are missing: their spans, and the contexts that travel with them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Final

from millwheel.model.incarnation import name_of_incarnation
from millwheel.model.traces import RecordSpan, RecordTraces

__all__ = ["SentRecord", "TracedRecords"]

MAX_TRACED_RECORDS: Final = 1_000
"""Maximum traced records, and batches with them, that are followed. An older one goes on without its ACK."""


class SentRecord:
    """A traced record, and the consumers that have not ACKed it."""

    __slots__ = ("awaiting", "sent", "span")

    def __init__(self, span: RecordSpan, consumers: Collection[str]) -> None:
        self.span = span
        self.awaiting = set(consumers)
        self.sent: set[str] = set()
        """The consumers to which it was sent."""

    def acked(self, consumer: str) -> bool:
        """A consumer has ACKed it. Returns whether it was the last one."""
        if consumer in self.awaiting:
            self.awaiting.discard(consumer)
            self.span.event("acked", consumer=name_of_incarnation(consumer))
        if self.awaiting:
            return False
        self.span.end()
        return True


class TracedRecords:
    """By the scope of their ids and by id. Memory is bounded: the oldest entries go first (G13)."""

    def __init__(self) -> None:
        self._records: dict[tuple[Hashable, int | bytes], SentRecord] = {}
        self._by_scope: dict[Hashable, dict[int | bytes, SentRecord]] = {}
        self._batches: dict[int, tuple[Hashable, str, dict[int, tuple[int | bytes, SentRecord]]]] = {}
        """By the token of a delivery: scope of ids, consumer, and records by their index."""

    def __len__(self) -> int:
        return len(self._records)

    def add(self, scope: Hashable, id_: int | bytes, span: RecordSpan, consumers: Collection[str]) -> None:
        """Follow a record until ``consumers`` have ACKed it. Without consumers, its span ends at once."""
        if not consumers:
            span.end()
            return
        if span.context is None:
            return
        while len(self._records) >= MAX_TRACED_RECORDS:
            oldest_scope, oldest = next(iter(self._records))
            self._forget(oldest_scope, oldest, "no longer followed")
        record = SentRecord(span, consumers)
        self._records[scope, id_] = record
        self._by_scope.setdefault(scope, {})[id_] = record

    def sending(
        self, token: int, scope: Hashable, consumer: str, ids: Sequence[int] | Sequence[bytes]
    ) -> RecordTraces | None:
        """The contexts to send with a delivery attempt. None: it has no traced record."""
        known = self._by_scope.get(scope)
        if not known or not (shared := known.keys() & ids):
            return None
        found = {ids.index(one): (one, known[one]) for one in shared}
        contexts = {}
        for index, (_, record) in found.items():
            if consumer in record.sent:
                record.span.event("sent again", consumer=name_of_incarnation(consumer))
            record.sent.add(consumer)
            if (context := record.span.context) is not None:
                contexts[index] = context
        while len(self._batches) >= MAX_TRACED_RECORDS:
            del self._batches[next(iter(self._batches))]
        self._batches[token] = scope, consumer, found
        return contexts

    def acked(self, token: int, remaining: Collection[int] = ()) -> None:
        """The records of an attempt are ACKed, except those at the ``remaining`` indexes."""
        batch = self._batches.pop(token, None)
        if batch is None:
            return
        scope, consumer, found = batch
        left = {index: one for index, one in found.items() if index in remaining}
        for id_, record in (one for index, one in found.items() if index not in left):
            if record.acked(consumer):
                self._drop(scope, id_)
        if left:
            self._batches[token] = scope, consumer, left

    def refused(self, token: int, why: str, indexes: Collection[int] = ()) -> None:
        """Records of an attempt were refused, and are sent again later. Empty ``indexes``: all of them."""
        batch = self._batches.get(token)
        if batch is None:
            return
        found = batch[2]
        for index in [one for one in found if not indexes or one in indexes]:
            found.pop(index)[1].span.event("refused", reason=why)
        if not found:
            del self._batches[token]

    def close(self, why: str) -> None:
        """End all spans. The ACKs come to another process, or never."""
        for scope, id_ in list(self._records):
            self._forget(scope, id_, why)
        self._batches.clear()

    def _forget(self, scope: Hashable, id_: int | bytes, why: str) -> None:
        record = self._records[scope, id_]
        record.span.event(why)
        record.span.end()
        self._drop(scope, id_)

    def _drop(self, scope: Hashable, id_: int | bytes) -> None:
        if self._records.pop((scope, id_), None) is not None:
            of_scope = self._by_scope[scope]
            del of_scope[id_]
            if not of_scope:
                del self._by_scope[scope]
