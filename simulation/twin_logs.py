"""The state of a stream log according to its journal, read by the simulator's own code (G12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.store.contract import JournalHead, PartId
from millwheel.store.memory import MemoryStore
from millwheel.worker.log.entry import LogEntry, LogMeta, SegmentBlob
from millwheel.worker.log.letters import LetterMarks
from simulation.store import finished
from simulation.twin import load_ids, wrong_filters
from simulation.twin_ids import IdFacts

__all__ = ["LogTwin", "read_log"]


@dataclass(slots=True)
class LogTwin:
    """What a journal says about a log, with the rows that it needs."""

    ids: IdFacts
    watermark: int = MIN_TIMESTAMP
    age: int = 0
    start: int = 0
    end: int = 0
    counts: tuple[int, ...] = (0, 0, 0)
    letters: LetterMarks = field(default_factory=LetterMarks)
    """What people have done with dead letters."""
    cursors: dict[str, tuple[int, int]] = field(default_factory=dict)
    """ACKed offset and incarnation number, by name."""
    records: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Timestamp and value, by offset."""
    faults: list[str] = field(default_factory=list)
    """Contradictions in the journal."""


def read_log(store: MemoryStore, incarnation: str, journal: str) -> LogTwin:
    """The log of ``journal``; the rows of its closed segments belong to ``incarnation``."""
    head: JournalHead = finished(store.read_head(journal))
    twin = LogTwin(IdFacts(ALL_KEYS))
    blobs = dict(zip(head.parts, finished(store.read_parts(journal, head.parts)), strict=True))
    _read_base(store, incarnation, blobs, twin)
    load_ids(twin.ids, blobs)
    twin.faults += wrong_filters(blobs)
    for number, blob in enumerate(
        finished(store.read_entries(journal, head.truncation_point + 1, head.commit)), head.truncation_point + 1
    ):
        _apply(twin, number, msgspec.msgpack.decode(blob, type=LogEntry))
    twin.records = {offset: one for offset, one in twin.records.items() if offset >= twin.start}
    if missing := sorted(set(range(twin.start, twin.end)) - twin.records.keys()):
        twin.faults.append(f"offsets {missing} are in no entry, and in no row")
    return twin


def _read_base(store: MemoryStore, incarnation: str, blobs: Mapping[PartId, bytes], twin: LogTwin) -> None:
    for part, blob in blobs.items():
        if part.name == "meta":
            meta = msgspec.msgpack.decode(blob, type=LogMeta)
            twin.watermark, twin.age, twin.end, twin.counts = meta.watermark, meta.age, meta.end, meta.counts
            twin.start = meta.segments[0][0] if meta.segments else meta.end
            twin.cursors = {name: (acked, life) for name, acked, life in meta.cursors}
            twin.letters.restore(meta.letters, meta.letters_begun)
            for first, end, *_ in meta.segments:
                _read_segment(store, incarnation, first, end, twin)


def _read_segment(store: MemoryStore, incarnation: str, first: int, end: int, twin: LogTwin) -> None:
    """Read a segment. A segment that was dropped since the base has no row; missing offsets are reported later."""
    (row,) = finished(store.read_states(IncarnationId(incarnation), [first.to_bytes(8, "big")]))
    if row is None:
        return
    blob = msgspec.msgpack.decode(row.blob, type=SegmentBlob)
    if (blob.first, len(blob.values), len(blob.timestamps)) != (first, end - first, end - first):
        twin.faults.append(f"the row of offset {first} has {len(blob.values)} records from {blob.first}")
    twin.records.update(enumerate(zip(blob.timestamps, blob.values, strict=True), first))


def _apply(twin: LogTwin, number: int, entry: LogEntry) -> None:
    if entry.first != twin.end:
        twin.faults.append(f"entry {number} begins at offset {entry.first}, and the log ends at {twin.end}")
    if entry.watermark < twin.watermark or entry.age < twin.age:
        before = f"{twin.watermark}, {twin.age}"
        twin.faults.append(f"entry {number} is at watermark {entry.watermark}, age {entry.age}, after {before}")
    twin.watermark, twin.age = max(twin.watermark, entry.watermark), entry.age
    twin.records.update(enumerate(zip(entry.timestamps, entry.values, strict=True), entry.first))
    twin.end = entry.first + len(entry.values)
    twin.start = max(twin.start, entry.start)
    for name in entry.deleted:
        twin.cursors.pop(name, None)
    for name, acked in entry.cursors:
        life = twin.cursors[name][1] if name in twin.cursors else number
        if name in twin.cursors and acked < twin.cursors[name][0]:
            twin.faults.append(f"entry {number} moves cursor {name} back to {acked} from {twin.cursors[name][0]}")
        twin.cursors[name] = acked, life
    twin.letters.apply(entry.letters, entry.start)
    twin.ids.apply(entry.ids)
    twin.counts = tuple(map(sum, zip(twin.counts, entry.counts, strict=True)))
