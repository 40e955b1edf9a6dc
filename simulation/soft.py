"""Soft state against a scan (G12): what an owner has in memory is what a takeover would read from the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from millwheel.sdk.context import StateCell
from millwheel.store.contract import JournalHead, JournalMissingError
from millwheel.store.memory import MemoryStore
from millwheel.worker.dedup import split_ids
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.core import Phase
from millwheel.worker.interval.divided import names_base
from millwheel.worker.interval.entry import TimerRow, decode_part
from millwheel.worker.interval.far import is_far
from millwheel.worker.interval.outbox import Outbox
from millwheel.worker.interval.recovery import recover
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.log import LogCore
from millwheel.worker.log import Phase as LogPhase
from millwheel.worker.log.recovery import recover as recover_log
from millwheel.worker.log.state import LogState
from millwheel.worker.messages import Opened, OpenedParent, Parent
from millwheel.worker.shell.opening import needed_parts
from millwheel.worker.shell.worker import Worker
from simulation.plan import FIRST
from simulation.soft_ids import unknown_ids
from simulation.soft_logs import log_differences, log_rests
from simulation.store import finished
from simulation.world import World

__all__ = ["check_soft_state"]

_EARLIEST = FIRST - 60_000_000
"""A minute before the first record: no horizon below it lets an id be forgotten."""

Core = IntervalCore | LogCore


def check_soft_state(world: World) -> int:
    """Compare every interval and log that is at rest, and is owned as the store has it; how many those are."""
    compared = 0
    for name, worker in list(world.workers.items()):
        process = world.processes[name]
        if not process.alive or process.paused:
            continue
        for core in _at_rest(worker, world.store.inner):
            compared += 1
            for difference in process.context.copy().run(_differences, worker, core, world.store.inner):
                world.violated(f"{process}, {core.state.config.journal}: {difference} (G12)")
    return compared


def _at_rest(worker: Worker, store: MemoryStore) -> Iterator[Core]:
    """Cores that serve, with nothing on its way to the store, and that nobody has deposed yet."""
    for hosted in worker.hosted.values():
        core = hosted.built.core
        if not isinstance(core, Core) or core.phase not in (Phase.SERVING, LogPhase.SERVING):
            continue
        state = core.state
        try:
            head: JournalHead = finished(store.read_head(state.config.journal))
        except JournalMissingError:
            continue  # its interval has been split or merged, or is gone, and this owner has not heard
        if isinstance(core, LogCore):
            idle = log_rests(core)
        else:
            idle = core.state.sealed == core.state.committed and not core.state.intake.records
        if idle and state.committed == head.commit and head.sequencer == state.config.sequencer:
            yield core


def _differences(worker: Worker, core: Core, store: MemoryStore) -> list[str]:
    twin = _twin(worker, core, store)
    if twin is None:
        return []
    known = [(state.dedup, partial(_stored_ids, state, store)) for state in (core.state, twin)]
    found = list(unknown_ids(known[0], known[1], _EARLIEST))
    if isinstance(core, LogCore):
        return [*found, *log_differences(core, twin, store)]
    return [*found, *_compare(core, twin, store)]


def _twin(worker: Worker, core: Core, store: MemoryStore) -> Any:
    """The state that a takeover would start from; None if the computation has been removed meanwhile."""
    hosted = worker.hosted[core.state.config.journal]
    built = worker._builder.build(hosted.owned)
    if built is None:
        return None
    worker.routing.release(built.bindings)
    twin: Any = built.core
    if not isinstance(twin, Core):
        return None
    take_over: Any = recover_log if isinstance(core, LogCore) else recover
    take_over(twin.state, _opened(store, core))
    return twin.state


def _opened(store: MemoryStore, core: Core) -> Opened:
    config = core.state.config
    head: JournalHead = finished(store.read_head(config.journal))
    parts, entries = _read(store, config.journal, head, False)
    needed = core.state.config.parents if isinstance(core, IntervalCore) and not names_base(head.parts) else ()
    return Opened(head, parts, entries, [_opened_parent(store, parent) for parent in needed])


def _opened_parent(store: MemoryStore, parent: Parent) -> OpenedParent:
    head: JournalHead = finished(store.read_head(parent.journal))
    return OpenedParent(parent, head, *_read(store, parent.journal, head, True))


def _read(store: MemoryStore, journal: str, head: JournalHead, far: bool) -> tuple[dict[Any, bytes], list[bytes]]:
    parts = dict.fromkeys(head.parts, b"")
    wanted = [*needed_parts(head.parts), *(part for part in head.parts if far and is_far([part]))]
    parts.update(zip(wanted, finished(store.read_parts(journal, wanted)), strict=True))
    return parts, finished(store.read_entries(journal, head.floor + 1, head.commit))


def _stored_ids(state: IntervalState | LogState, store: MemoryStore, name: str) -> set[bytes]:
    """The ids of a segment; a child's may be in a parent's journal still."""
    foreign = state.foreign if isinstance(state, IntervalState) else {}
    (blob,) = finished(store.read_parts(foreign.get(name, state.config.journal), state.segments[name][:1]))
    return set(split_ids(blob))


def _compare(core: IntervalCore, twin: IntervalState, store: MemoryStore) -> Iterator[str]:
    state = core.state
    for wall in (False, True):
        mine, its = _timers(state, wall, store), _timers(twin, wall, store)
        if mine != its:
            yield f"timers {mine} in memory, {its} in the store"
    if state.holds != twin.holds:
        yield f"holds {state.holds} in memory, {twin.holds} in the store"
    if twin.watermark > state.watermark or twin.output > state.output:
        yield f"watermarks {state.watermark}, {state.output} in memory, {twin.watermark}, {twin.output} in the store"
    pending = _productions(twin.outbox)
    for place, production in _productions(state.outbox).items():
        if pending.get(place) != production:
            yield f"production {place} is {production} in memory, and {pending.get(place)} in the store"
    others = dict(twin.cells.items())
    for key, cell in state.cells.items():
        other = others.get(key)
        if other is None:
            (row,) = finished(store.read_states(state.config.computation, [key]))
            stored = b"" if row is None else row.blob
            if stored != cell.encoded:
                yield f"key {key!r}: {cell.encoded!r} in memory, {stored!r} in its row, and no entry since"
        elif other.encoded != cell.encoded:
            yield f"key {key!r}: {cell.encoded!r} in memory, {other.encoded!r} in the store"
    yield from _forgotten(core, others, store)


def _forgotten(core: IntervalCore, others: Mapping[bytes, StateCell], store: MemoryStore) -> Iterator[str]:
    """Keys without a cell: their state is their row's, or none while no cell has ever been evicted."""
    cells = core.state.cells
    for key, other in others.items():
        if key in cells:
            continue
        (row,) = finished(store.read_states(core.state.config.computation, [key])) if cells.evicted else (None,)
        known = b"" if row is None else row.blob
        if known != other.encoded:
            yield f"key {key!r}: no cell and {known!r} in its row, {other.encoded!r} in the store"


def _timers(state: IntervalState, wall: bool, store: MemoryStore) -> list[tuple[bytes, str, int]]:
    """A domain's timers by key and tag, with their times: those in the store alone, too."""
    found = [(key, tag, setting.at) for key, tag, setting in state.timers[wall].items()]
    for part in state.far.of_domain(wall):
        (blob,) = finished(store.read_parts(state.config.journal, [part.rows]))
        rows = decode_part(blob, list[TimerRow], str(part.rows))
        found += [(row[0], row[2], row[3]) for row in state.far.standing(rows)]
    return sorted(found)


def _productions(outbox: Outbox) -> dict[tuple[str, int, str], Any]:
    """What is not ACKed, by sequence, position and consumer. An ACK is in the journal with the next commit."""
    return {
        (shipment.sequence, row[0], shipment.consumer): row
        for shipment in outbox
        for row in outbox.rows_of(shipment)
    }  # fmt: skip
