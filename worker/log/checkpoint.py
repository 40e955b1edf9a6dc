"""Writes what keeps a log's journal short: segment rows behind the journal, and base parts.

``LogJournal`` names a base in an append when its parts and the rows before it are acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millwheel.store.contract import PartId, StateRow
from millwheel.worker.log.entry import LOG_ENTRY_FORMAT, LogMeta, encode, row_key
from millwheel.worker.log.state import LogBase, LogState
from millwheel.worker.messages import FlushStates, OwnerEffect, WriteParts

__all__ = ["DEDUP_PART", "META_PART", "LogCheckpointer"]

META_PART: Final = "meta"
DEDUP_PART: Final = "dedup"

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
        """The number of the last write."""
        self._base_number = 0
        self._flush: _Flush | None = None

    # Bases.

    def capture(self) -> list[OwnerEffect]:
        """Capture the base. Call this between the acknowledgement of a commit that ``needs_base`` and the next seal."""
        state, config, records, journal = self.state, self.state.config, self.state.records, self.state.journal
        assert records.open.first == records.end, "the entry of a base ends the open segment"
        counts = state.counts
        meta = LogMeta(
            LOG_ENTRY_FORMAT,
            state.watermark,
            state.clock.age,
            records.end,
            state.cursors.facts(),
            [segment.facts for segment in records.closed],
            (counts.records, counts.duplicates, counts.late),
        )
        snapshot = state.dedup.snapshot()
        blobs = {META_PART: encode(meta)}
        for number, blob in enumerate(snapshot.blobs):
            blobs[f"{DEDUP_PART}/{number}"] = blob
        parts = {PartId(name, config.sequencer, state.committed): blob for name, blob in blobs.items()}
        kept = [part for name in snapshot.segments for part in state.segments[name]]
        # No base refers to collected segments from now on. Some were never in a base.
        relied = set(snapshot.segments)
        for name in [name for name in state.segments if name not in relied]:
            journal.collected.extend(state.segments.pop(name))
        self._number += 1
        self._base_number = self._number
        journal.writing = LogBase(state.committed, tuple(sorted([*parts, *kept])))
        journal.bytes = 0
        return [WriteParts(config.journal, self._number, parts)]

    def parts_written(self, number: int) -> None:
        """The base parts are acknowledged: an append may name them."""
        journal = self.state.journal
        if journal.writing is not None and self._base_number == number:
            journal.written, journal.writing = journal.writing, None

    # Rows.

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
            rows.append(StateRow(row_key(segment.first), segment.commit, segment.encode()))
            segments.append(segment.first)
        emptied = list(records.emptied.items())
        rows += [StateRow(row_key(first), commit, b"") for first, commit in emptied]
        self._number += 1
        self._flush = _Flush(self._number, segments, emptied)
        config = self.state.config
        return [FlushStates(config.computation, config.journal, config.sequencer, self._number, rows)]

    def _wanted(self) -> bool:
        records = self.state.records
        waiting = self.state.journal.written or self.state.journal.writing
        if waiting is not None and not records.covered(waiting.commit):
            return True
        if records.dirty and records.memory > self.state.settings.memory_bytes // 2:
            return True
        return len(records.emptied) >= _MIN_EMPTIED_ROWS

    def flushed(self, number: int) -> None:
        """The rows of a flush are acknowledged."""
        if self._flush is not None and self._flush.number == number:
            self.state.records.acknowledged(self._flush.segments, self._flush.emptied)
            self._flush = None
