"""Keeps a log's journal short: segment rows behind the journal, base parts, and the truncation point.

Invariant: the truncation point moves only in an append, and to a commit n for which both conditions hold. (a) The rows
of all segments closed up to n are acknowledged, and the open segment has no record of a commit up to n. (b) Base parts
captured at n are acknowledged and named in the same append. For (a), the entry of a commit at which a base is captured
ends the open segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millwheel.store.contract import PartId, StateRow
from millwheel.worker.log.entry import LOG_ENTRY_FORMAT, LogMeta, encode, row_key
from millwheel.worker.log.state import LogState
from millwheel.worker.messages import DeleteEntries, DeleteParts, FlushStates, OwnerEffect, WriteParts

__all__ = ["DEDUP_PART", "META_PART", "LogCheckpointer"]

META_PART: Final = "meta"
DEDUP_PART: Final = "dedup"


@dataclass(slots=True)
class _Flush:
    number: int
    segments: list[int]
    emptied: list[tuple[int, int]]


@dataclass(slots=True)
class _Base:
    commit: int
    parts: tuple[PartId, ...]


class LogCheckpointer:
    """Decides when rows and base parts are written, and how far the truncation point may move."""

    def __init__(self, state: LogState) -> None:
        self.state = state
        self._number = 0
        self._flush: _Flush | None = None
        self._writing: tuple[int, _Base] | None = None
        """The base parts that are being written."""
        self._base: _Base | None = None
        """The newest acknowledged base that no append has named yet."""
        self._named: _Base | None = None
        """The base that the append in flight names."""
        self._collected: list[PartId] = []
        """Parts of collected id segments, to be deleted with the next base."""

    # Bases.

    def due(self) -> bool:
        """Whether to capture a base at the commit that is being sealed."""
        state, settings = self.state, self.state.settings
        if self._writing is not None or self._base is not None or self._named is not None:
            return False
        return (
            state.committed - state.floor >= settings.checkpoint_entries
            or state.journal_bytes >= settings.checkpoint_bytes
        )

    def capture(self) -> list[OwnerEffect]:
        """Capture the base. Call this between the acknowledgement of the commit with ``due`` and the next seal."""
        state, config, records = self.state, self.state.config, self.state.records
        assert records.open.first == records.end, "the entry of a base ends the open segment"
        counts = state.counts
        meta = LogMeta(
            LOG_ENTRY_FORMAT,
            state.watermark,
            state.age,
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
            self._collected.extend(state.segments.pop(name))
        self._number += 1
        self._writing = self._number, _Base(state.committed, tuple(sorted([*parts, *kept])))
        state.journal_bytes = 0
        return [WriteParts(config.journal, self._number, parts)]

    def parts_written(self, number: int) -> None:
        """The base parts are acknowledged: an append may name them."""
        if self._writing is not None and self._writing[0] == number:
            self._base, self._writing = self._writing[1], None

    def floor_and_parts(self) -> tuple[int, tuple[PartId, ...]]:
        """The truncation point and base parts for the next append."""
        base = self._base
        if base is not None and self.state.records.covered(base.commit):
            self._named, self._base = base, None
        if self._named is not None:
            return self._named.commit, self._named.parts
        return self.state.floor, self.state.parts

    def floor_committed(self) -> list[OwnerEffect]:
        """The append that named them is committed: delete everything below."""
        named, self._named = self._named, None
        if named is None:
            return []
        state = self.state
        gone = sorted({*state.parts, *self._collected}.difference(named.parts))
        self._collected = []
        state.floor, state.parts = named.commit, named.parts
        journal = state.config.journal
        out: list[OwnerEffect] = [DeleteEntries(journal, state.floor + 1)]
        if gone:
            out.append(DeleteParts(journal, gone))
        return out

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
        waiting = self._base or (self._writing[1] if self._writing is not None else None)
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


_MIN_EMPTIED_ROWS: Final = 16
"""Number of rows to be emptied that starts a flush."""
