"""Keeping a log's journal short: segment rows written behind it, base parts, and the floor (design §5).

The floor moves only inside an append, to a commit n such that (a) every segment closed up to n has its row
acknowledged and no record of a commit up to n is in the open one, and (b) base parts captured at n are acknowledged and
named in the same append. For (a) the entry of a commit at which a base is captured ends the open segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millwheel.store.contract import PartId, StateRow
from millwheel.worker.log.entry import FORMAT, LogMeta, encode, row_key
from millwheel.worker.log.state import LogState
from millwheel.worker.messages import DeleteEntries, DeleteParts, FlushStates, Instruction, WriteParts

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
    """Decides when rows and base parts are written, and how far the floor may go."""

    def __init__(self, state: LogState) -> None:
        self.state = state
        self._number = 0
        self._flush: _Flush | None = None
        self._writing: tuple[int, _Base] | None = None
        """The base parts in flight."""
        self._base: _Base | None = None
        """The newest acknowledged base that no append has named."""
        self._named: _Base | None = None
        """What the append in flight names."""
        self._collected: list[PartId] = []
        """Parts of collected id segments, to be deleted with the next base."""

    # Bases.

    def due(self) -> bool:
        """Whether a base should be captured at the commit now being sealed."""
        state, settings = self.state, self.state.settings
        if self._writing is not None or self._base is not None or self._named is not None:
            return False
        return (
            state.committed - state.floor >= settings.checkpoint_entries
            or state.journal_bytes >= settings.checkpoint_bytes
        )

    def capture(self) -> list[Instruction]:
        """The commit that ``due`` was asked for is acknowledged, and the next is not sealed: capture the base."""
        state, config, records = self.state, self.state.config, self.state.records
        assert records.open.first == records.end, "the entry of a base ends the open segment"
        counts = state.counts
        meta = LogMeta(
            FORMAT,
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
        # Segments that were collected are named by nothing from now on, and some never were.
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
        """What the append now made names as its floor and base."""
        base = self._base
        if base is not None and self.state.records.covered(base.commit):
            self._named, self._base = base, None
        if self._named is not None:
            return self._named.commit, self._named.parts
        return self.state.floor, self.state.parts

    def floor_committed(self) -> list[Instruction]:
        """The append that named them is committed: what lies below may be forgotten."""
        named, self._named = self._named, None
        if named is None:
            return []
        state = self.state
        gone = sorted({*state.parts, *self._collected}.difference(named.parts))
        self._collected = []
        state.floor, state.parts = named.commit, named.parts
        journal = state.config.journal
        out: list[Instruction] = [DeleteEntries(journal, state.floor + 1)]
        if gone:
            out.append(DeleteParts(journal, gone))
        return out

    # Rows.

    def flush(self) -> list[Instruction]:
        """Write rows if a base waits for them, if rows are to be emptied, or if memory is wanted back."""
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
        return len(records.emptied) >= _EMPTIED

    def flushed(self, number: int) -> None:
        """The rows of a flush are acknowledged."""
        if self._flush is not None and self._flush.number == number:
            self.state.records.acknowledged(self._flush.segments, self._flush.emptied)
            self._flush = None


_EMPTIED: Final = 16
"""Rows to be emptied that make a flush worth its while."""
