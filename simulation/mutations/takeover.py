"""The initial state of a new owner: everything that its predecessor committed, and nothing else (section 6.2; G12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.worker.dedup import Dedup
from millwheel.worker.interval import core, recovery
from millwheel.worker.interval.cache.cells import CellCache
from millwheel.worker.interval.state import IntervalState
from simulation.mutations.base import mutation, replace, rewrite

__all__: list[str] = []


_PRODUCTION = "position, producer, stream, value, timestamp, targets, opaque = row"


def _recovering(change: Callable[[IntervalState], None]) -> None:
    """Apply ``change`` to the state that a takeover has read."""

    def make(recover: Any) -> Any:
        def changed(state: IntervalState, opened: Any) -> None:
            recover(state, opened)
            change(state)

        return changed

    replace(core, "recover", make)


@mutation("G12", "a takeover reads the timers")
def lost_timers() -> None:
    """A takeover reads no timers."""

    def forget(state: IntervalState) -> None:
        for table in state.timers.tables.values():
            for key, tag, _ in [*table.items()]:
                table.cancel(key, tag, None)

    _recovering(forget)


@mutation("G7", "a takeover starts from the watermark that was acted upon")
def lost_watermark() -> None:
    """A new owner starts at minus infinity."""

    def forget(state: IntervalState) -> None:
        state.clocks.watermark = state.scope.watermark = state.output.value = MIN_TIMESTAMP

    _recovering(forget)


@mutation("G9", "a takeover sends what was produced and is not ACKed")
def lost_productions() -> None:
    """A takeover reads no productions."""
    rewrite(recovery, "for target in targets:", "for target in ():")


@mutation("G9", "a production that is sent again has the id that it had")
def renumbered_productions() -> None:
    """A new owner sends its predecessor's productions under different positions."""
    rewrite(recovery, _PRODUCTION, f"{_PRODUCTION}\n    position |= 1 << 19")


@mutation("G9", "a production that is sent again has the bytes that it had")
def rewritten_productions() -> None:
    """A new owner sends its predecessor's productions with timestamps that are a microsecond later."""
    rewrite(recovery, _PRODUCTION, f"{_PRODUCTION}\n    timestamp += 1")


@mutation("G1", "a takeover reads the ids of the records that were committed")
def lost_ids() -> None:
    """A new owner knows the ids of its base, and none of those committed since."""
    replace(Dedup, "replay", lambda _: lambda self, delta: None)


@mutation("G12", "a key without a cached state has that of its row")
def unread_rows() -> None:
    """A key that is not in the cache starts without a state."""
    rewrite(CellCache.get, "if self.evicted:", "if False:")
