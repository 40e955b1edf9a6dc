"""The traced records of one stream's log: they reach its subscribers with their traces (docs/tracing.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from millwheel.model.traces import SpanSource, TraceContext
from millwheel.worker.log.intake import LogChunk, LogIntake
from millwheel.worker.log.messages import Publish
from millwheel.worker.traces import OwnerTraces

__all__ = ["LogTraces", "TracedLogIntake"]

MAX_TRACED_OFFSETS: Final = 1_000
"""Maximum records whose traces a log has for its subscribers. The oldest go first."""


class LogTraces(OwnerTraces):
    """The contexts of traced records by offset. They are in memory only: a new owner of the log has none."""

    def __init__(self, spans: SpanSource) -> None:
        super().__init__(spans)
        self.offsets: dict[int, TraceContext] = {}

    @property
    def active(self) -> bool:
        """Whether an effect may concern a traced record."""
        return bool(self.received or self.offsets)

    def after(self, effect: Any) -> None:
        """The log's step has had an effect."""
        if type(effect) is Publish:
            first, last = effect.first, effect.first + len(effect.values)
            effect.traces = {at - first: one for at, one in self.offsets.items() if first <= at < last} or None
        else:
            super().after(effect)

    def close(self, why: str) -> None:
        """End all spans."""
        super().close(why)
        self.offsets.clear()

    def placed(self, chunk: LogChunk, offset: int) -> None:
        """The records of a chunk get offsets, the first one ``offset``."""
        records = self.received.get(chunk.receipt.delivery, {})
        for index, record in records.items():
            indexes = chunk.indexes
            if indexes is not None and index not in indexes:
                continue
            record.handled = True
            if (context := record.span.context) is not None:
                while len(self.offsets) >= MAX_TRACED_OFFSETS:
                    del self.offsets[next(iter(self.offsets))]
                self.offsets[offset + (index if indexes is None else list(indexes).index(index))] = context


class TracedLogIntake(LogIntake):
    """A queue that notes which offsets traced records get. What is taken from it is committed in the same order."""

    def __init__(self, traces: LogTraces, end: Callable[[], int]) -> None:
        """``end``: the offset after the last committed record. Nothing else is in flight when records are taken."""
        super().__init__()
        self._traces = traces
        self._end = end

    def take(self, limit: int) -> list[LogChunk]:
        """Remove the next chunks from the queue, up to ``limit`` bytes but at least one."""
        chunks, offset = super().take(limit), self._end()
        for chunk in chunks if self._traces.received else ():
            self._traces.placed(chunk, offset)
            offset += len(chunk.values)
        return chunks
