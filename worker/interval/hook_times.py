"""How often an interval's hooks ran, and for how long: measured for each batch of calls, since its owner took over.

A look at the clock for each call would cost 0.08 us, 1.4% of the 5.7 us that a record costs the core. A batch takes
two looks. The clock is given and decides nothing; by default it stands still.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["AwaitedHook", "HookMeter", "HookTime", "SlowBatch"]


_SLOW_CALL: Final = 0.1
"""Of the limit of a batch, from which on one call is slow. A full batch of quick calls may reach the limit, too."""


@dataclass(slots=True)
class HookTime:
    """One hook's totals. ``seconds`` has what the engine does around each call, about a microsecond, too.

    An asynchronous hook counts from its start to its end, with what it waits for.
    """

    calls: int = 0
    seconds: float = 0.0
    failures: int = 0
    """Attempts that failed with nothing else in their commit: those that the failure policy counts."""
    blocked: int = 0
    """Batches of calls that took so long that they count as blocking the event loop."""
    slow_seconds: float = 0.0
    """Of ``seconds``, those in such batches whose calls were slow, and not many: a tenth of the limit each, or more."""

    def add(self, more: HookTime) -> None:
        """Count what another has counted, too."""
        self.calls += more.calls
        self.seconds += more.seconds
        self.failures += more.failures
        self.blocked += more.blocked
        self.slow_seconds += more.slow_seconds


@dataclass(frozen=True, slots=True)
class SlowBatch:
    """Calls of a hook that kept the event loop for ``seconds``. ``key`` is known where it was one call."""

    hook: str
    calls: int
    seconds: float
    key: bytes | None


@dataclass(frozen=True, slots=True)
class AwaitedHook:
    """An asynchronous hook that has not ended. ``since``: the wall time when it began, in microseconds."""

    key: bytes
    hook: str
    work: str
    """What the hook runs for: "record of stream 'in' at …", or "timer 't' at …"."""
    since: int


class HookMeter:
    """The times of both hooks of one interval."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0, limit: float = 0.0) -> None:
        """``clock``: seconds that only grow; ``limit``: seconds from which on a batch is slow, 0 for none."""
        self.clock = clock
        self.limit = limit
        self.records = HookTime()
        self.timers = HookTime()
        self.slow: SlowBatch | None = None
        """The slowest batch since the core last reported one; None if none was slow."""

    def ran_records(self, calls: int, began: float, key: bytes | None) -> None:
        """``process_record`` was called so often since ``began``; ``key`` is known of a single call."""
        self._ran("process_record", self.records, calls, self.clock() - began, key)

    def ran_timers(self, calls: int, began: float, key: bytes | None) -> None:
        """``process_timer`` was called so often since ``began``; ``key`` is known of a single call."""
        self._ran("process_timer", self.timers, calls, self.clock() - began, key)

    def awaited(self, record: bool, began: float) -> None:
        """An asynchronous hook, whose call was counted when it began, has ended."""
        (self.records if record else self.timers).seconds += self.clock() - began

    def _ran(self, hook: str, time: HookTime, calls: int, seconds: float, key: bytes | None) -> None:
        time.calls += calls
        time.seconds += seconds
        if self.limit and seconds >= self.limit and calls:
            time.blocked += 1
            if seconds >= calls * self.limit * _SLOW_CALL:
                time.slow_seconds += seconds
            if self.slow is None or seconds > self.slow.seconds:
                self.slow = SlowBatch(hook, calls, seconds, key)
