"""Logs and counts one worker process's failed hooks and slow hooks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, assert_never

from millwheel.sdk.scope import Scope
from millwheel.worker.interval.hook_meter import SlowBatch
from millwheel.worker.messages import HookFailed, HookReport, HooksSlow
from millwheel.worker.process.hook_log import LINE_EVERY_US, HookLog, slow_text
from millwheel.worker.process.tallies import ComputationName
from millwheel.worker.process.watchdog import Watchdog

__all__ = ["HookReports"]

_MAX_SLOW_BATCHES: Final = 100
"""Number of recent slow batches to keep: enough for a lease's duration, as each took about a second or more."""


class HookReports:
    """The hook log, and the watchdog of the event loop."""

    def __init__(self, slow: float, place_of: Callable[[Scope], ComputationName | None]) -> None:
        """``slow``: seconds from which on a hook is logged. 0: no watchdog."""
        self.log = HookLog()
        self._watchdog = Watchdog(slow, place_of) if slow > 0 else None
        self._timer: asyncio.TimerHandle | None = None
        self._slow_batches: deque[tuple[float, ComputationName, SlowBatch]] = deque(maxlen=_MAX_SLOW_BATCHES)
        """The most recent ones, each with its end by the loop's clock."""

    def start(self) -> None:
        """Start checking the running event loop."""
        if self._watchdog is not None:
            self._watchdog.start()

    def close(self) -> None:
        """Stop checking."""
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def running(self) -> Mapping[tuple[ComputationName, str], float]:
        """The hook that blocks the event loop now, with its seconds so far."""
        return {} if self._watchdog is None else self._watchdog.running()

    def slowest_since(self, since: float, least: float = 0.0) -> str:
        """A description of the calls that blocked the event loop longest, among those that ended since then. Empty if
        none was slow.

        Args:
            since: Seconds by the loop's clock.
            least: Seconds. Shorter ones do not count.
        """
        found = [
            (batch.seconds, place, batch)
            for ended, place, batch in self._slow_batches
            if ended >= since and batch.seconds >= least
        ]
        return slow_text(*max(found, key=lambda one: one[0])[1:]) if found else ""

    def take(self, place: ComputationName, report: HookReport) -> None:
        """Take a core's report about a hook of the computation."""
        match report:
            case HookFailed():
                self.failed(place, report)
            case HooksSlow():
                self._slow(place, report)
            case _:
                assert_never(report)

    def failed(self, place: ComputationName, failure: HookFailed) -> None:
        """A hook or key function of the computation raised."""
        self.log.failed(place, failure)
        self._flush_later()

    def _slow(self, place: ComputationName, event: HooksSlow) -> None:
        self.log.slow(place, event)
        self._slow_batches.append((asyncio.get_running_loop().time(), place, event.batch))
        self._flush_later()

    def _flush_later(self) -> None:
        if self._timer is None and self.log.pending:
            self._timer = asyncio.get_running_loop().call_later(LINE_EVERY_US / 1_000_000, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self.log.flush()
        self._flush_later()
