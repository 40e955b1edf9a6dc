"""Base parts: a snapshot of one interval as of its last commit, for the store (section 6.2; G12)."""

from __future__ import annotations

from operator import itemgetter
from typing import Final

from millwheel.worker.interval.commits.parts import PART_BYTES, numbered
from millwheel.worker.interval.commits.spilling import Spilling
from millwheel.worker.interval.entry import FORMAT, BaseMeta, InheritedRow, ProductionRow, encode_part
from millwheel.worker.interval.outbox.outbox import Outbox
from millwheel.worker.interval.panes.changes import change_bytes, whole_table
from millwheel.worker.interval.panes.table import MAX_WINDOWS
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import WriteParts

__all__ = [
    "HOLDS_PART",
    "INHERITED_PART",
    "META_PART",
    "OUTBOX_PART",
    "PANES_PART",
    "TIMERS_PART",
    "VOIDS_PART",
    "inherited_rows",
    "own_rows",
    "write_base",
]

META_PART: Final = "meta"
HOLDS_PART: Final = "holds"
TIMERS_PART: Final = "timers"
"""The timers in memory. The others are in parts of spilled timers."""
VOIDS_PART: Final = "voids"
"""The tombstones for timers in spilled parts."""
OUTBOX_PART: Final = "outbox"
PANES_PART: Final = "panes"
"""Windows by columns. An older version refuses the kind of the part."""
INHERITED_PART: Final = "inherited"
"""Productions of parents. While the committed head names such a part, the parents' sequences must stay alive."""

MAX_OUTBOX_ROWS: Final = 5_000
"""Maximum productions in one part."""
_ROW_BYTES: Final = 64
"""Bytes counted for each production besides its value, keys and names: numbers, an id, framing."""
_MAX_SMALL_ROWS: Final = 50_000
"""Maximum holds or tombstones in one part."""


def write_base(state: IntervalState, spilling: Spilling) -> WriteParts:
    """Capture a base, and write it. Call it only while no sealed commit is in flight."""
    near, spilled, kept = spilling.capture()
    clocks, outbox, journal = state.clocks, state.outbox, state.journal
    bounds = clocks.key_bounds.above(clocks.watermark).rows()
    meta = BaseMeta(FORMAT, clocks.watermark, clocks.wall, state.output.value, journal.counts.row, bounds)
    blobs = {META_PART: encode_part(meta)}
    blobs |= numbered(HOLDS_PART, list(state.holds.of_keys.items()), _MAX_SMALL_ROWS)
    blobs |= numbered(TIMERS_PART, near, state.settings.timer_part)
    blobs |= numbered(VOIDS_PART, state.timers.spilled.void_rows(), _MAX_SMALL_ROWS)
    # So few bytes are cut by the number of rows. To measure each of them would cost more than to encode it.
    known = outbox.unacked.bytes + sum(sum(map(len, one.producers)) for one in outbox)
    size = None if known <= PART_BYTES // 2 else _row_bytes
    blobs |= numbered(OUTBOX_PART, own_rows(outbox), MAX_OUTBOX_ROWS, size)
    blobs |= numbered(PANES_PART, list(whole_table(state.panes)), MAX_WINDOWS, change_bytes)
    inherited = inherited_rows(outbox)
    blobs |= numbered(INHERITED_PART, inherited, MAX_OUTBOX_ROWS, lambda row: _row_bytes(row[1]))
    return journal.write_base(blobs, state.ids.dedup.snapshot(), spilled, kept)


def own_rows(outbox: Outbox) -> list[ProductionRow]:
    """Every production of the own sequence that is not ACKed, by increasing position."""
    rows = [row for one in outbox if not one.sequence for row in outbox.rows_of(one)]
    rows.sort(key=itemgetter(0))
    return rows


def inherited_rows(outbox: Outbox) -> list[InheritedRow]:
    """Every production of a parent's sequence that is not ACKed, by sequence and increasing position."""
    rows = [(one.sequence, row) for one in outbox if one.sequence for row in outbox.rows_of(one)]
    rows.sort(key=lambda row: (row[0], row[1][0]))
    return rows


def _row_bytes(row: ProductionRow) -> int:
    """Approximate size of a production in a base: its value, producing key, stream, and its consumer's name and key."""
    ((consumer, key),) = row[5]
    return len(row[3]) + len(row[1]) + len(row[2]) + len(consumer) + len(key) + _ROW_BYTES
