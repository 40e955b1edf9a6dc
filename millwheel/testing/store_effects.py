"""Performs the store effects of an interval's or a log's core at once, on a memory store."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar, assert_never

from millwheel.store.contract import PartId, SequencerRefusedError
from millwheel.store.memory import MemoryStore
from millwheel.worker.messages import (
    Appended,
    AppendEntry,
    CopyParts,
    DeleteEntries,
    DeleteParts,
    Deposed,
    FenceJournal,
    FlushStates,
    Opened,
    PartsRead,
    PartsWritten,
    ReadSegments,
    ReadStates,
    StatesFlushed,
    StatesRead,
    StoreEffect,
    WriteParts,
)

__all__ = ["StoreAnswer", "perform_at_store", "result_of"]

T = TypeVar("T")

StoreAnswer = Opened | Appended | Deposed | StatesRead | StatesFlushed | PartsWritten | PartsRead
"""The events that answer store effects here. A memory store has no damaged values."""


def result_of(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits. The coroutines of the memory store do not."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("the memory store waited")


def perform_at_store(store: MemoryStore, effect: StoreEffect) -> StoreAnswer | None:
    """Perform one effect.

    Args:
        store: The store of the core.
        effect: The effect.

    Returns:
        The event that answers the effect. None: it has no answer.
    """
    match effect:
        case AppendEntry():
            return _append(store, effect)
        case ReadStates():
            return StatesRead(effect.keys, result_of(store.read_states(effect.incarnation, effect.keys)))
        case FlushStates():
            result_of(store.write_states(effect.incarnation, effect.journal, effect.sequencer, effect.rows))
            return StatesFlushed(effect.number)
        case WriteParts():
            for part, blob in effect.parts.items():
                result_of(store.write_part(effect.journal, part, blob))
            return PartsWritten(effect.number)
        case ReadSegments():
            places = {part: effect.elsewhere.get(part, effect.journal) for part in effect.parts}
            return PartsRead({part: _read_part(store, journal, part) for part, journal in places.items()})
        case CopyParts():
            for parent, part, copy in effect.copies:
                result_of(store.write_part(effect.journal, copy, _read_part(store, parent, part)))
            return PartsWritten(effect.number)
        case DeleteEntries():
            return result_of(store.delete_entries(effect.journal, effect.below))
        case DeleteParts():
            return result_of(store.delete_parts(effect.journal, effect.parts))
        case FenceJournal():
            return _open(store, effect)
        case _:
            assert_never(effect)


def _append(store: MemoryStore, effect: AppendEntry) -> Appended | Deposed:
    try:
        result_of(store.append(effect.journal, effect.append))
    except SequencerRefusedError as error:
        return Deposed(str(error))
    return Appended(effect.append.commit)


def _open(store: MemoryStore, effect: FenceJournal) -> Opened:
    head = result_of(store.fence(effect.journal, effect.sequencer))
    blobs = result_of(store.read_parts(effect.journal, head.parts))
    entries = result_of(store.read_entries(effect.journal, head.truncation_point + 1, head.commit))
    return Opened(head, dict(zip(head.parts, blobs, strict=True)), entries)


def _read_part(store: MemoryStore, journal: str, part: PartId) -> bytes:
    return result_of(store.read_parts(journal, [part]))[0]
