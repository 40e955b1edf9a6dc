"""The initial state of a new owner: everything that its predecessor committed, and nothing else (section 6.2; G12)."""

from __future__ import annotations

from typing import Any

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.worker.dedup import Dedup
from millwheel.worker.interval import recovery
from millwheel.worker.interval.cache.cells import CellCache
from millwheel.worker.interval.state import IntervalState
from simulation.mutations.base import mutation, replace

__all__: list[str] = []


def _settling(change: Any) -> None:
    """Apply ``change`` to the state that a takeover has read."""

    def make(settle: Any) -> Any:
        def changed(state: IntervalState, *arguments: Any) -> None:
            settle(state, *arguments)
            change(state)

        return changed

    replace(recovery, "_settle", make)


@mutation("G12", "a takeover reads the timers")
def lost_timers() -> None:
    """A takeover reads no timers."""

    def forget(state: IntervalState) -> None:
        for table in state.timers.tables.values():
            table._by_key.clear()

    _settling(forget)


@mutation("G7", "a takeover starts from the watermark that was acted upon")
def lost_watermark() -> None:
    """A new owner starts at minus infinity."""

    def forget(state: IntervalState) -> None:
        state.clocks.watermark = state.scope.watermark = state.output.value = MIN_TIMESTAMP

    _settling(forget)


@mutation("G9", "a takeover sends what was produced and is not ACKed")
def lost_productions() -> None:
    """A takeover reads no productions."""
    replace(recovery._Reader, "_keep", lambda _: lambda self, sequence, row: None)


@mutation("G9", "a production that is sent again has the id that it had")
def renumbered_productions() -> None:
    """A new owner sends its predecessor's productions under different positions."""

    def make(keep: Any) -> Any:
        def renumbered(self: Any, sequence: str, row: Any) -> None:
            keep(self, sequence, (row[0] | 1 << 19, *row[1:]))

        return renumbered

    replace(recovery._Reader, "_keep", make)


@mutation("G9", "a production that is sent again has the bytes that it had")
def rewritten_productions() -> None:
    """A new owner sends its predecessor's productions with timestamps that are a microsecond later."""

    def make(keep: Any) -> Any:
        def rewritten(self: Any, sequence: str, row: Any) -> None:
            keep(self, sequence, (*row[:4], row[4] + 1, *row[5:]))

        return rewritten

    replace(recovery._Reader, "_keep", make)


@mutation("G1", "a takeover reads the ids of the records that were committed")
def lost_ids() -> None:
    """A new owner knows the ids of its base, and none of those committed since."""
    replace(Dedup, "replay", lambda _: lambda self, delta: None)


@mutation("G12", "a key without a cached state has that of its row")
def unread_rows() -> None:
    """A key that is not in the cache starts without a state."""

    def get(self: CellCache, key: bytes) -> Any:
        return self._cells.get(key) or self.insert(key, b"")

    replace(CellCache, "get", lambda _: get)
