"""Takeover of a log: restores the cached state only from what the journal's head names (sections 6.2, 7.1; G12)."""

from __future__ import annotations

from millwheel.model.keys import ALL_KEYS
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.dedup import Dedup, IdDelta
from millwheel.worker.id_segments import SEGMENT_PART
from millwheel.worker.log.checkpoint import DEDUP_PART, META_PART
from millwheel.worker.log.entry import LogEntry, LogMeta, decode
from millwheel.worker.log.state import LogState
from millwheel.worker.messages import Opened

__all__ = ["recover"]


def recover(state: LogState, opened: Opened) -> None:
    """Rebuild ``state`` from the base parts and the entries above the truncation point.

    Raises:
        CorruptValueError: Names the part or entry that is missing or damaged.
    """
    head, where = opened.head, f"journal {state.config.journal}"
    if len(opened.entries) != head.commit - head.floor:
        needed = f"entries {head.floor + 1} to {head.commit} are needed"
        raise CorruptValueError(where, f"{needed} and {len(opened.entries)} were found")
    state.journal.truncation_point, state.journal.parts, state.committed = head.floor, head.parts, head.commit
    _restore_base(state, opened.parts, where)
    for number, blob in enumerate(opened.entries, head.floor + 1):
        _apply(state, number, decode(blob, LogEntry, f"{where}, entry {number}"), where)
        state.journal.bytes += len(blob)


def _restore_base(state: LogState, parts: dict[PartId, bytes], where: str) -> None:
    ids: list[tuple[str, bytes]] = []
    filters: dict[str, bytes] = {}
    found: dict[str, list[PartId]] = {}
    for part, blob in parts.items():
        kind, _, name = part.name.partition("/")
        if kind == META_PART:
            _restore_meta(state, decode(blob, LogMeta, f"{where}, base part {part.name}"))
        elif kind == DEDUP_PART:
            ids.append((name, blob))
        elif kind == SEGMENT_PART:
            what, _, segment = name.partition("/")
            found.setdefault(segment, []).append(part)
            if what == "filter":
                filters[segment] = blob
    for segment, its in found.items():
        ordered = sorted(its, key=lambda part: not part.name.startswith(f"{SEGMENT_PART}/ids/"))
        state.segments[segment] = tuple(ordered)
    if ids:
        blobs = [blob for _, blob in sorted(ids, key=lambda one: int(one[0]))]
        state.dedup = Dedup.restore(ALL_KEYS, state.config.journal, blobs, filters)


def _restore_meta(state: LogState, meta: LogMeta) -> None:
    state.watermark = meta.watermark
    state.clock.age = state.clock.journaled_age = meta.age
    state.records.restore(meta.segments, meta.end)
    state.cursors.restore(meta.cursors)
    state.counts.add(meta.counts)


def _apply(state: LogState, number: int, entry: LogEntry, where: str) -> None:
    """Apply one entry: the same changes in the same order as its owner's at the commit."""
    if entry.first != state.records.end:
        raise CorruptValueError(
            f"{where}, entry {number}", f"it begins at offset {entry.first}, and the log ends at {state.records.end}"
        )
    state.watermark = max(state.watermark, entry.watermark)
    state.clock.age = state.clock.journaled_age = entry.age
    state.records.apply(entry, number, replayed=True)
    state.cursors.replay(number, entry.deleted, entry.cursors)
    if entry.ids:
        state.dedup.replay(IdDelta.from_wire(entry.ids))
    state.counts.add(entry.counts)
