"""A model of the stage that `bench.cluster` measures, with any number of workers. Pure.

A record needs the processor of three workers in turn: of the producer, of the consumer that makes a result, and of the
result's consumer. The workers are drawn for each record, as keys are. Each worker has one core, which serves in the
order of arrival. With strong productions, the producer's and the consumer's interval append to their journals in
between. An interval has one append in flight, and what waits for it shares the next one. What the model does not have:
failures, moves, pauses of single machines, and a network or a store that gets slower with its load.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

__all__ = ["ServiceTimes", "simulate"]

_STRONG: Final = (0.30, 0.15, 0.20, 0.15, 0.20)
"""The shares of a record's processor time: hook; send; receive and hook; send; receive the result."""
_APPENDS: Final = (True, False, True, False, False)
"""Whether an append follows the step."""
_HOPS: Final = (False, True, False, True, False)
"""Whether the record goes to the next worker after the step."""
_WARM: Final = 0.2
"""The share of the records at the beginning that are not counted: queues are shorter then."""


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """What the model takes from measurements.

    Attributes:
        cpu: Milliseconds of a worker's processor for a record, on all workers of its way together.
        append: Quantiles of an append in milliseconds, by rising share. Empty: nothing is appended.
        hop: Milliseconds from one machine to another.
    """

    cpu: float
    append: Sequence[tuple[float, float]]
    hop: float


class _Journals:
    """When an append ends that begins now, by interval."""

    def __init__(self, quantiles: Sequence[tuple[float, float]], draw: random.Random) -> None:
        self._shares = [share for share, _ in quantiles]
        self._values = [value for _, value in quantiles]
        self._draw = draw
        self._in_flight: dict[int, tuple[float, float]] = {}
        """By interval: the end of the append in flight, and that of the next one, if it has any records."""

    def append(self, interval: int, now: float) -> float:
        """The end of the append that takes what this interval has to append now."""
        current, following = self._in_flight.get(interval, (0.0, 0.0))
        if now >= following:
            end = now + self._duration()
            self._in_flight[interval] = end, end
            return end
        if now >= current:
            current = following
        if following <= current:
            following = current + self._duration()
        self._in_flight[interval] = current, following
        return following

    def _duration(self) -> float:
        """A duration between two neighbouring quantiles."""
        share = self._draw.random()
        right = min(bisect(self._shares, share), len(self._shares) - 1)
        left = max(0, right - 1)
        span = self._shares[right] - self._shares[left]
        part = (share - self._shares[left]) / span if span else 0.0
        return self._values[left] + part * (self._values[right] - self._values[left])


def simulate(
    workers: int, intervals: int, times: ServiceTimes, busy: float, records: int, seed: int = 1
) -> list[float]:
    """The latency of records in milliseconds, sorted: from the first hook to the result's arrival.

    Args:
        workers: The number of workers, of one core each.
        intervals: The intervals of a worker.
        times: What was measured.
        busy: The share of the time in which a worker's core is busy. The input grows with the workers.
        records: How many records come.
        seed: Of all that is drawn.
    """
    draw = random.Random(seed)
    journals = _Journals(times.append, draw) if times.append else None
    free_at = [0.0] * workers
    latencies: list[float] = []
    between = times.cpu / busy / workers
    numbers = count()
    arriving, arrived = 0.0, 0
    # (time, tie-breaker, step, worker, when the first hook ended, whether it counts)
    events: list[tuple[float, int, int, int, float, bool]] = []
    while events or arrived < records:
        if arrived < records and (not events or arriving <= events[0][0]):
            counts = arrived >= records * _WARM
            heapq.heappush(events, (arriving, next(numbers), 0, draw.randrange(workers), 0.0, counts))
            arriving += draw.expovariate(1 / between)
            arrived += 1
        at, _, step, worker, made, counts = heapq.heappop(events)
        end = max(at, free_at[worker]) + draw.expovariate(1 / (times.cpu * _STRONG[step]))
        free_at[worker] = end
        if step == 0:
            made = end
        if step + 1 == len(_STRONG):
            if counts:
                latencies.append(end - made)
            continue
        if _APPENDS[step] and journals is not None:
            end = journals.append(worker * intervals + draw.randrange(intervals), end)
        if _HOPS[step]:
            worker = draw.randrange(workers)
            end += times.hop
        heapq.heappush(events, (end, next(numbers), step + 1, worker, made, counts))
    return sorted(latencies)
