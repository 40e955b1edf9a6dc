"""Takeover of a log: restores the cached state only from what the journal's head names (sections 6.2, 7.1; G12)."""

from __future__ import annotations

from millwheel.store.contract import CorruptValueError
from millwheel.worker.dedup import decode_delta
from millwheel.worker.log.checkpoint import META_PART
from millwheel.worker.log.entry import LogEntry, LogMeta, decode
from millwheel.worker.log.segment_rows import stored_segment
from millwheel.worker.log.state import LogState
from millwheel.worker.messages import Opened
from millwheel.worker.takeover import numbered_entries, restored_ids

__all__ = ["recover"]


def recover(state: LogState, opened: Opened) -> None:
    """Rebuild ``state`` from the base parts and the entries above the truncation point.

    Raises:
        CorruptValueError: Names the part or entry that is missing or damaged.
    """
    where, journal = f"journal {state.config.journal}", state.journal
    entries = numbered_entries(where, opened.head, opened.entries)
    journal.opened(opened.head, opened.entries)
    for part, blob in opened.parts.items():
        if part.name == META_PART:
            _restore_meta(state, decode(blob, LogMeta, f"{where}, base part {part.name}"))
    dedup, segments = restored_ids(state.config.keys, journal.name, opened.parts)
    journal.segments.update(segments)
    if dedup is not None:
        state.ids.dedup = dedup
    for number, which, blob in entries:
        _apply(state, number, decode(blob, LogEntry, which), which)


def _restore_meta(state: LogState, meta: LogMeta) -> None:
    state.watermark = meta.watermark
    state.clock.age = state.clock.journaled_age = meta.age
    state.records.restore([stored_segment(facts) for facts in meta.segments], meta.end)
    state.cursors.restore(meta.cursors)
    state.letters.restore(meta.letters, meta.letters_begun)
    state.counts.add(*meta.counts)


def _apply(state: LogState, number: int, entry: LogEntry, where: str) -> None:
    """Apply one entry: the same changes in the same order as its owner's at the commit."""
    if entry.first != state.records.end:
        raise CorruptValueError(where, f"it begins at offset {entry.first}, and the log ends at {state.records.end}")
    state.watermark = max(state.watermark, entry.watermark)
    state.clock.age = state.clock.journaled_age = entry.age
    state.records.apply(entry, number, replayed=True)
    state.cursors.replay(number, entry.deleted, entry.cursors)
    state.letters.apply(entry.letters, entry.start)
    if entry.ids:
        state.dedup.replay(decode_delta(entry.ids))
    state.counts.add(*entry.counts)
