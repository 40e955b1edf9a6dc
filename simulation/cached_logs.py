"""Checks a stream log in memory against its journal (G12): records, cursors and their age."""

from __future__ import annotations

from collections.abc import Iterator

from millwheel.worker.log import LogCore
from millwheel.worker.log.state import LogState
from millwheel.worker.log.stored_segments import StoredRecords
from simulation.twin_logs import LogTwin

__all__ = ["log_differences", "log_rests"]


def log_rests(core: LogCore) -> bool:
    """Whether the log has no append in flight and no queued records."""
    return core.state.journal.all_committed and not core.state.intake.queue


def log_differences(state: LogState, twin: LogTwin, *, recovered: bool) -> Iterator[str]:
    """The differences between the log in memory and its journal."""
    yield from twin.faults
    mine = state.records
    if (mine.start, mine.end) != (twin.start, twin.end):
        yield f"offsets {mine.start} to {mine.end} in memory, {twin.start} to {twin.end} in the journal"
        return
    cursors = {name: (acked, life) for name, acked, life in state.cursors.facts()}
    if cursors != twin.cursors:
        yield f"cursors {cursors} in memory, {twin.cursors} in the journal"
    if state.letters.facts() != twin.letters.facts():
        yield f"letters {state.letters.facts()} in memory, {twin.letters.facts()} in the journal"
    if state.clock.journaled_age != twin.age or twin.age > state.clock.age:
        yield f"age {state.clock.journaled_age}, now {state.clock.age}, in memory, {twin.age} in the journal"
    if twin.watermark > state.watermark or (recovered and twin.watermark != state.watermark):
        yield f"watermark {state.watermark} in memory, {twin.watermark} in the journal"
    if recovered and state.counts.row[:3] != twin.counts:
        yield f"{state.counts} in memory, {twin.counts} in the journal"
    yield from _record_differences(mine, twin)


def _record_differences(mine: StoredRecords, twin: LogTwin) -> Iterator[str]:
    """Differences in the records in memory. The others are read from their rows, as for ``twin``."""
    for segment in (*mine.closed, mine.open):
        for number, record in enumerate(zip(segment.timestamps, segment.values, strict=True), segment.first):
            if twin.records.get(number) != record:
                yield f"offset {number} is {record} in memory, and {twin.records.get(number)} in the store"
