"""What one worker process writes and counts of its hooks' failures and of hooks that take long."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from millwheel.sdk.context import Scope
from millwheel.worker.interval.hook_times import SlowBatch
from millwheel.worker.messages import HookFailed, HooksSlow
from millwheel.worker.shell.hook_log import LINE_EVERY, HookLog, slow_text
from millwheel.worker.shell.tallies import Place
from millwheel.worker.shell.watchdog import Watchdog

__all__ = ["HookReports"]

_SLOW_KEPT: Final = 100
"""Slow batches that are remembered: enough for the time of a lease, in which each has taken a second or so."""


class HookReports:
    """The log of hooks, and the watchdog of the event loop."""

    def __init__(self, slow: float, place_of: Callable[[Scope], Place | None]) -> None:
        """``slow``: seconds from which on a hook is named; 0: no watchdog runs."""
        self.log = HookLog()
        self._watchdog = Watchdog(slow, place_of) if slow > 0 else None
        self._timer: asyncio.TimerHandle | None = None
        self._slow_batches: deque[tuple[float, Place, SlowBatch]] = deque(maxlen=_SLOW_KEPT)
        """The last ones, each with when it ended, by the loop's clock."""

    def start(self) -> None:
        """Begin to watch the running event loop."""
        if self._watchdog is not None:
            self._watchdog.start()

    def close(self) -> None:
        """Watch no more."""
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def running(self) -> Mapping[tuple[Place, str], float]:
        """The hook that keeps the event loop now, with its seconds so far."""
        return {} if self._watchdog is None else self._watchdog.running()

    def slowest_since(self, since: float) -> str:
        """The calls that kept the event loop longest, of those that ended since then; empty if none was slow.

        Args:
            since: seconds by the loop's clock.
        """
        found = [(batch.seconds, place, batch) for ended, place, batch in self._slow_batches if ended >= since]
        return slow_text(*max(found, key=lambda one: one[0])[1:]) if found else ""

    def performers(self, place: Place) -> dict[type, Callable[[Any], None]]:
        """How a host performs what its core says of hooks."""
        return {HookFailed: partial(self._failed, place), HooksSlow: partial(self._slow, place)}

    def _failed(self, place: Place, failure: HookFailed) -> None:
        self.log.failed(place, failure)
        self._flush_later()

    def _slow(self, place: Place, event: HooksSlow) -> None:
        self.log.slow(place, event)
        self._slow_batches.append((asyncio.get_running_loop().time(), place, event.batch))
        self._flush_later()

    def _flush_later(self) -> None:
        if self._timer is None and self.log.pending:
            self._timer = asyncio.get_running_loop().call_later(LINE_EVERY / 1_000_000, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self.log.flush()
        self._flush_later()
