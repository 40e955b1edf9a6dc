"""The state of an interval according to its journal, read by the simulator's own code (G12).

It checks the product's takeover, so it shares no code with it, except the row types, which define the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from millwheel.model.keys import KeyInterval
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.columns import RecordColumns
from millwheel.rpc.v1 import delivery_pb2
from millwheel.store.contract import JournalHead, PartId
from millwheel.store.memory import MemoryStore
from millwheel.worker.interval.entry import BaseMeta, InheritedRow, IntervalEntry, ProductionRow, TimerRow, VoidRow
from millwheel.worker.interval.panes.changes import PaneChange
from millwheel.worker.messages import Parent
from simulation.store import finished
from simulation.twin_ids import IdFacts

__all__ = ["IntervalTwin", "Place", "TimerName", "load_ids", "plain_entry", "read_interval", "wrong_filters"]

TimerName = tuple[bytes, bool, str]
"""Key, whether it is a timer of the wall clock, tag."""
Setting = tuple[int, int | None, int, int]
"""Time, hold, cause, position of the setting."""
WindowName = tuple[int, int, bytes]
"""Start, end, form of the columns."""
Place = tuple[str, int, str]
"""Sequence (empty: the journal's own), position, consumer."""
FloorRow = tuple[bytes, bytes | None, int]
"""First key, end, the watermark that these keys have seen."""

_DIVIDED: Final = 2
"""The format number of an entry whose bytes are in parts."""


@dataclass(slots=True)
class IntervalTwin:
    """What a journal says about an interval."""

    keys: KeyInterval
    ids: IdFacts
    watermark: int = MIN_TIMESTAMP
    wall: int = 0
    output: int = MIN_TIMESTAMP
    counts: tuple[int, ...] = (0, 0, 0, 0, 0)
    key_bounds: list[FloorRow] = field(default_factory=list)
    states: dict[bytes, bytes] = field(default_factory=dict)
    """The states of keys that the entries name, and of their pages; the others are in their rows.

    A page's key is its key, the byte 0xFF and a number.
    """
    holds: dict[bytes, int] = field(default_factory=dict)
    timers: dict[TimerName, Setting] = field(default_factory=dict)
    productions: dict[Place, ProductionRow] = field(default_factory=dict)
    """Each with one consumer. It contains all productions without an ACK."""
    windows: dict[WindowName, dict[int, tuple[bytes, tuple[Any, ...]]]] = field(default_factory=dict)
    """The panes of windows by columns: by window and row, the key and the numbers."""
    faults: list[str] = field(default_factory=list)
    """Contradictions between its parts."""

    def bound_of(self, key: bytes) -> int:
        """The watermark that the key has seen, if the interval's watermark is below it."""
        shown = [one for start, end, one in self.key_bounds if start <= key and (end is None or key < end)]
        return max((one for one in shown if one > self.watermark), default=MIN_TIMESTAMP)


def read_interval(store: MemoryStore, journal: str, keys: KeyInterval, parents: Sequence[Parent]) -> IntervalTwin:
    """The interval of ``journal``. Until its head names a base, its initial state is in its parents' journals."""
    head: JournalHead = finished(store.read_head(journal))
    twin = IntervalTwin(keys, IdFacts(keys))
    if parents and all(part.name.startswith("entry/") for part in head.parts):
        _begin(twin, [(one, _read_parent(store, one)) for one in parents])
    _read(store, journal, head, twin)
    return twin


def _read_parent(store: MemoryStore, parent: Parent) -> IntervalTwin:
    twin = IntervalTwin(parent.keys, IdFacts(parent.keys))
    _read(store, parent.journal, finished(store.read_head(parent.journal)), twin)
    return twin


def _begin(child: IntervalTwin, parents: Sequence[tuple[Parent, IntervalTwin]]) -> None:
    """Start ``child`` from its parents.

    Each key's state comes from its parent. State of the whole interval gets the value that holds for every parent.
    """
    twins = [twin for _, twin in parents]
    keys = child.keys
    child.watermark = min(twin.watermark for twin in twins)
    child.wall = max(twin.wall for twin in twins)
    child.output = min(twin.output for twin in twins)
    floors = [floor for twin in twins for floor in twin.ids.floors]
    for name in {name for twin in twins for name in twin.windows}:
        panes = [pane for twin in twins for pane in twin.windows.get(name, {}).values() if pane[0] in keys]
        if panes:
            child.windows[name] = dict(enumerate(sorted(panes)))
    for parent, twin in parents:
        twin.ids.end_former_lives(floors)
        for start, end, shown in [*twin.key_bounds, (twin.keys.start, twin.keys.end, twin.watermark)]:
            common = keys.intersection(KeyInterval(start, end))
            if common is not None:
                child.key_bounds.append((common.start, common.end, shown))
        if twin.keys.start in keys:
            child.counts = tuple(map(sum, zip(child.counts, twin.counts, strict=True)))
        child.states |= {row: state for row, state in twin.states.items() if row.partition(b"\xff")[0] in keys}
        child.holds |= {key: hold for key, hold in twin.holds.items() if key in keys}
        child.timers |= {name: setting for name, setting in twin.timers.items() if name[0] in keys}
        for (sequence, position, consumer), row in twin.productions.items():
            if row[1] in keys:
                child.productions[sequence or parent.journal, position, consumer] = row
        child.ids.inherit(twin.ids)
        child.faults += twin.faults


def _read(store: MemoryStore, journal: str, head: JournalHead, twin: IntervalTwin) -> None:
    """Read what the head of a journal names."""
    blobs = dict(zip(head.parts, finished(store.read_parts(journal, head.parts)), strict=True))
    _read_base(journal, blobs, twin)
    entries = finished(store.read_entries(journal, head.truncation_point + 1, head.commit))
    if len(entries) != head.commit - head.truncation_point:
        twin.faults.append(f"{journal} has {len(entries)} entries from {head.truncation_point + 1} to {head.commit}")
    for number, blob in enumerate(entries, head.truncation_point + 1):
        _apply(twin, plain_entry(blob, number, blobs.__getitem__))


def plain_entry(blob: bytes, commit: int, part: Callable[[PartId], bytes]) -> IntervalEntry:
    """The entry of a commit; the bytes of a large entry are in parts."""
    raw = msgspec.msgpack.decode(blob)
    if raw[0] == _DIVIDED:
        _, sequencer, parts, size = raw
        blob = b"".join(part(PartId(f"entry/{number}", sequencer, commit)) for number in range(parts))
        assert len(blob) == size, f"an entry of {size} bytes has {len(blob)}"
    entry = msgspec.msgpack.decode(blob, type=IntervalEntry)
    rows: list[ProductionRow] = []
    for run in entry.runs:
        producers, stamps = _spread(run.producers), _spread(run.times)
        for at, (producer, value, stamp) in enumerate(zip(producers, run.values, stamps, strict=True)):
            targets = tuple((name, keys[at] if isinstance(keys, list) else keys) for name, keys in run.targets)
            rows.append((run.position + at, producer, run.stream, value, stamp, targets, b""))
    for table in entry.tables:
        records = RecordColumns.from_wire(delivery_pb2.RecordColumns.FromString(table.columns))
        for at, (value, stamp) in enumerate(zip(records, records.timestamps, strict=True)):
            row = records.batch.slice(at, 1).to_pylist()[0]
            own = tuple((name, _key_in(row, key)) for name, key in table.targets)
            rows.append((table.position + at, table.producer, table.stream, value, stamp, own, b""))
    return replace(entry, productions=rows + entry.productions, runs=[], tables=[])


def _key_in(row: Mapping[str, Any], key: str | tuple[bytes]) -> bytes:
    """The key of a row: in a column, or one for all rows. An empty name is the empty key."""
    if isinstance(key, tuple):
        return key[0]
    return str(row[key]).encode() if key else b""


def _spread(column: list[Any]) -> list[Any]:
    """The items of a column of a run, in which (number, item) stands for so many."""
    return [one for each in column for one in ([each[1]] * each[0] if isinstance(each, tuple) else [each])]


def _rows(blobs: Mapping[PartId, bytes], kind: str, type_: Any) -> list[Any]:
    """All rows of the parts whose names begin with ``kind``."""
    found: list[Any] = []
    for part, blob in blobs.items():
        if part.name.startswith(f"{kind}/"):
            found += msgspec.msgpack.decode(blob, type=tuple[int, list[type_]])[1]
    return found


def _read_base(journal: str, blobs: Mapping[PartId, bytes], twin: IntervalTwin) -> None:
    for part, blob in blobs.items():
        if part.name == "meta":
            meta = msgspec.msgpack.decode(blob, type=tuple[int, BaseMeta])[1]
            twin.watermark, twin.wall, twin.output = meta.watermark, meta.wall, meta.output
            twin.counts, twin.key_bounds = meta.counts, list(meta.key_bounds)
    twin.holds.update(_rows(blobs, "holds", tuple[bytes, int]))
    voids = {row[:3]: row[3] for row in _rows(blobs, "voids", VoidRow)}
    for row in _rows(blobs, "far/rows", TimerRow):
        if row[6] >= voids.get(row[:3], 0):
            if row[:3] in twin.timers:
                twin.faults.append(f"timer {row[:3]} of {journal} stands twice in stored parts")
            twin.timers[row[:3]] = row[3:]
    twin.timers.update((row[:3], row[3:]) for row in _rows(blobs, "timers", TimerRow))
    for row in _rows(blobs, "outbox", ProductionRow):
        _keep(twin, "", row)
    for sequence, row in _rows(blobs, "inherited", InheritedRow):
        _keep(twin, sequence, row)
    for change in _rows(blobs, "panes", PaneChange):
        _change_window(twin, change)
    load_ids(twin.ids, blobs)
    twin.faults += _wrong_indexes(blobs)
    twin.faults += wrong_filters(blobs)


def load_ids(ids: IdFacts, blobs: Mapping[PartId, bytes]) -> None:
    """Read the ids of a base. Its parts are numbered, and are one list of rows in that order."""
    names = {part.name: blob for part, blob in blobs.items()}
    numbers = sorted(int(name.removeprefix("dedup/")) for name in names if name.startswith("dedup/"))
    for number in numbers:
        ids.load(names[f"dedup/{number}"], lambda name: names[f"segment/ids/{name}"])


def _wrong_indexes(blobs: Mapping[PartId, bytes]) -> list[str]:
    """Indexes of stored timers that do not fit their rows: searches would find these timers late or never."""
    wrong = []
    for part, blob in blobs.items():
        if part.name.startswith("far/index/"):
            wall, first, _, prints = msgspec.msgpack.decode(blob)[1]
            rows_part = PartId(part.name.replace("index", "rows"), part.sequencer, part.commit)
            rows = msgspec.msgpack.decode(blobs[rows_part], type=tuple[int, list[TimerRow]])[1]
            if any(row[1] is not wall or row[3] < first for row in rows) or len(prints) != 8 * len(rows):
                wrong.append(f"the index {part} does not fit its {len(rows)} rows")
    return wrong


def wrong_filters(blobs: Mapping[PartId, bytes]) -> list[str]:
    """Filters of stored segments that do not match their ids: a duplicate would be admitted as a new record."""
    ids = {part.name.removeprefix("segment/ids/"): blob for part, blob in blobs.items()}
    wrong = []
    for part, blob in blobs.items():
        name = part.name.removeprefix("segment/filter/")
        if name != part.name:
            halves = [ids[name][at + 8 : at + 16] for at in range(0, len(ids[name]), 16)]
            if blob != b"".join(halves):
                wrong.append(f"the filter of segment {name} is not of its ids")
    return wrong


def _keep(twin: IntervalTwin, sequence: str, row: ProductionRow) -> None:
    position, producer, stream, value, timestamp, targets, opaque = row
    for consumer, key in targets:
        one: ProductionRow = position, producer, stream, value, timestamp, ((consumer, key),), opaque
        twin.productions[sequence, position, consumer] = one


def _change_window(twin: IntervalTwin, change: PaneChange) -> None:
    """Apply a change of a window by columns."""
    panes = twin.windows.setdefault((change.start, change.end, change.form), {})
    rows = _numbers("<u4", change.rows)
    keys = dict(zip(rows[len(rows) - len(change.keys) :], change.keys, strict=True))
    numbers = [_numbers(kind, content) for kind, content in change.columns]
    for row, *values in zip(rows, *numbers, strict=True):
        if row not in keys and row not in panes:
            twin.faults.append(f"row {row} of a window that ends at {change.end} has no key")
        panes[row] = keys[row] if row in keys else panes[row][0], tuple(values)
    for row in _numbers("<u4", change.closed):
        if panes.pop(row, None) is None:
            twin.faults.append(f"row {row} of a window that ends at {change.end} leaves twice")
    if not panes:
        del twin.windows[change.start, change.end, change.form]


def _numbers(kind: str, content: bytes) -> list[Any]:
    """The numbers of a column."""
    code = {"<u4": "I", "<i8": "q", "<f8": "d", "|b1": "?"}[kind]
    return [one for (one,) in struct.iter_unpack(f"<{code}", content)]


def _apply(twin: IntervalTwin, entry: IntervalEntry) -> None:
    """Apply one commit."""
    if entry.watermark < twin.watermark:
        twin.faults.append(f"an entry is at watermark {entry.watermark}, and {twin.watermark} was before it")
    twin.watermark = max(twin.watermark, entry.watermark)
    twin.wall = max(twin.wall, entry.wall)
    twin.states.update(entry.states)
    for key, hold in entry.holds:
        if hold is None:
            twin.holds.pop(key, None)
        else:
            twin.holds[key] = hold
    for name in entry.timers_cleared:
        twin.timers.pop(name, None)
    for timer in entry.timers_set:
        twin.timers[timer[:3]] = timer[3:]
    for production in entry.productions:
        _keep(twin, "", production)
    for position, consumer in entry.acked:
        twin.productions.pop(("", position, consumer), None)
    for place in entry.acked_inherited:
        twin.productions.pop(place, None)
    for change in entry.panes:
        _change_window(twin, change)
    twin.ids.apply(entry.ids)
    twin.counts = tuple(map(sum, zip(twin.counts, entry.counts, strict=True)))
