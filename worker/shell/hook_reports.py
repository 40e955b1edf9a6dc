"""What one worker process writes and counts of its hooks' failures and of hooks that take long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from millwheel.sdk.context import Scope
from millwheel.worker.messages import HookFailed, HooksSlow
from millwheel.worker.shell.hook_log import LINE_EVERY, HookLog
from millwheel.worker.shell.tallies import Place
from millwheel.worker.shell.watchdog import Watchdog

__all__ = ["HookReports"]


class HookReports:
    """The log of hooks, and the watchdog of the event loop."""

    def __init__(self, slow: float, place_of: Callable[[Scope], Place | None]) -> None:
        """``slow``: seconds from which on a hook is named; 0: no watchdog runs."""
        self.log = HookLog()
        self._watchdog = Watchdog(slow, place_of) if slow > 0 else None
        self._timer: asyncio.TimerHandle | None = None

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

    def performers(self, place: Place) -> dict[type, Callable[[Any], None]]:
        """How a host performs what its core says of hooks."""
        return {HookFailed: partial(self._failed, place), HooksSlow: partial(self._slow, place)}

    def _failed(self, place: Place, failure: HookFailed) -> None:
        self.log.failed(place, failure)
        self._flush_later()

    def _slow(self, place: Place, event: HooksSlow) -> None:
        self.log.slow(place, event)
        self._flush_later()

    def _flush_later(self) -> None:
        if self._timer is None and self.log.pending:
            self._timer = asyncio.get_running_loop().call_later(LINE_EVERY / 1_000_000, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self.log.flush()
        self._flush_later()
