"""Keeping the journal short: flushed state rows, base parts, and the truncation point.

Invariant: the truncation point (``floor``) moves only inside an append, to a commit n with two properties. (a) The rows
of all keys that changed up to n are acknowledged. (b) Base parts captured at n or later are acknowledged, and the same
append names them. An owner that stops in between leaves unnamed parts, and entries that the next takeover reads again.
It never leaves a truncation point without its base. Captures happen only while no sealed commit is in flight, so they
show committed state only.

The child of a split or merge needs its parents' journals until its own committed head names a base. It still sends
under the parents' sequences while that base has productions of theirs (part ``inherited``).

To become independent of parents, rows and base are *pressed*: they are written at once. If no work causes an append, an
extra append names the base. The same happens before the interval moves to a successor (PrepareRelease).
"""

from __future__ import annotations

from collections.abc import Container
from enum import Enum
from typing import Any, Final

from millwheel.store.contract import PartId, StateRow
from millwheel.worker.id_segments import SEGMENT_PART
from millwheel.worker.interval.entry import FORMAT, BaseMeta, ProductionRow, TimerRow, encode_part
from millwheel.worker.interval.parts import numbered
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.spilling import Spilling
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import (
    CopyParts,
    DeleteEntries,
    DeleteParts,
    FlushStates,
    IntervalEffect,
    ReleasePrepared,
    WriteParts,
)

__all__ = [
    "DEDUP_PART",
    "HOLDS_PART",
    "INHERITED_PART",
    "META_PART",
    "OUTBOX_PART",
    "SEGMENT_PART",
    "TIMERS_PART",
    "VOIDS_PART",
    "Checkpointer",
    "Needs",
]

META_PART: Final = "meta"
HOLDS_PART: Final = "holds"
TIMERS_PART: Final = "timers"
"""The timers in memory. The others are in parts of spilled timers."""
VOIDS_PART: Final = "voids"
"""The tombstones for timers in spilled parts."""
OUTBOX_PART: Final = "outbox"
INHERITED_PART: Final = "inherited"
"""Productions of parents. While the committed head names such a part, the parents' sequences must stay alive."""
DEDUP_PART: Final = "dedup"

_MAX_OUTBOX_ROWS: Final = 5_000
"""Maximum productions in one part."""
_ROW_BYTES: Final = 64
"""Bytes counted for each production besides its value, keys and names: numbers, an id, framing."""
_MAX_SMALL_ROWS: Final = 50_000
"""Maximum holds or tombstones in one part."""

_MAX_ROUNDS: Final = 3
"""Maximum bases that are written before a move while work continues."""
_SHORT_ENTRIES: Final = 64
_SHORT_BYTES: Final = 256 << 10
"""A journal with at most this much above its truncation point is short: some milliseconds to read."""

_FIRST_COPY_NUMBER: Final = 1 << 41
"""PartsWritten numbers of copies start here, to be distinct from those of checkpoints and id segments."""


class Needs(Enum):
    """What the child of a split or merge still needs of its parents, by its committed head."""

    DATA = "their base and entries"
    SEQUENCES = "their journals as sequences of productions"
    NOTHING = "nothing"


