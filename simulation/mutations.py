"""Mechanisms taken out on purpose, to see that a checker speaks up: ``python -m simulation --mutation NAME``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from millwheel.client.injector import Injector
from millwheel.core.time import MAX_TIMESTAMP, seconds
from millwheel.core.watermarks import MinTracker
from millwheel.store import journal_rules
from millwheel.store.contract import Append, JournalHead
from millwheel.worker.dedup.positions import PositionSource
from millwheel.worker.interval import recovery
from millwheel.worker.interval.state import IntervalState

__all__ = ["MUTATIONS", "Mutation"]

Mutation = Callable[[], None]


def _no_fence() -> None:
    """A journal takes an append by whoever comes."""

    def appended(journal: str, held: JournalHead | None, append: Append) -> JournalHead:
        return JournalHead(append.sequencer, append.commit, append.floor, append.parts)

    journal_rules.appended = appended


def _forgotten_ids() -> None:
    """Positions are forgotten as soon as they are committed; only the senders' marks are known."""
    PositionSource.remember = lambda self, positions: None  # type: ignore[method-assign]


def _early_timers() -> None:
    """Timers are due before their time."""
    due_until = IntervalState.due_until

    def early(self: IntervalState, wall: bool, *arguments: Any) -> int:
        return min(MAX_TIMESTAMP, due_until(self, wall, *arguments) + seconds(5))

    IntervalState.due_until = early  # type: ignore[method-assign, assignment]


def _endless() -> None:
    """An injector's end is told to nobody."""

    async def finish(self: Injector) -> None:
        await self.flush()

    Injector.finish = finish  # type: ignore[method-assign]


def _lost_timers() -> None:
    """A takeover reads no timers."""
    settle = recovery._settle

    def forgetful(state: IntervalState, *arguments: Any) -> None:
        settle(state, *arguments)
        for table in state.timers.values():
            table._by_key.clear()

    recovery._settle = forgetful  # type: ignore[assignment]


def _unpending() -> None:
    """What was received and is not committed, or produced and not ACKed, holds no output watermark."""
    MinTracker.min = lambda self: MAX_TIMESTAMP  # type: ignore[method-assign]


MUTATIONS: Final[dict[str, tuple[Mutation, str]]] = {
    "no-fence": (_no_fence, "(G3)"),
    "forgotten-ids": (_forgotten_ids, "(G1)"),
    "early-timers": (_early_timers, "(G6)"),
    "endless": (_endless, "(G8)"),
    "lost-timers": (_lost_timers, "(G12)"),
    "unpending": (_unpending, "(G7)"),
}
"""By name: what takes the mechanism out, and the guarantee that is seen to be broken then."""
