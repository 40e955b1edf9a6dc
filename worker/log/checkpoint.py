"""Writes what keeps a log's journal short: segment rows behind the journal, and base parts.

An append names a base when its parts and the rows before it are acknowledged. So that the open segment has no record of
a commit up to the base, the entry of the base's commit ends that segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millwheel.store.contract import StateRow
from millwheel.worker.log.entry import LOG_ENTRY_FORMAT, LogMeta, encode, row_key
from millwheel.worker.log.segment_rows import facts_of, row_of
from millwheel.worker.log.state import LogState
from millwheel.worker.messages import FlushStates, OwnerEffect, StatesFlushed, WriteParts

__all__ = ["META_PART", "LogCheckpointer"]

META_PART: Final = "meta"

_MIN_EMPTIED_ROWS: Final = 16
"""Number of rows to be emptied that starts a flush."""


@dataclass(slots=True)
class _Flush:
    number: int
    segments: list[int]
    emptied: list[tuple[int, int]]


class LogCheckpointer:
    """Decides when rows are written, and captures bases."""

    def __init__(self, state: LogState) -> None:
        self.state = state
        self._number = 0
        """The number of the last flush."""
        self._flush: _Flush | None = None

    def capture(self) -> WriteParts:
        """Capture the base. Call this between the acknowledgement of a commit that needs it and the next seal."""
        state, records = self.state, self.state.records
        assert records.open.first == records.end, "the entry of a base ends the open segment"
        meta = LogMeta(
            LOG_ENTRY_FORMAT,
            state.watermark,
            state.clock.age,
            records.end,
            state.cursors.facts(),
            [facts_of(segment) for segment in records.closed],
            state.counts.row[:3],
            state.letters.facts(),
            state.letters.begun,
        )
        return state.journal.write_base({META_PART: encode(meta)}, state.dedup.snapshot(), {}, ())

    def flush(self) -> list[OwnerEffect]:
        """Write rows if a base waits for them, if rows must be emptied, or if memory is short."""
        if self._flush is not None or not self._wanted():
            return []
        records, settings = self.state.records, self.state.settings
        rows: list[StateRow] = []
        size = 0
        segments: list[int] = []
        for segment in records.dirty.values():
            if rows and size + segment.size > settings.flush_bytes:
                break
            segment.written = True
            size += segment.size
            rows.append(StateRow(row_key(segment.first), segment.commit, row_of(segment)))
            segments.append(segment.first)
        emptied = list(records.emptied.items())
        rows += [StateRow(row_key(first), commit, b"") for first, commit in emptied]
        self._number += 1
        self._flush = _Flush(self._number, segments, emptied)
        config = self.state.config
        return [FlushStates(config.incarnation, config.journal, config.sequencer, self._number, rows)]

    def _wanted(self) -> bool:
        records = self.state.records
        if self.state.journal.base_waits(records.stored_to()):
            return True
        if records.dirty and records.memory > self.state.settings.memory_bytes // 2:
            return True
        return len(records.emptied) >= _MIN_EMPTIED_ROWS

    def flushed(self, event: StatesFlushed) -> None:
        """The rows of a flush are acknowledged."""
        if self._flush is not None and self._flush.number == event.number:
            self.state.records.acknowledged(self._flush.segments, self._flush.emptied)
            self._flush = None
