"""A stream log's soft state against a scan (G12): records, cursors and their age are what a takeover would find."""

from __future__ import annotations

from collections.abc import Iterator

from millwheel.store.memory import MemoryStore
from millwheel.worker.log import LogCore
from millwheel.worker.log.entry import SegmentBlob, decode, row_key
from millwheel.worker.log.segments import Records
from millwheel.worker.log.state import LogState
from simulation.store import finished

__all__ = ["log_differences", "log_rests"]


def log_rests(core: LogCore) -> bool:
    """Whether nothing of it is on its way into the journal."""
    return core._commits._in_flight is None and not core.state.intake.line


def log_differences(core: LogCore, twin: LogState, store: MemoryStore) -> Iterator[str]:
    """What of the log in memory a takeover, whose state is ``twin``, would find otherwise."""
    state = core.state
    mine, its = state.records, twin.records
    if (mine.start, mine.end) != (its.start, its.end):
        yield f"offsets {mine.start} to {mine.end} in memory, {its.start} to {its.end} in the store"
        return
    if sorted(state.cursors.facts()) != sorted(twin.cursors.facts()):
        yield f"cursors {state.cursors.facts()} in memory, {twin.cursors.facts()} in the store"
    if state.journaled_age != twin.age or twin.age > state.age:
        yield f"age {state.journaled_age}, now {state.age}, in memory, {twin.age} in the store"
    if twin.watermark > state.watermark or state.assured > max(twin.watermark, state.assured):
        yield f"watermark {state.watermark} in memory, {twin.watermark} in the store"
    held = _records(its, twin.config.computation, store)
    for segment in (*mine.closed, mine.open):
        for number, record in enumerate(zip(segment.timestamps, segment.values, strict=True), segment.first):
            if held.get(number) != record:
                yield f"offset {number} is {record} in memory, and {held.get(number)} in the store"
    if missing := sorted(set(range(its.start, its.end)) - held.keys()):
        yield f"offsets {missing} are in no entry, and in no row"


def _records(records: Records, computation: str, store: MemoryStore) -> dict[int, tuple[int, bytes]]:
    """By offset: what entries and rows have."""
    found: dict[int, tuple[int, bytes]] = {}
    for segment in (*records.closed, records.open):
        timestamps, values = segment.timestamps, segment.values
        if not segment.loaded:
            (row,) = finished(store.read_states(computation, [row_key(segment.first)]))
            if row is None:
                continue
            blob = decode(row.blob, SegmentBlob, f"the row of offset {segment.first}")
            timestamps, values = blob.timestamps, blob.values
        found.update(enumerate(zip(timestamps, values, strict=True), segment.first))
    return found
