"""Checks cached state against a scan of the journal (G12): an owner's memory equals its journal.

The simulator reads the journal with its own code (:mod:`simulation.twin`). So the check also finds errors of a takeover
that misreads the journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from millwheel.model.time import MAX_CLOCK_SKEW_US
from millwheel.store.contract import JournalHead, JournalMissingError
from millwheel.store.memory import MemoryStore
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.entry import TimerRow, decode_part
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.log import LogCore
from millwheel.worker.log.state import LogState
from millwheel.worker.owner import OwnerPhase
from millwheel.worker.process.worker import Worker
from simulation.cached_ids import id_differences, sequencer_differences
from simulation.cached_logs import log_differences, log_rests
from simulation.store import finished
from simulation.twin import IntervalTwin, Place, TimerName, read_interval
from simulation.twin_logs import read_log
from simulation.world import World

__all__ = ["check_cached_state", "differences"]

Core = IntervalCore | LogCore


def check_cached_state(world: World) -> int:
    """Compare each idle interval and log whose owner is the newest in the store. Returns the number of comparisons."""
    compared = 0
    for name, worker in list(world.workers.items()):
        process = world.processes[name]
        if not process.alive or process.paused:
            continue
        for core in _at_rest(worker, world.store.inner):
            compared += 1
            for difference in differences(core.state, world.store.inner, recovered=False):
                world.violated(f"{process}, {core.state.config.journal}: {difference} (G12)")
    return compared


def _at_rest(worker: Worker, store: MemoryStore) -> Iterator[Core]:
    """Serving cores without appends in flight that no newer owner has replaced."""
    for hosted in worker.hosts.hosted.values():
        core = hosted.built.core
        if not isinstance(core, Core) or core.phase is not OwnerPhase.SERVING:
            continue
        state = core.state
        try:
            head: JournalHead = finished(store.read_head(state.config.journal))
        except JournalMissingError:
            continue  # its interval was split, merged or removed, and this owner is not notified yet
        if isinstance(core, LogCore):
            idle = log_rests(core)
        else:
            idle = core.state.journal.all_committed and not core.state.intake.records
        if idle and state.committed == head.commit and head.sequencer == state.config.sequencer:
            yield core


def differences(state: IntervalState | LogState, store: MemoryStore, *, recovered: bool) -> Iterator[str]:
    """The differences between an owner's memory and its journal.

    ``recovered``: it has just recovered the journal, and has done nothing else since.
    """
    config = state.config
    twin: Any
    if isinstance(state, LogState):
        twin = read_log(store, config.incarnation, config.journal)
        yield from log_differences(state, twin, recovered=recovered)
    else:
        twin = read_interval(store, config.journal, state.config.keys, state.config.parents)
        yield from twin.faults
        yield from _whole_differences(state, twin, recovered)
        yield from _key_differences(state, twin, store)
        yield from _pane_differences(state, twin)
        yield from _production_differences(state, twin, recovered)
    yield from id_differences(state.dedup, partial(_stored_ids, state, store), twin.ids, recovered=recovered)
    yield from sequencer_differences(state.dedup, twin.ids, recovered=recovered)


def _stored_ids(state: IntervalState | LogState, store: MemoryStore, name: str) -> set[bytes]:
    """The ids of a segment. A child's segment may still be in a parent's journal."""
    own = state.journal
    journal = own.foreign.get(name, own.name)
    (blob,) = finished(store.read_parts(journal, own.segments[name][:1]))
    return {blob[at : at + 16] for at in range(0, len(blob), 16)}


def _whole_differences(state: IntervalState, twin: IntervalTwin, recovered: bool) -> Iterator[str]:
    """Differences in the state of the interval as a whole."""
    mine, its = (state.watermark, state.output.value), (twin.watermark, twin.output)
    if (recovered and mine != its) or min(state.watermark - twin.watermark, state.output.value - twin.output) < 0:
        yield f"watermarks {mine} in memory, {its} in the journal"
    if recovered and twin.wall - state.clocks.now <= MAX_CLOCK_SKEW_US and state.clocks.wall < twin.wall:
        yield f"the wall time is {state.clocks.wall} in memory, {twin.wall} in the journal (G6)"
    if recovered and state.counts.row != twin.counts:
        yield f"counts {state.counts.row} in memory, {twin.counts} in the journal"
    for start in {row[0] for row in (*state.clocks.key_bounds.rows(), *twin.key_bounds)}:
        mark = max(state.watermark, state.clocks.key_bounds.bound_of(start))
        if start in state.config.keys and mark != max(state.watermark, twin.bound_of(start)):
            yield f"key {start!r} has been shown {twin.bound_of(start)} by the journal, {mark} by memory (G7)"


def _key_differences(state: IntervalState, twin: IntervalTwin, store: MemoryStore) -> Iterator[str]:
    """Differences in the state of keys: their timers, holds and states."""
    timers = _timers(state, store)
    for name in {**timers, **twin.timers}:
        if timers.get(name) != twin.timers.get(name) and not (name not in twin.timers and _begins(state, store, name)):
            yield f"timer {name} is {timers.get(name)} in memory, {twin.timers.get(name)} in the store"
    if state.holds.of_keys != twin.holds:
        yield f"holds {state.holds.of_keys} in memory, {twin.holds} in the store"
    for key, cell in state.cells.items():
        stored = twin.states.get(key)
        if stored is None:
            stored = _row(state, store, key)
        if stored != cell.encoded:
            yield f"key {key!r}: {cell.encoded!r} in memory, {stored!r} in the store"
    for key, stored in twin.states.items():
        # A key without a cell: its state is its row's. While no cell was ever evicted, it has no state.
        known = b"" if not state.cells.evicted else _row(state, store, key)
        if key not in state.cells and known != stored:
            yield f"key {key!r}: no cell and {known!r} in its row, {stored!r} in the journal"


def _pane_differences(state: IntervalState, twin: IntervalTwin) -> Iterator[str]:
    """Differences in windows by columns. Each pane has its row."""
    mine: dict[Any, Any] = {}
    for name, window in state.panes.windows.items():
        for key, row in window.settled().items():
            mine[*name, row] = key, tuple(column[row].item() for column in window.columns)
    its = {(*name, row): pane for name, panes in twin.windows.items() for row, pane in panes.items()}
    for place in sorted({*mine, *its}):
        if mine.get(place) != its.get(place):
            yield f"pane {place} is {mine.get(place)} in memory, and {its.get(place)} in the journal"


def _begins(state: IntervalState, store: MemoryStore, name: TimerName) -> bool:
    """Whether it is the timer by which a computation without inputs begins, which is in no entry before a commit."""
    journals = (state.config.journal, *(parent.journal for parent in state.config.parents))
    committed = any(finished(store.read_head(journal)).commit for journal in journals)
    return name == (state.program.begins_with, True, "") and not committed


def _row(state: IntervalState, store: MemoryStore, key: bytes) -> bytes:
    (row,) = finished(store.read_states(state.config.incarnation, [key]))
    return b"" if row is None else row.blob


def _timers(state: IntervalState, store: MemoryStore) -> Mapping[TimerName, tuple[int, int | None, int, int]]:
    """All timers, including spilled ones."""
    found: dict[TimerName, tuple[int, int | None, int, int]] = {}
    for part in state.timers.spilled.parts.values():
        (blob,) = finished(store.read_parts(state.config.journal, [part.rows]))
        rows = decode_part(blob, list[TimerRow], str(part.rows))
        found.update((row[:3], row[3:]) for row in state.timers.spilled.current_rows(rows))
    for domain, table in state.timers.tables.items():
        for key, tag, one in table.items():
            found[key, bool(domain), tag] = one.at, one.hold, one.cause, one.set_at_position
    return found


def _production_differences(state: IntervalState, twin: IntervalTwin, recovered: bool) -> Iterator[str]:
    """Differences in productions without an ACK, by sequence, position and consumer. The next base journals an ACK."""
    outbox = state.outbox
    mine: dict[Place, Any] = {
        (outbound.sequence, row[0], outbound.consumer): row for outbound in outbox for row in outbox.rows_of(outbound)
    }
    for place, production in mine.items():
        if twin.productions.get(place) != production:
            yield f"production {place} is {production} in memory, and {twin.productions.get(place)} in the store"
    if recovered and (lost := twin.productions.keys() - mine.keys()):
        yield f"productions {sorted(lost)} are in the journal, and not in memory (G9)"
