"""Takeover: the soft state from what the journal's head names, and nothing else (sections 6.2, 7.1; G12)."""

from __future__ import annotations

from millwheel.sdk.context import TimerSetting
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.dedup import Dedup, IdDelta
from millwheel.worker.interval.cells import CellCache
from millwheel.worker.interval.checkpoint import DEDUP_PART, META_PART, OUTBOX_PART, SEGMENT_PART, TIMERS_PART
from millwheel.worker.interval.entry import BaseMeta, Entry, ProductionRow, TimerRow, decode_entry, decode_part
from millwheel.worker.interval.state import IntervalState, effective_hold
from millwheel.worker.messages import Opened

__all__ = ["recover"]

Productions = dict[tuple[int, str], ProductionRow]
"""By position and consumer: a production reaches each of its consumers once."""


def recover(state: IntervalState, opened: Opened) -> None:
    """Rebuild ``state`` from base parts and the entries above the floor; CorruptValueError names what is damaged."""
    head, config = opened.head, state.config
    if len(opened.entries) != head.commit - head.floor:
        raise CorruptValueError(
            f"journal {config.journal}",
            f"entries {head.floor + 1} to {head.commit} are needed and {len(opened.entries)} were found",
        )
    state.floor, state.parts = head.floor, head.parts
    state.sealed = state.committed = head.commit
    # Rows of keys that the entries do not name may exist once anything was ever forgotten.
    state.cells = CellCache(state.settings.cache_bytes, evicted=head.floor > 0)
    productions: Productions = {}
    _restore_base(state, opened.parts, productions)
    for number, blob in enumerate(opened.entries, head.floor + 1):
        _apply(state, number, decode_entry(blob, f"journal {config.journal}, entry {number}"), productions)
    state.scope.watermark, state.scope.now = state.watermark, state.wall
    state.outbox.add(sorted(productions.values(), key=lambda row: row[0]))
    for wall, table in state.timers.items():
        for _, _, setting in table.items():
            if (hold := effective_hold(setting, wall)) is not None:
                state.hold_times.add(hold)
    for hold in state.holds.values():
        state.hold_times.add(hold)


def _restore_base(state: IntervalState, parts: dict[PartId, bytes], productions: Productions) -> None:
    ids: list[bytes] = []
    filters: dict[str, bytes] = {}
    for part, blob in parts.items():
        kind, _, name = part.name.partition("/")
        where = f"journal {state.config.journal}, base part {part.name}"
        if kind == META_PART:
            _restore_meta(state, decode_part(blob, BaseMeta, where))
        elif kind == TIMERS_PART:
            for row in decode_part(blob, list[TimerRow], where):
                _set_timer(state, row)
        elif kind == OUTBOX_PART:
            for production in decode_part(blob, list[ProductionRow], where):
                _keep(productions, production)
        elif kind == DEDUP_PART:
            ids.append(blob)
        elif kind == SEGMENT_PART:
            what, _, segment = name.partition("/")
            state.segments[segment] = (*state.segments.get(segment, ()), part)
            if what == "filter":
                filters[segment] = blob
    for segment, found in state.segments.items():
        state.segments[segment] = tuple(
            sorted(found, key=lambda part: not part.name.startswith(f"{SEGMENT_PART}/ids/"))
        )
    if ids:
        state.dedup = Dedup.restore(state.config.keys, state.config.journal, ids, filters)


def _restore_meta(state: IntervalState, meta: BaseMeta) -> None:
    state.watermark, state.wall, state.output = meta.watermark, meta.wall, meta.output
    state.holds = dict(meta.holds)
    counts = state.counts
    counts.records, counts.duplicates, counts.late, counts.dead_letters = meta.counts


def _keep(productions: Productions, row: ProductionRow) -> None:
    position, producer, stream, value, timestamp, targets, opaque = row
    for target in targets:
        productions[position, target[0]] = (position, producer, stream, value, timestamp, (target,), opaque)


def _set_timer(state: IntervalState, row: TimerRow) -> None:
    key, wall, tag, at, hold, cause, origin = row
    state.timers[wall].set(key, tag, TimerSetting(at, hold, cause, origin))


def _apply(state: IntervalState, number: int, entry: Entry, productions: Productions) -> None:
    """Apply one entry: the same changes, in the same order, as when its owner sealed it."""
    state.watermark = max(state.watermark, entry.watermark)
    state.wall = max(state.wall, entry.wall)
    for key, _ in entry.states:
        if key not in state.cells:
            state.cells.insert(key, b"")
    state.cells.changed(entry.states, number)
    for key, hold in entry.holds:
        state.holds.pop(key, None)
        if hold is not None:
            state.holds[key] = hold
    for key, wall, tag in entry.timers_cleared:
        state.timers[wall].cancel(key, tag)
    for row in entry.timers_set:
        _set_timer(state, row)
    for production in entry.productions:
        _keep(productions, production)
    for acked in entry.acked:
        productions.pop(acked, None)
    if entry.ids:
        state.dedup.replay(IdDelta.from_wire(entry.ids))
    records, duplicates, late, dead = entry.counts
    state.counts.records += records
    state.counts.duplicates += duplicates
    state.counts.late += late
    state.counts.dead_letters += dead
