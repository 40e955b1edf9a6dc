"""Soft state against a scan (G12): what an owner has in memory is what a takeover would read from the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millwheel.store.contract import JournalHead, JournalMissingError
from millwheel.store.memory import MemoryStore
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.core import Phase
from millwheel.worker.interval.far import is_far
from millwheel.worker.interval.recovery import recover
from millwheel.worker.messages import Opened, OpenedParent, Parent
from millwheel.worker.shell.opening import needed_parts
from millwheel.worker.shell.worker import Worker
from simulation.store import finished
from simulation.world import World

__all__ = ["check_soft_state"]


def check_soft_state(world: World) -> int:
    """Compare every interval that is at rest, and is owned as the store has it; how many those are."""
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


def _at_rest(worker: Worker, store: MemoryStore) -> Iterator[IntervalCore]:
    """Cores that serve, with nothing on its way to the store, and that nobody has deposed yet."""
    for hosted in worker.hosted.values():
        core = hosted.built.core
        if not isinstance(core, IntervalCore) or core.phase is not Phase.SERVING:
            continue
        state = core.state
        try:
            head: JournalHead = finished(store.read_head(state.config.journal))
        except JournalMissingError:
            continue  # its interval has been split or merged, or is gone, and this owner has not heard
        idle = state.sealed == state.committed == head.commit and not state.intake.records
        if idle and head.sequencer == state.config.sequencer:
            yield core


def _differences(worker: Worker, core: IntervalCore, store: MemoryStore) -> list[str]:
    twin = _twin(worker, core, store)
    return [] if twin is None else list(_compare(core, twin, store))


def _twin(worker: Worker, core: IntervalCore, store: MemoryStore) -> Any:
    """The state that a takeover would start from; None if the computation has been removed meanwhile."""
    hosted = worker.hosted[core.state.config.journal]
    built = worker._builder.build(hosted.owned)
    if built is None:
        return None
    worker.routing.release(built.bindings)
    if not isinstance(built.core, IntervalCore):
        return None
    recover(built.core.state, _opened(store, core))
    return built.core.state


def _opened(store: MemoryStore, core: IntervalCore) -> Opened:
    config = core.state.config
    head: JournalHead = finished(store.read_head(config.journal))
    parts, entries = _read(store, config.journal, head, False)
    needed = config.parents if not head.parts else ()
    return Opened(head, parts, entries, [_opened_parent(store, parent) for parent in needed])


def _opened_parent(store: MemoryStore, parent: Parent) -> OpenedParent:
    head: JournalHead = finished(store.read_head(parent.journal))
    return OpenedParent(parent, head, *_read(store, parent.journal, head, True))


def _read(store: MemoryStore, journal: str, head: JournalHead, far: bool) -> tuple[dict[Any, bytes], list[bytes]]:
    parts = dict.fromkeys(head.parts, b"")
    wanted = [*needed_parts(head.parts), *(part for part in head.parts if far and is_far([part]))]
    parts.update(zip(wanted, finished(store.read_parts(journal, wanted)), strict=True))
    return parts, finished(store.read_entries(journal, head.floor + 1, head.commit))


def _compare(core: IntervalCore, twin: Any, store: MemoryStore) -> Iterator[str]:
    state = core.state
    if not state.far.count and not twin.far.count:
        for wall in (False, True):
            mine = sorted((key, tag, setting.at) for key, tag, setting in state.timers[wall].items())
            its = sorted((key, tag, setting.at) for key, tag, setting in twin.timers[wall].items())
            if mine != its:
                yield f"timers {mine} in memory, {its} in the store"
    if state.holds != twin.holds:
        yield f"holds {state.holds} in memory, {twin.holds} in the store"
    if twin.watermark > state.watermark or twin.output > state.output:
        yield f"watermarks {state.watermark}, {state.output} in memory, {twin.watermark}, {twin.output} in the store"
    for key, cell in state.cells.items():
        other = dict(twin.cells.items()).get(key)
        if other is None:
            (row,) = finished(store.read_states(state.config.computation, [key]))
            stored = b"" if row is None else row.blob
            if stored != cell.encoded:
                yield f"key {key!r}: {cell.encoded!r} in memory, {stored!r} in its row, and no entry since"
        elif other.encoded != cell.encoded:
            yield f"key {key!r}: {cell.encoded!r} in memory, {other.encoded!r} in the store"
