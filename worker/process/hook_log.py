"""Logs hooks that raise or are slow: the traceback once, then one line a minute with counts.

Otherwise a topology that fails for every record would log one traceback per record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from millwheel.model.time import format_duration, seconds
from millwheel.rpc.clock import steady_now
from millwheel.rpc.hook_failures import REMEDY
from millwheel.sdk.error_texts import error_traceback
from millwheel.worker.interval.failing_keys import ErrorKind
from millwheel.worker.interval.hook_meter import SlowBatch
from millwheel.worker.messages import HookFailed, HooksSlow
from millwheel.worker.process.tallies import ComputationName

__all__ = ["LINE_EVERY_US", "HookLog", "slow_text"]

log = logging.getLogger("millwheel.worker")

LINE_EVERY_US: Final = 60_000_000
"""Microseconds between two lines of one kind."""

_FORGET_AFTER_US: Final = 3_600_000_000
"""Microseconds without an error of a kind after which its traceback is logged again."""
_MAX_KINDS: Final = 1_000


@dataclass(slots=True)
class _Series:
    """Lines of one kind: the time of the last line, and the events since then."""

    written: int
    newest: int
    count: int = 0
    example: str = ""
    seconds: float = 0.0

    def is_due(self, now: int) -> bool:
        return self.count > 0 and now - self.written >= LINE_EVERY_US

    def restart(self, now: int) -> None:
        self.written, self.count, self.example, self.seconds = now, 0, "", 0.0


class HookLog:
    """Logs the failures and slow batches of all intervals of one process."""

    def __init__(self, clock: Callable[[], int] = steady_now) -> None:
        """``clock``: a steady clock, in microseconds."""
        self._clock = clock
        self._failures: dict[tuple[ComputationName, str, ErrorKind, bool], _Series] = {}
        self._slow: dict[tuple[ComputationName, str], _Series] = {}

    def failed(self, place: ComputationName, failure: HookFailed) -> None:
        """A hook of the computation raised."""
        name, now = (place, failure.hook, failure.kind, failure.unkeyed), self._clock()
        series = self._failures.get(name)
        if series is None or now - series.newest >= _FORGET_AFTER_US:
            if len(self._failures) >= _MAX_KINDS:
                self._failures.clear()
            self._failures[name] = _Series(now, now)
            _write_first(failure)
            return
        series.newest, series.count, series.example = now, series.count + 1, failure.message
        if failure.stopped:
            log.error("%s", failure.message)
        if series.is_due(now):
            self._write_failures(place, failure.hook, failure.kind, series)

    def slow(self, place: ComputationName, event: HooksSlow) -> None:
        """Calls of a hook blocked the event loop for long."""
        batch, now = event.batch, self._clock()
        series = self._slow.get((place, batch.hook))
        text = slow_text(place, batch)
        if series is None:
            self._slow[place, batch.hook] = _Series(now, now)
            log.warning("%s", text)
            return
        series.newest, series.count, series.example = now, series.count + 1, text
        series.seconds += batch.seconds
        if series.is_due(now):
            self._write_slow(place, batch.hook, series)

    @property
    def pending(self) -> bool:
        """Whether failures or slow batches have come since their last line."""
        return any(one.count for one in (*self._failures.values(), *self._slow.values()))

    def flush(self) -> None:
        """Write the lines that are due. Otherwise the last failures of a series would never be logged."""
        now = self._clock()
        for (place, hook, kind, _), series in self._failures.items():
            if series.is_due(now):
                self._write_failures(place, hook, kind, series)
        for (place, hook), series in self._slow.items():
            if series.is_due(now):
                self._write_slow(place, hook, series)

    def _write_failures(self, place: ComputationName, hook: str, kind: ErrorKind, series: _Series) -> None:
        at = f" at {kind.place}" if kind.place else ""
        log.warning(
            "computation %s: %s raised %s%s %s more times; the last: %s",
            "/".join(place), hook, kind.error, at, f"{series.count:,}", series.example,
        )  # fmt: skip
        series.restart(self._clock())

    def _write_slow(self, place: ComputationName, hook: str, series: _Series) -> None:
        log.warning(
            "computation %s: %s kept the event loop %s more times, for %s in all; the last: %s",
            "/".join(place), hook, f"{series.count:,}", format_duration(seconds(series.seconds)), series.example,
        )  # fmt: skip
        series.restart(self._clock())

    def keep(self, places: set[ComputationName]) -> None:
        """Drop computations that were removed."""
        self._failures = {name: one for name, one in self._failures.items() if name[0] in places}
        self._slow = {name: one for name, one in self._slow.items() if name[0] in places}


def _write_first(failure: HookFailed) -> None:
    """The message with its traceback, and the remedy if no retry helps."""
    permanent = f"this error does not pass by trying again: {failure.remedy or REMEDY}\n"
    text = error_traceback(failure.error)
    level = logging.ERROR if failure.stopped else logging.WARNING
    log.log(
        level, "%s\n%s%s", failure.message, permanent if failure.kind.permanent and not failure.unkeyed else "", text
    )


def slow_text(place: ComputationName, batch: SlowBatch) -> str:
    """Slow calls as a sentence: the hook, its key, and the duration."""
    key = "" if batch.key is None else f" for key {batch.key.decode('utf-8', 'backslashreplace')!r}"
    calls = f"one call of {batch.hook}{key}" if batch.calls == 1 else f"{batch.calls:,} calls of {batch.hook}"
    took = format_duration(seconds(batch.seconds))
    return f"computation {'/'.join(place)}: {calls} kept the event loop for {took}: nothing else of this worker ran"
