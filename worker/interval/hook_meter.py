"""How often the hooks of one interval ran, and for how long, since its owner took over.

Each batch of calls is measured once. A clock read for each call would cost 0.08 us, 1.4% of the 5.7 us that a record
costs the core. The clock is a parameter, and by default it stands still. It influences one decision: how many calls
make a full batch while other topologies wait for the event loop. Each answer is right, so no guarantee needs the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from millwheel.worker.interval.measures import IntervalMeasures
from millwheel.worker.interval.traces import IntervalTraces

__all__ = ["BatchTime", "HookMeter", "HookTime", "SlowBatch"]

_SLOW_CALL: Final = 0.1
"""The fraction of a batch's limit from which one call is slow. A full batch of quick calls may also reach the limit."""


@dataclass(slots=True)
class HookTime:
    """The totals of one hook.

    ``seconds`` includes the engine's work around each call, about a microsecond. An asynchronous hook counts from its
    start to its end, including its waits.
    """

    calls: int = 0
    seconds: float = 0.0
    failures: int = 0
    """Failed attempts with nothing else in their commit. These are the attempts that the failure policy counts."""
    blocked: int = 0
    """Batches of calls that were long enough to block the event loop."""
    slow_seconds: float = 0.0
    """The part of ``seconds`` in such batches with slow calls: on average a tenth of the limit or more each."""
    pace: float = 0.0
    """Seconds for a call, of about the last hundred calls. 0: none was measured. Not a total.

    A call for several records does not count (``call_time.py``).
    """
    by_columns: int = 0
    """Those of ``calls`` that are records which were added to windows by columns."""
    oversized: int = 0
    """Calls for many records that were undone, because their effects are too large for one commit."""

    def add(self, more: HookTime) -> None:
        """Add the totals ``more``."""
        self.calls += more.calls
        self.seconds += more.seconds
        self.failures += more.failures
        self.blocked += more.blocked
        self.slow_seconds += more.slow_seconds
        self.by_columns += more.by_columns
        self.oversized += more.oversized


@dataclass(frozen=True, slots=True)
class SlowBatch:
    """Calls of a hook that occupied the event loop for ``seconds``. ``key`` is set if it was one call."""

    hook: str
    calls: int
    seconds: float
    key: bytes | None


@dataclass(slots=True)
class BatchTime:
    """How long the hooks of one batch may keep the event loop."""

    seconds: float = inf


class HookMeter:
    """The run times of both hooks of one interval, and where its other measures go."""

    def __init__(
        self,
        clock: Callable[[], float] = lambda: 0.0,
        limit: float = 0.0,
        measures: IntervalMeasures | None = None,
        batch_time: BatchTime | None = None,
        traces: IntervalTraces | None = None,
    ) -> None:
        """
        Args:
            clock: Returns monotone seconds.
            limit: The duration in seconds from which a batch is slow. 0: no limit.
            measures: What the computation's intervals measure in this process. None: measures of its own.
            batch_time: How long a batch may take now. None: without end.
            traces: The spans of sampled records. None: there are none.
        """
        self.clock = clock
        self.limit = limit
        self.measures = IntervalMeasures() if measures is None else measures
        self.batch_time = BatchTime() if batch_time is None else batch_time
        self.traces = traces
        self.records = HookTime()
        self.timers = HookTime()
        self.slow: SlowBatch | None = None
        """The slowest batch since the core last reported one. None: no batch was slow."""

    def awaited(self, record: bool, began: float) -> None:
        """Register the end of an asynchronous hook. Its call was counted at the start."""
        seconds = self.clock() - began
        (self.records if record else self.timers).seconds += seconds
        self.measures.hook_seconds["process_record" if record else "process_timer"].add(seconds)

    def ran_long(self, hook: str, time: HookTime, calls: int, seconds: float, key: bytes | None) -> None:
        """Register a batch of calls that reached the limit."""
        if not calls:
            return
        time.blocked += 1
        if seconds >= calls * self.limit * _SLOW_CALL:
            time.slow_seconds += seconds
        if self.slow is None or seconds > self.slow.seconds:
            self.slow = SlowBatch(hook, calls, seconds, key)
