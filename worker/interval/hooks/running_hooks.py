"""Asynchronous hooks of one interval that run, or have ended and wait for room in a batch (section 4.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from millwheel.model.time import TimeDomain
from millwheel.sdk.context import Context
from millwheel.worker.interval.blocked_key_table import Item, RecordItem
from millwheel.worker.interval.holds import Hold
from millwheel.worker.interval.hooks.failures import work_text
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import AsyncHook

__all__ = ["AwaitedHook", "RunningHooks", "StartedHook"]


@dataclass(frozen=True, slots=True)
class StartedHook:
    """An asynchronous hook. Its key is blocked, and its context is outside the batch until it ends."""

    key: bytes
    context: Context[Any]
    item: Item
    began: float
    """Its start by the meter's clock."""
    since: int
    """Its start by the wall clock."""
    hold: Hold | None
    """The hold of its event-time timer."""

    @property
    def name(self) -> str:
        """The name of the hook."""
        return "process_record" if len(self.item) == 2 else "process_timer"


@dataclass(frozen=True, slots=True)
class AwaitedHook:
    """An asynchronous hook that has not ended. ``since`` is the wall-clock time of its start in microseconds."""

    key: bytes
    hook: str
    work: str
    """The work of the hook: "record of stream 'in' at …", or "timer 't' at …"."""
    since: int


class RunningHooks:
    """The asynchronous hooks by number, in the order of their starts."""

    def __init__(self, state: IntervalState) -> None:
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._holds = state.holds
        self._next_number = 1
        self._hooks: dict[int, StartedHook] = {}
        self.ended: deque[tuple[int, BaseException | None]] = deque()
        """Hooks that have ended, each with its exception."""
        self.to_await: list[AsyncHook] = []
        """Hooks whose coroutines nothing awaits yet."""

    def start(self, key: bytes, context: Context[Any], item: Item, coroutine: Any) -> None:
        """Start a hook. A timer in event time holds the output watermark at its time."""
        hold = None
        if not isinstance(item, RecordItem) and item[1] is TimeDomain.EVENT_TIME:
            hold = self._holds.open(item[0])
        number = self._next_number
        self._next_number += 1
        self._hooks[number] = StartedHook(key, context, item, self._setup.meter.clock(), self._clocks.wall, hold)
        self.to_await.append(AsyncHook(number, coroutine))

    def end(self, number: int, error: BaseException | None) -> None:
        """A hook has ended."""
        hook = self._hooks[number]
        self._setup.meter.awaited(len(hook.item) == 2, hook.began)
        self.ended.append((number, error))

    def take_ended(self) -> tuple[StartedHook, BaseException | None]:
        """Remove the hook that ended first."""
        number, error = self.ended.popleft()
        return self._hooks.pop(number), error

    def awaited(self, before: int, count: int) -> list[AwaitedHook]:
        """Up to ``count`` running hooks that started by wall-clock time ``before``, oldest first."""
        ended = {number for number, _ in self.ended}
        found: list[AwaitedHook] = []
        for number, hook in self._hooks.items():
            if hook.since > before or len(found) == count:
                break
            if number not in ended:
                found.append(AwaitedHook(hook.key, hook.name, work_text(hook.item), hook.since))
        return found

    def holds(self) -> Iterator[Hold]:
        """The holds of timers in a hook."""
        return (hook.hold for hook in self._hooks.values() if hook.hold is not None)