class Checkpointer:
    """Decides when rows and base parts are written, and how far the truncation point moves."""

    def __init__(self, state: IntervalState) -> None:
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._timers = state.timers
        self._cells = state.cells
        self._outbox = state.outbox
        self._holds = state.holds
        self._journal = state.journal
        self._ids = state.ids
        self.spilling = Spilling(state)
        self._number = 0
        self._flush: tuple[int, int, list[tuple[bytes, int, bytes]]] | None = None
        """The flush in flight: its number, the commit at which it was captured, its rows."""
        self._flushed_at = 0
        self._rows_upto = 0
        """Every row that changed up to this commit is acknowledged."""
        self._parts: tuple[int, int, tuple[PartId, ...]] | None = None
        """The base parts in flight: their number, the commit that they show, their ids."""
        self._base: tuple[int, tuple[PartId, ...]] | None = None
        """The newest acknowledged base that no append has named."""
        self._named: tuple[int, tuple[PartId, ...]] | None = None
        """The base that the append in flight names."""
        self._collected: list[PartId] = []
        """Parts of collected id segments. They are deleted with the next base."""
        self.journal_bytes = 0
        """Approximate size of the entries above the truncation point."""
        self.needs = Needs.NOTHING
        self._copies: dict[int, dict[str, tuple[PartId, ...]]] = {}
        """Id segments that are being copied from parents' journals into this one."""
        self._requests: list[Any] = []
        """Requests that wait for a short journal."""
        self._rounds = 0
        """Maximum bases still to write for these requests."""

    def after_commit(self, now: int) -> list[IntervalEffect]:
        """Capture what is due, after a commit is acknowledged and while none is in flight."""
        self.spilling.release()
        # The base comes first, because it waits for rows of the same commit.
        return self._capture_base() + self._capture_rows(now)

    def wants_stillness(self, now: int) -> bool:
        """Whether a capture or a load of timers is due that requires that no commit is in flight."""
        rows_due = self._flush is None and bool(self._cells.dirty_count) and self._rows_due(now)
        return rows_due or self._base_due() or self.pressing or self.spilling.wants_stillness

    def next_alarm(self, now: int) -> int | None:
        """When rows must be flushed if no commit comes before."""
        if self._flush is not None or not self._cells.dirty_count:
            return None
        return now if self._rows_due(now) else self._flush_at

    def idle(self, now: int) -> list[IntervalEffect]:
        """Flush rows if they are due. No commit is in flight."""
        return self._capture_rows(now)

    def _capture_rows(self, now: int) -> list[IntervalEffect]:
        if self._flush is not None or not self._rows_due(now):
            return []
        self._flushed_at = now
        rows = self._cells.dirty_rows()
        if not rows:
            self._rows_upto = self._journal.committed
            return []
        self._number += 1
        self._flush = (self._number, self._journal.committed, rows)
        config = self._setup.config
        states = [StateRow(key, commit, encoded) for key, commit, encoded in rows]
        return [FlushStates(config.computation, config.journal, config.sequencer, self._number, states)]

    def _rows_due(self, now: int) -> bool:
        """Whether rows must be written now.

        The truncation point needs them, together with a base, and so does memory. Otherwise they wait, because a later
        write covers more commits.
        """
        return now >= self._flush_at or self._base_waits or self._cells.crowded

    @property
    def _flush_at(self) -> int:
        """When rows are written that nothing waits for.

        Many rows are written sooner. A move to a successor must write all of them first.
        """
        settings = self._setup.settings
        behind = settings.flush_interval
        if self._cells.dirty_count >= settings.flush_rows:
            behind = min(behind, settings.flush_apart)
        return self._flushed_at + behind

    @property
    def _base_waits(self) -> bool:
        """Whether a captured base waits for rows that changed before it."""
        shown = self._parts[1] if self._parts is not None else self._base[0] if self._base is not None else None
        return shown is not None and self._rows_upto < shown

    def flushed(self, number: int, busy: Container[bytes] = ()) -> None:
        """The rows of a flush are acknowledged. The cells of ``busy`` keys are in use."""
        if self._flush is None or self._flush[0] != number:
            return
        _, commit, rows = self._flush
        self._flush = None
        self._cells.flushed(rows, busy)
        self._rows_upto = max(self._rows_upto, commit)

    def _capture_base(self) -> list[IntervalEffect]:
        return self._write_base() if self._base_due() else []

    def _base_due(self) -> bool:
        if not self._may_write_base():
            return False
        settings, journal = self._setup.settings, self._journal
        above = journal.committed - journal.truncation_point
        return (
            above >= settings.checkpoint_entries
            or self.journal_bytes >= settings.checkpoint_bytes
            or (above >= settings.checkpoint_entries // 16 and self.spilling.overflowing)
        )

    def _may_write_base(self) -> bool:
        """Whether a base can be captured: none is in progress, and it would name parts of its own journal only."""
        on_its_way = self._parts is not None or self._base is not None or self._named is not None
        return not on_its_way and not self._journal.foreign

    def _write_base(self) -> list[IntervalEffect]:
        near, spilled, kept_far = self.spilling.capture()
        blobs, kept = self._base_blobs(near)
        config, commit = self._setup.config, self._journal.committed
        parts = {PartId(name, config.sequencer, commit): blob for name, blob in blobs.items()} | spilled
        kept += kept_far
        self._number += 1
        self._parts = (self._number, commit, tuple(sorted([*parts, *kept])))
        self.journal_bytes = 0
        return [WriteParts(config.journal, self._number, parts)]

    def _base_blobs(self, timers: list[TimerRow]) -> tuple[dict[str, bytes], list[PartId]]:
        """The base parts as of the last commit, and the older parts that stay valid (sealed id segments)."""
        clocks, counts = self._clocks, self._journal.counts
        bounds = clocks.key_bounds.above(clocks.watermark).rows()
        meta = BaseMeta(FORMAT, clocks.watermark, clocks.wall, self._holds.output, counts.row, bounds)
        blobs = {META_PART: encode_part(meta)}
        blobs |= numbered(HOLDS_PART, list(self._holds.of_keys.items()), _MAX_SMALL_ROWS)
        blobs |= numbered(TIMERS_PART, timers, self._setup.settings.timer_part)
        blobs |= numbered(VOIDS_PART, self._timers.spilled.void_rows(), _MAX_SMALL_ROWS)
        blobs |= numbered(OUTBOX_PART, self._outbox.snapshot(), _MAX_OUTBOX_ROWS, _row_bytes)
        blobs |= numbered(
            INHERITED_PART, self._outbox.inherited_snapshot(), _MAX_OUTBOX_ROWS, lambda row: _row_bytes(row[1])
        )
        snapshot = self._ids.dedup.snapshot()
        for number, blob in enumerate(snapshot.blobs):
            blobs[f"{DEDUP_PART}/{number}"] = blob
        kept = [part for name in snapshot.segments for part in self._journal.segments[name]]
        # From now on nothing names collected segments. Some were never named.
        self._collected += self._journal.drop_segments(set(snapshot.segments))
        return blobs, kept

    def parts_written(self, number: int) -> None:
        """Parts are acknowledged. If they are base parts, an append may name them."""
        if number in self._copies:
            self._collected += self._journal.segments_copied(self._copies.pop(number))
        if self._parts is None or self._parts[0] != number:
            return
        _, commit, parts = self._parts
        self._parts = None
        self._base = (commit, parts)

    def truncation_and_parts(self) -> tuple[int, tuple[PartId, ...]]:
        """The truncation point and the base parts that the next append names."""
        if not self._cells.dirty_count:
            # No row is behind, although no flush was needed. If no state changes, no capture ever updates this.
            self._rows_upto = max(self._rows_upto, self._journal.committed)
        if self._base is not None and self._base[0] <= self._rows_upto:
            self._named, self._base = self._base, None
        if self._named is not None:
            return self._named
        return self._journal.truncation_point, self._journal.parts

    def truncation_committed(self) -> list[IntervalEffect]:
        """The append that named a base is committed. Returns the deletions of what is below the truncation point."""
        if self._named is None:
            return []
        gone = self._journal.truncate(*self._named, self._collected)
        self._collected = []
        self._named = None
        self.spilling.named()
        if self.needs is not Needs.NOTHING:
            self.needs = self._needed()
        journal = self._setup.config.journal
        effects: list[IntervalEffect] = [DeleteEntries(journal, self._journal.truncation_point + 1)]
        if gone:
            effects.append(DeleteParts(journal, gone))
        return effects

    def recovered(self, now: int, entry_bytes: int) -> None:
        """The state has been rebuilt from the journal. Its rows are behind and will be flushed."""
        self.journal_bytes = entry_bytes
        self._flushed_at = now
        self.needs = self._needed()
        # The parents' rows are behind too, and are older than the truncation point.
        self._rows_upto = -1 if self.needs is Needs.DATA else self._journal.truncation_point

    # Becoming independent of parents, and releasing the interval.

    def _needed(self) -> Needs:
        """Derive the needs from the committed head, because a successor finds that head."""
        if not self._setup.config.parents:
            return Needs.NOTHING
        if not self._journal.parts:
            return Needs.DATA
        kinds = {part.name.partition("/")[0] for part in self._journal.parts}
        return Needs.SEQUENCES if INHERITED_PART in kinds else Needs.NOTHING

    def copy_segments(self) -> list[IntervalEffect]:
        """Copy id segments from parents' journals into this one. A base may name parts of its own journal only."""
        config = self._setup.config
        copies: list[tuple[str, PartId, PartId]] = []
        copied: dict[str, tuple[PartId, ...]] = {}
        for name, journal in self._journal.foreign.items():
            parts = self._journal.segments[name]
            copied[name] = tuple(PartId(part.name, config.sequencer, self._journal.committed) for part in parts)
            copies.extend((journal, part, copy) for part, copy in zip(parts, copied[name], strict=True))
        if not copies:
            return []
        self._copies[_FIRST_COPY_NUMBER] = copied
        return [CopyParts(config.journal, _FIRST_COPY_NUMBER, copies)]

    def ask(self, request: Any) -> None:
        """Register a request to make the journal short. ``ReleasePrepared`` answers it."""
        self._requests.append(request)
        self._rounds = _MAX_ROUNDS

    @property
    def pressing(self) -> bool:
        """Whether rows and base must be written as soon as possible."""
        return bool(self._requests) or self.needs is not Needs.NOTHING

    @property
    def releasing(self) -> bool:
        """Whether a request waits and the child has no base yet. Then the base has priority over new work."""
        return bool(self._requests) and self.needs is Needs.DATA

    @property
    def wants_append(self) -> bool:
        """Whether an append is needed only to name a base."""
        return self.pressing and self._base is not None and self._base[0] <= self._rows_upto

    def press(self, now: int) -> list[IntervalEffect]:
        """Write what can be written while no commit is in flight, and answer requests that are complete."""
        out = self._answers()
        if not self.pressing:
            return out
        if self._may_write_base() and self._base_pressing():
            out += self._write_base()
        if self._base_waits:
            out += self._capture_rows(now)
        return out

    def _base_pressing(self) -> bool:
        if self.needs is Needs.DATA or (self.needs is Needs.SEQUENCES and not self._outbox.inherited):
            return True
        if self._requests and self._rounds:
            self._rounds -= 1
            return True
        return False

    def _answers(self) -> list[IntervalEffect]:
        if not self._requests:
            return []
        above = self._journal.committed - self._journal.truncation_point
        short = above <= _SHORT_ENTRIES and self.journal_bytes <= _SHORT_BYTES and self.needs is not Needs.DATA
        written = self._parts is None and self._base is None and self._named is None
        if not short and (self._rounds or not written):
            return []
        requests, self._requests = self._requests, []
        return [ReleasePrepared(request, above, self._journal.committed) for request in requests]


def _row_bytes(row: ProductionRow) -> int:
    """Approximate size of a production in a base: its value, producing key, stream, and its consumer's name and key."""
    ((consumer, key),) = row[5]
    return len(row[3]) + len(row[1]) + len(row[2]) + len(consumer) + len(key) + _ROW_BYTES
