"""What is measured of intervals: the run times of hooks, latencies, sizes, and records by stream.

How often an interval's hooks ran, and for how long, belongs to the interval, since its owner took over. The other
measures belong to the process. Each batch of calls is measured once. A clock read for each call would cost 0.08 us,
1.4% of the 5.7 us that a record costs the core. The clock is a parameter, and influences no decision. By default it
stands still.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["AwaitedHook", "Distribution", "HookMeter", "HookTime", "IntervalMeasures", "SlowBatch"]

_SLOW_CALL: Final = 0.1
"""The fraction of a batch's limit from which one call is slow. A full batch of quick calls may also reach the limit."""
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_CALL_SECONDS: Final = (1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
_BYTES: Final = (256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0)
_RECORDS: Final = (1.0, 2.0, 5.0, 10.0, 25.0, 100.0, 250.0, 1_000.0, 2_500.0, 8_192.0)


class Distribution:
    """How many values are up to each of some bounds. One thread adds, others may read."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The values up to each bound and above the one before it. The last ones are above all bounds."""
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Add a value, ``times`` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class IntervalMeasures:
    """The measures of the intervals of one computation in this process. They go on when intervals come and go."""

    def __init__(self) -> None:
        self.commit_latency = Distribution(_SECONDS)
        """From the receipt of a record to its commit, in seconds."""
        self.ack_latency = Distribution(_SECONDS)
        """From the commit of a production to the ACK of its consumer, in seconds."""
        self.append_seconds = Distribution(_SECONDS)
        """From the sending of a commit to the store until it is known to be there."""
        self.entry_bytes = Distribution(_BYTES)
        self.entry_records = Distribution(_RECORDS)
        self.hook_seconds: defaultdict[str, Distribution] = defaultdict(lambda: Distribution(_CALL_SECONDS))
        """By hook: the mean time of a call, for each batch of calls."""
        self.received: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        """By stream: the fresh records that were received, and the bytes of their values."""
        self.refused: defaultdict[tuple[str, str], int] = defaultdict(int)
        """By stream and outcome: the deliveries that were refused. Their sender keeps the records."""


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

    def add(self, more: HookTime) -> None:
        """Add the totals ``more``."""
        self.calls += more.calls
        self.seconds += more.seconds
        self.failures += more.failures
        self.blocked += more.blocked
        self.slow_seconds += more.slow_seconds


@dataclass(frozen=True, slots=True)
class SlowBatch:
    """Calls of a hook that occupied the event loop for ``seconds``. ``key`` is set if it was one call."""

    hook: str
    calls: int
    seconds: float
    key: bytes | None


@dataclass(frozen=True, slots=True)
class AwaitedHook:
    """An asynchronous hook that has not ended. ``since`` is the wall-clock time of its start in microseconds."""

    key: bytes
    hook: str
    work: str
    """The work of the hook: "record of stream 'in' at …", or "timer 't' at …"."""
    since: int


class HookMeter:
    """The run times of both hooks of one interval, and where its other measures go."""

    def __init__(
        self,
        clock: Callable[[], float] = lambda: 0.0,
        limit: float = 0.0,
        measures: IntervalMeasures | None = None,
    ) -> None:
        """
        Args:
            clock: Returns monotone seconds.
            limit: The duration in seconds from which a batch is slow. 0: no limit.
            measures: What the computation's intervals measure in this process. None: measures of its own.
        """
        self.clock = clock
        self.limit = limit
        self.measures = IntervalMeasures() if measures is None else measures
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
