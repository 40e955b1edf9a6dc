"""Base parts: a snapshot of one interval as of its last commit, for the store (section 6.2; G12)."""

from __future__ import annotations

from typing import Final

from millwheel.store.contract import PartId
from millwheel.worker.interval.entry import FORMAT, BaseMeta, ProductionRow, encode_part
from millwheel.worker.interval.parts import numbered
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.spilling import Spilling
from millwheel.worker.interval.state import IntervalState

__all__ = [
    "DEDUP_PART",
    "HOLDS_PART",
    "INHERITED_PART",
    "META_PART",
    "OUTBOX_PART",
    "TIMERS_PART",
    "VOIDS_PART",
    "BaseParts",
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


class BaseParts:
    """Captures bases. Call it only while no sealed commit is in flight."""

    def __init__(self, state: IntervalState, spilling: Spilling) -> None:
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._timers = state.timers
        self._outbox = state.outbox
        self._holds = state.holds
        self._journal = state.journal
        self._ids = state.ids
        self._spilling = spilling

    def capture(self) -> tuple[dict[PartId, bytes], list[PartId], list[PartId]]:
        """Capture a base.

        Returns:
            Its new parts, the older parts that stay valid, and the parts of id segments that nothing names from now on.
        """
        near, spilled, kept = self._spilling.capture()
        config, commit, clocks = self._setup.config, self._journal.committed, self._clocks
        bounds = clocks.key_bounds.above(clocks.watermark).rows()
        meta = BaseMeta(FORMAT, clocks.watermark, clocks.wall, self._holds.output, self._journal.counts.row, bounds)
        blobs = {META_PART: encode_part(meta)}
        blobs |= numbered(HOLDS_PART, list(self._holds.of_keys.items()), _MAX_SMALL_ROWS)
        blobs |= numbered(TIMERS_PART, near, self._setup.settings.timer_part)
        blobs |= numbered(VOIDS_PART, self._timers.spilled.void_rows(), _MAX_SMALL_ROWS)
        blobs |= numbered(OUTBOX_PART, self._outbox.snapshot(), _MAX_OUTBOX_ROWS, _row_bytes)
        blobs |= numbered(
            INHERITED_PART, self._outbox.inherited_snapshot(), _MAX_OUTBOX_ROWS, lambda row: _row_bytes(row[1])
        )
        snapshot = self._ids.dedup.snapshot()
        for number, blob in enumerate(snapshot.blobs):
            blobs[f"{DEDUP_PART}/{number}"] = blob
        kept += [part for name in snapshot.segments for part in self._journal.segments[name]]
        parts = {PartId(name, config.sequencer, commit): blob for name, blob in blobs.items()} | spilled
        return parts, kept, self._journal.drop_segments(set(snapshot.segments))


def _row_bytes(row: ProductionRow) -> int:
    """Approximate size of a production in a base: its value, producing key, stream, and its consumer's name and key."""
    ((consumer, key),) = row[5]
    return len(row[3]) + len(row[1]) + len(row[2]) + len(consumer) + len(key) + _ROW_BYTES
