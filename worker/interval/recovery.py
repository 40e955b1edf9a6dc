"""Takeover: rebuild the soft state from what the journal's head names, and nothing else (sections 6.2, 7.1; G12).

The child of a split or merge whose head names no base yet starts from its parents' sealed journals, reduced to its own
keys. Then it applies its own entries (docs/decisions/0012-moves-splits-merges.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from millwheel.model.keys import KeyInterval
from millwheel.model.page_keys import row_owner
from millwheel.model.time import MIN_TIMESTAMP, TimeDomain
from millwheel.sdk.effects import TimerSetting
from millwheel.store.contract import CorruptValueError, JournalHead, PartId
from millwheel.worker.dedup import DEDUP_PART, Dedup, decode_delta
from millwheel.worker.id_segments import SEGMENT_PART
from millwheel.worker.interval.commits.base_parts import (
    HOLDS_PART,
    INHERITED_PART,
    META_PART,
    OUTBOX_PART,
    PANES_PART,
    TIMERS_PART,
    VOIDS_PART,
)
from millwheel.worker.interval.commits.divided import (
    ENTRY_PART,
    base_parts,
    entry_parts,
    is_entry_part,
    joined,
    names_base,
)
from millwheel.worker.interval.entry import (
    BaseMeta,
    InheritedRow,
    IntervalEntry,
    ProductionRow,
    TimerRow,
    VoidRow,
    decode_entry,
    decode_part,
)
from millwheel.worker.interval.holds import Holds
from millwheel.worker.interval.key_bounds import BoundRow, KeyWatermarkBounds
from millwheel.worker.interval.outbox.flows import INDEX_BITS
from millwheel.worker.interval.panes.changes import PaneChange, apply_changes
from millwheel.worker.interval.panes.table import PaneTable
from millwheel.worker.interval.spilled_timers import SPILLED_PART, SpilledPart, SpilledTimers, is_spilled
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.journal import CommitCounts
from millwheel.worker.messages import Opened, OpenedParent
from millwheel.worker.takeover import numbered_entries, restored_ids

__all__ = ["recover"]

_READ_APART: Final = frozenset({DEDUP_PART, SEGMENT_PART, SPILLED_PART, VOIDS_PART, ENTRY_PART})
"""The kinds of parts that are not read one by one."""

Productions = dict[tuple[str, int, str], ProductionRow]
"""By sequence (empty: the interval's own journal), position and consumer. A production reaches each consumer once."""


@dataclass(slots=True)
class _IntervalWhole:
    """The recovered values that belong to the whole interval and not to single keys."""

    keys: KeyInterval
    dedup: Dedup
    watermark: int = MIN_TIMESTAMP
    wall: int = 0
    output: int = MIN_TIMESTAMP
    counts: CommitCounts = field(default_factory=CommitCounts)
    key_bounds: list[BoundRow] = field(default_factory=list)
    segments: dict[str, tuple[PartId, ...]] = field(default_factory=dict)


def recover(state: IntervalState, opened: Opened) -> None:
    """Rebuild ``state`` from the base parts and the entries above the truncation point.

    Raises:
        CorruptValueError: Stored data is missing or damaged; the error names it.
    """
    head, config = opened.head, state.config
    if head.truncation_point and not names_base(head.parts) and not opened.parents:
        raise CorruptValueError(
            f"journal {config.journal}", "it stems from other journals and names no base of its own: they are needed"
        )
    # If any journal was ever truncated, rows may exist for keys that the entries do not name.
    heads = [parent.head for parent in opened.parents] or [head]
    state.cells.evicted = any(one.truncation_point > 0 for one in heads)
    journal = state.journal
    journal.opened(head, opened.entries)
    journal.parts, journal.entry_parts = base_parts(head.parts), entry_parts(head.parts)
    journal.bytes += sum(len(blob) for part, blob in opened.parts.items() if is_entry_part(part))
    productions: Productions = {}
    whole = _IntervalWhole(config.keys, Dedup(config.keys, config.journal))
    if opened.parents:
        whole = _inherited(state, opened.parents, productions)
    reader = _Reader(state, config.journal, whole, productions)
    reader.read(head, opened.parts, opened.entries)
    _set_first_timer(state, [*heads, head])
    _fill_state(state, whole, productions)


def _set_first_timer(state: IntervalState, heads: Sequence[JournalHead]) -> None:
    """Set the timer with which a computation without inputs begins, if nothing is committed yet.

    Invariant (G5): it fires once. Its firing is the first commit of these journals, because nothing else makes work for
    such a computation. A base before that has it among the timers. Who may break it: another way to commit without a
    hook.
    """
    key = state.program.begins_with
    if key is None or key not in state.config.keys or any(one.commit for one in heads):
        return
    table = state.timers.tables[TimeDomain.PROCESSING_TIME]
    if table.get(key, "") is None:
        table.set(key, "", TimerSetting(0, MIN_TIMESTAMP, MIN_TIMESTAMP), None)


def _inherited(state: IntervalState, parents: Sequence[OpenedParent], productions: Productions) -> _IntervalWhole:
    """The start of a child: its parents' last commits, reduced to its keys."""
    keys, journal = state.config.keys, state.config.journal
    read: list[tuple[OpenedParent, _IntervalWhole]] = []
    tables: list[PaneTable] = []
    for opened in parents:
        parent = opened.parent
        whole = _IntervalWhole(parent.keys, Dedup(parent.keys, parent.journal))
        reader = _Reader(state, parent.journal, whole, productions, keys)
        reader.read(opened.head, opened.parts, opened.entries)
        tables.append(reader.panes)
        state.journal.foreign.update(dict.fromkeys(whole.segments, parent.journal))
        read.append((opened, whole))
    if any(table.windows for table in tables):
        state.panes.take_in(tables, keys)
    wholes = [whole for _, whole in read]
    child = _IntervalWhole(
        keys,
        Dedup.inherit(keys, journal, [whole.dedup for whole in wholes]),
        min(whole.watermark for whole in wholes),
        max(whole.wall for whole in wholes),
        min(whole.output for whole in wholes),
    )
    for opened, whole in read:
        child.segments.update(whole.segments)
        start, end = opened.parent.keys.start, opened.parent.keys.end
        shown = KeyWatermarkBounds([*whole.key_bounds, (start, end, whole.watermark)])
        child.key_bounds += shown.within(keys)
        if start in keys:
            # One child takes over the totals completely, so that they count once.
            child.counts.add(*whole.counts.row)
    return child


def _fill_state(state: IntervalState, whole: _IntervalWhole, productions: Productions) -> None:
    """Move the recovered values into the soft state."""
    state.ids.dedup, state.journal.segments = whole.dedup, whole.segments
    state.clocks.restore(whole.watermark, whole.wall, whole.key_bounds)
    state.output.rise(whole.output)
    state.journal.restore_counts(whole.counts.row)
    state.panes.find_first()
    ordered = sorted(productions.items(), key=lambda item: item[0][1])
    for sequence in sorted({sequence for sequence, _, _ in productions}):
        rows = [row for place, row in ordered if place[0] == sequence]
        state.outbox.add(rows, sequence, now=state.clocks.elapsed)
    if state.clocks.bounded:
        for key, _, setting in state.timers.tables[TimeDomain.EVENT_TIME].items():
            state.timers.note_due(key, setting.at)
        highest = max(bound for _, _, bound in state.clocks.key_bounds.rows())
        for window in state.panes.due(highest):
            for key in window.listed():
                state.timers.note_due(key, window.end)


class _Reader:
    """Reads one journal into the state.

    ``keys`` None: it is the interval's own journal. Otherwise it is a parent's, and only these keys are read.
    """

    def __init__(
        self,
        state: IntervalState,
        journal: str,
        whole: _IntervalWhole,
        productions: Productions,
        keys: KeyInterval | None = None,
    ) -> None:
        self._state = state
        self._journal = journal
        self._whole = whole
        self._productions = productions
        self._keys = keys
        self._sequence = "" if keys is None else journal
        self.panes = state.panes if keys is None else PaneTable()

    def read(self, head: JournalHead, parts: dict[PartId, bytes], entries: Sequence[bytes]) -> None:
        """Read the base, and then apply the entries in order."""
        numbered = numbered_entries(f"journal {self._journal}", head, entries)
        self._base(parts)
        for number, which, blob in numbered:
            entry = decode_entry(joined(blob, number, parts, which), which)
            self._apply(number, entry if self._keys is None else _cut(entry, self._keys))
            apply_changes(self.panes, entry.panes, which)

    def _base(self, parts: dict[PartId, bytes]) -> None:
        for part, blob in parts.items():
            kind = part.name.partition("/")[0]
            if kind not in _READ_APART:
                self._restore(kind, blob, f"journal {self._journal}, base part {part.name}")
        self._spilled_timers(parts)
        dedup, segments = restored_ids(self._whole.keys, self._journal, parts, of_parent=self._keys is not None)
        self._whole.segments.update(segments)
        if dedup is not None:
            self._whole.dedup = dedup

    def _restore(self, kind: str, blob: bytes, where: str) -> None:
        if kind == META_PART:
            self._meta(decode_part(blob, BaseMeta, where))
        elif kind == HOLDS_PART:
            keys = self._keys
            rows = decode_part(blob, list[tuple[bytes, int]], where)
            for key, hold in rows:
                if keys is None or key in keys:
                    self._state.holds.set_of_key(key, hold, None)
        elif kind == TIMERS_PART:
            self._load_timers(decode_part(blob, list[TimerRow], where))
        elif kind == OUTBOX_PART:
            for production in decode_part(blob, list[ProductionRow], where):
                self._keep(self._sequence, production)
        elif kind == INHERITED_PART:
            for sequence, production in decode_part(blob, list[InheritedRow], where):
                self._keep(sequence, production)
        elif kind == PANES_PART:
            apply_changes(self.panes, decode_part(blob, list[PaneChange], where), where)
        else:
            raise CorruptValueError(where, "a part of a kind that this version does not know")

    def _meta(self, meta: BaseMeta) -> None:
        whole = self._whole
        whole.watermark, whole.wall, whole.output = meta.watermark, meta.wall, meta.output
        whole.counts = CommitCounts(*meta.counts)
        whole.key_bounds = meta.key_bounds

    def _keep(self, sequence: str, row: ProductionRow) -> None:
        position, producer, stream, value, timestamp, targets, opaque = row
        if self._keys is not None and producer not in self._keys:
            return
        for target in targets:
            self._productions[sequence, position, target[0]] = (
                position, producer, stream, value, timestamp, (target,), opaque,
            )  # fmt: skip

    def _load_timers(self, rows: list[TimerRow]) -> None:
        keys = self._keys
        if keys is not None:
            rows = [row for row in rows if row[0] in keys]
        for domain, table in self._state.timers.tables.items():
            processing = domain is TimeDomain.PROCESSING_TIME
            table.load((row[0], row[2], TimerSetting(*row[3:])) for row in rows if row[1] is processing)

    def _spilled_timers(self, parts: dict[PartId, bytes]) -> None:
        """Spilled timers of the own journal stay in the store.

        A parent's are loaded, because the child's base stores them.
        """
        where = f"journal {self._journal}, base part"
        spilled = self._state.timers.spilled if self._keys is None else SpilledTimers(Holds())
        for part, blob in parts.items():
            if part.name.startswith(SPILLED_PART) and not is_spilled([part]):
                spilled.add(SpilledPart.decode(part, blob, f"{where} {part.name}"))
        for part, blob in parts.items():
            if part.name.startswith(VOIDS_PART):
                for key, processing, tag, below in decode_part(blob, list[VoidRow], f"{where} {part.name}"):
                    spilled.void(key, TimeDomain(processing), tag, below)
        if self._keys is not None:
            for name in spilled.parts:
                rows = decode_part(parts[name], list[TimerRow], f"{where} {name.name}")
                self._load_timers(spilled.current_rows(rows))

    def _set_timer(self, row: TimerRow) -> None:
        key, processing, tag, at, hold, cause, set_at_position = row
        domain = TimeDomain(processing)
        if self._keys is None or key in self._keys:
            previous = self._state.timers.tables[domain].set(
                key, tag, TimerSetting(at, hold, cause, set_at_position), None
            )
            if previous is None and self._keys is None and self._state.timers.spilled.parts:
                self._state.timers.spilled.void(key, domain, tag, set_at_position)

    def _clear_timer(self, key: bytes, domain: TimeDomain, tag: str, commit: int) -> None:
        previous = self._state.timers.tables[domain].cancel(key, tag, None)
        if previous is None and self._keys is None and self._state.timers.spilled.parts:
            self._state.timers.spilled.void(key, domain, tag, commit << INDEX_BITS)

    def _apply(self, number: int, entry: IntervalEntry) -> None:
        """Apply one entry: the same changes in the same order as when its owner sealed it."""
        state, whole, productions = self._state, self._whole, self._productions
        whole.watermark = max(whole.watermark, entry.watermark)
        whole.wall = max(whole.wall, entry.wall)
        state.cells.changed(entry.states, number)
        for key, hold in entry.holds:
            state.holds.set_of_key(key, hold, None)
        for key, processing, tag in entry.timers_cleared:
            self._clear_timer(key, TimeDomain(processing), tag, number)
        for row in entry.timers_set:
            self._set_timer(row)
        for production in entry.productions:
            self._keep(self._sequence, production)
        for position, consumer in entry.acked:
            productions.pop((self._sequence, position, consumer), None)
        for acked in entry.acked_inherited:
            productions.pop(acked, None)
        if entry.ids:
            whole.dedup.replay(decode_delta(entry.ids))
        whole.counts.add(*entry.counts)


def _cut(entry: IntervalEntry, keys: KeyInterval) -> IntervalEntry:
    """The content of the entry for ``keys``. Timers and productions are filtered later, when they are applied."""
    return IntervalEntry(
        entry.format,
        entry.watermark,
        entry.wall,
        [row for row in entry.states if row_owner(row[0]) in keys],
        [row for row in entry.holds if row[0] in keys],
        entry.timers_set,
        entry.timers_cleared,
        entry.productions,
        entry.ids,
        entry.acked,
        entry.counts,
        entry.acked_inherited,
    )
