"""Keeping the journal short: state rows flushed behind it, base parts, and the floor (design §5).

The floor moves only inside an append, to a commit n such that (a) every key changed up to n has its row
acknowledged, and (b) base parts captured at n or later are acknowledged and named in the same append.
Whoever pauses here for ever leaves parts that nobody names and entries that are read once more:
never a floor without its base. Captures happen only while no sealed commit is in flight, so that what
they show is committed.
"""

from __future__ import annotations

from typing import Final

from millwheel.store.contract import PartId, StateRow
from millwheel.worker.interval.entry import FORMAT, BaseMeta, encode_part
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.judging import SEGMENT_PART
from millwheel.worker.messages import DeleteEntries, DeleteParts, FlushStates, Instruction, WriteParts

__all__ = ["DEDUP_PART", "META_PART", "OUTBOX_PART", "SEGMENT_PART", "TIMERS_PART", "Checkpointer"]

META_PART: Final = "meta"
TIMERS_PART: Final = "timers"
OUTBOX_PART: Final = "outbox"
DEDUP_PART: Final = "dedup"

_OUTBOX_ROWS: Final = 5_000
"""Productions in one part."""


class Checkpointer:
    """Decides when rows and base parts are written, and how far the floor may go."""

    def __init__(self, state: IntervalState) -> None:
        self.state = state
        self._number = 0
        self._flush: tuple[int, int, list[tuple[bytes, int, bytes]]] | None = None
        """The flush in flight: its number, the commit that it was taken at, its rows."""
        self._flushed_at = 0
        self._rows_upto = 0
        """Every row changed up to this commit is acknowledged."""
        self._parts: tuple[int, int, tuple[PartId, ...]] | None = None
        """The base parts in flight: their number, the commit that they show, their ids."""
        self._base: tuple[int, tuple[PartId, ...]] | None = None
        """The newest acknowledged base that no append has named."""
        self._named: tuple[int, tuple[PartId, ...]] | None = None
        """What the append in flight names."""
        self._collected: list[PartId] = []
        """Parts of collected id segments, to be deleted with the next base."""
        self.journal_bytes = 0
        """Of the entries above the floor, about."""

    def after_commit(self, now: int, entry_bytes: int) -> list[Instruction]:
        """A commit is acknowledged and none is in flight: capture what is due."""
        self.journal_bytes += entry_bytes
        return self._capture_rows(now) + self._capture_base()

    def next_alarm(self, now: int) -> int | None:
        """When rows should be flushed although nothing commits."""
        if self._flush is not None or not self.state.cells.dirty_count:
            return None
        if self.state.cells.crowded:
            return now
        return max(now, self._flushed_at + self.state.settings.flush_interval)

    def idle(self, now: int) -> list[Instruction]:
        """Time has passed and no commit is in flight."""
        return self._capture_rows(now)

    def _capture_rows(self, now: int) -> list[Instruction]:
        state = self.state
        if self._flush is not None:
            return []
        if now < self._flushed_at + state.settings.flush_interval and not state.cells.crowded:
            return []
        self._flushed_at = now
        rows = state.cells.dirty_rows()
        if not rows:
            self._rows_upto = state.committed
            return []
        self._number += 1
        self._flush = (self._number, state.committed, rows)
        config = state.config
        states = [StateRow(key, commit, encoded) for key, commit, encoded in rows]
        return [FlushStates(config.computation, config.journal, config.sequencer, self._number, states)]

    def flushed(self, number: int) -> None:
        """The rows of a flush are acknowledged."""
        if self._flush is None or self._flush[0] != number:
            return
        _, commit, rows = self._flush
        self._flush = None
        self.state.cells.flushed(rows)
        self._rows_upto = max(self._rows_upto, commit)

    def _capture_base(self) -> list[Instruction]:
        state = self.state
        settings = state.settings
        due = (
            state.committed - state.floor >= settings.checkpoint_entries
            or self.journal_bytes >= settings.checkpoint_bytes
        )
        if not due or self._parts is not None or self._base is not None or self._named is not None:
            return []
        blobs, kept = self._base_blobs()
        config = state.config
        parts = {PartId(name, config.sequencer, state.committed): blob for name, blob in blobs.items()}
        self._number += 1
        self._parts = (self._number, state.committed, tuple(sorted([*parts, *kept])))
        self.journal_bytes = 0
        return [WriteParts(config.journal, self._number, parts)]

    def _base_blobs(self) -> tuple[dict[str, bytes], list[PartId]]:
        """The base parts as of the last commit, and the older parts that stay valid (sealed id segments)."""
        state = self.state
        counts = state.counts
        totals = (counts.records, counts.duplicates, counts.late, counts.dead_letters)
        meta = BaseMeta(FORMAT, state.watermark, state.wall, state.output, list(state.holds.items()), totals, True)
        blobs = {META_PART: encode_part(meta)}
        timers = [
            (key, wall, tag, *setting) for wall, table in state.timers.items() for key, tag, setting in table.items()
        ]
        for at in range(0, len(timers), state.settings.timer_part):
            blobs[f"{TIMERS_PART}/{at}"] = encode_part(timers[at : at + state.settings.timer_part])
        productions = state.outbox.snapshot()
        for at in range(0, len(productions), _OUTBOX_ROWS):
            blobs[f"{OUTBOX_PART}/{at}"] = encode_part(productions[at : at + _OUTBOX_ROWS])
        snapshot = state.dedup.snapshot()
        for number, blob in enumerate(snapshot.blobs):
            blobs[f"{DEDUP_PART}/{number}"] = blob
        kept = [part for name in snapshot.segments for part in state.segments[name]]
        # Segments that were collected are named by nothing from now on, and some never were.
        relied = set(snapshot.segments)
        for name in [name for name in state.segments if name not in relied]:
            self._collected.extend(state.segments.pop(name))
        return blobs, kept

    def parts_written(self, number: int) -> None:
        """The base parts are acknowledged: an append may name them."""
        if self._parts is None or self._parts[0] != number:
            return
        _, commit, parts = self._parts
        self._parts = None
        self._base = (commit, parts)

    def floor_and_parts(self) -> tuple[int, tuple[PartId, ...]]:
        """What the next append names as its floor and base."""
        if self._base is not None and self._base[0] <= self._rows_upto:
            self._named, self._base = self._base, None
        if self._named is not None:
            return self._named
        return self.state.floor, self.state.parts

    def floor_committed(self) -> list[Instruction]:
        """The append that named them is committed: what lies below may be forgotten."""
        if self._named is None:
            return []
        state = self.state
        gone = sorted({*state.parts, *self._collected}.difference(self._named[1]))
        self._collected = []
        state.floor, state.parts = self._named
        self._named = None
        journal = state.config.journal
        instructions: list[Instruction] = [DeleteEntries(journal, state.floor + 1)]
        if gone:
            instructions.append(DeleteParts(journal, gone))
        return instructions

    def recovered(self, now: int, entry_bytes: int) -> None:
        """The state has been rebuilt from the journal: its rows are behind, and will be flushed."""
        self.journal_bytes = entry_bytes
        self._flushed_at = now
        self._rows_upto = self.state.floor
