"""Mechanisms taken out on purpose, to see that a checker speaks up: ``python -m simulation --mutation NAME``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from millwheel.client.injector import Injector
from millwheel.core.time import MAX_TIMESTAMP, seconds
from millwheel.store import journal_rules
from millwheel.store.contract import Append, JournalHead
from millwheel.worker.dedup import Dedup
from millwheel.worker.interval import recovery
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.log import subscribers

__all__ = ["MUTATIONS", "Mutation"]

Mutation = Callable[[], None]


def _no_fence() -> None:
    """A journal takes an append by whoever comes."""

    def appended(journal: str, held: JournalHead | None, append: Append) -> JournalHead:
        return JournalHead(append.sequencer, append.commit, append.floor, append.parts)

    journal_rules.appended = appended


def _forgotten_ids() -> None:
    """Ids are forgotten as soon as they are committed."""
    Dedup.committed = lambda self, delta: None  # type: ignore[method-assign]


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


def _hearsay() -> None:
    """Subscribers are told of watermarks that the log has only heard of."""

    def watermark_at(self: Any, offset: int) -> int:
        return int(self.state.watermark)

    subscribers.Subscribers._watermark_at = watermark_at  # type: ignore[method-assign]


MUTATIONS: Final[dict[str, tuple[Mutation, str]]] = {
    "no-fence": (_no_fence, "(G3)"),
    "forgotten-ids": (_forgotten_ids, "(G1)"),
    "early-timers": (_early_timers, "(G6)"),
    "endless": (_endless, "(G8)"),
    "lost-timers": (_lost_timers, "(G12)"),
    "hearsay": (_hearsay, "(G7)"),
}
"""By name: what takes the mechanism out, and the guarantee that is seen to be broken then."""
