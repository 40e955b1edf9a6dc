"""One run of a system: its rate, its first result, its memory, and whether its results are right."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from bench.kafka_count.checking import compare, steady_rate
from bench.kafka_count.hits import Hits, Window
from bench.kafka_count.topics import OutputReader
from bench.peers.jobs import Job, Peer, Started
from bench.peers.usage import MEBI, Usage

__all__ = ["PeerRun", "measure"]

_POLL: Final = 0.05
_SAMPLE: Final = 0.5
_SETTLE: Final = 2.0
"""Seconds after the last result in which results that are there twice may still come."""
_DOWN: Final = 0.5
"""Seconds from a kill to the restart. In them, all results come that were committed before the kill."""


class PeerRun(msgspec.Struct):
    """What one run showed. With ``error``, the others mean nothing.

    Attributes:
        records_per_s: From the moment when a tenth of the records was counted until all were.
        whole_s: From the start of the job to the last result.
        first_result_s: From the start of the job to the first result.
        ready_s: What the system took before it could take a job.
        peak_mb: The most memory of all its processes together. What several share counts once.
        cpu_s: Processor seconds of all its processes, from the start of the job on.
        lost: Records that no result counts.
        twice: Records that results count too often.
        results_twice: Results of a window that had one before.
        recovery_s: From a SIGKILL of all processes with records to the first result of one more window. The restart
            comes half a second after the kill, unless the system's own supervisor does it. 0: there was no kill.
        error: Why there is no result.
    """

    records_per_s: float = 0.0
    whole_s: float = 0.0
    first_result_s: float = 0.0
    ready_s: float = 0.0
    peak_mb: float = 0.0
    cpu_s: float = 0.0
    lost: int = 0
    twice: int = 0
    results_twice: int = 0
    recovery_s: float = 0.0
    error: str = ""

    @property
    def right(self) -> bool:
        """Whether each record was counted once, and each window has one result."""
        return not (self.error or self.lost or self.twice or self.results_twice)

    def keeps(self, guarantee: str) -> bool:
        """Whether the results are as promised. After a kill, "at least once" allows that results come again."""
        may_repeat = self.recovery_s > 0 and guarantee == "at least once"
        return self.right or (may_repeat and not (self.error or self.lost or self.twice))


async def measure(
    peer: Peer, job: Job, hits: Hits, expected: Mapping[Window, int], limit: float, *, kill: bool = False
) -> PeerRun:
    """Run a job to its end. An error of the system is in what is returned, so that others are measured all the same.

    Args:
        peer: The system.
        job: Its topics.
        hits: What is in the topic that it reads.
        expected: The results that it should have.
        limit: The most seconds that it may take.
        kill: Whether the system is killed when half of the results are there, and started again.
    """
    usage, begun, recovery = Usage(), time.monotonic(), 0.0
    try:
        async with peer.ready(job) as system:
            ready = time.monotonic() - begun
            usage.mark()
            reader = OutputReader(job.broker, job.target, hits.partitions, hits.end_ms)
            started = time.monotonic()
            try:
                await system.start()
                waiting = _Waiting(system, reader, usage, started + limit)
                if kill:
                    recovery = await _recovery(waiting, len(expected))
                await waiting.until(len(expected), _SAMPLE)
                await _look(reader, usage, _SETTLE)
                cpu = usage.seconds  # within the block: the sum of ended children then has no servers
            finally:
                reader.close()
    except Exception as error:
        return PeerRun(error=f"{type(error).__name__}: {error}")
    found = compare(expected, reader.results)
    return PeerRun(
        records_per_s=round(steady_rate(reader.arrivals, hits.records), 1),
        whole_s=round(reader.arrivals[-1][0] - started, 3),
        first_result_s=round(reader.arrivals[0][0] - started, 3),
        ready_s=round(ready, 3),
        peak_mb=round(usage.peak / MEBI, 1),
        cpu_s=round(cpu, 2),
        lost=found.lost,
        twice=found.twice,
        results_twice=found.results_twice,
        recovery_s=round(recovery, 3),
    )


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Waits for results of a system. ``end``: until when, on the monotonic clock."""

    system: Started
    reader: OutputReader
    usage: Usage
    end: float

    async def until(self, windows: int, step: float) -> None:
        """Return when so many windows have a result. It looks once in so many seconds.

        Raises:
            TimeoutError: The time is over.
            RuntimeError: The system has ended.
        """
        while self.reader.windows < windows:
            if time.monotonic() > self.end:
                raise TimeoutError(f"{self.reader.windows:,} of {windows:,} results when the time was over (--limit)")
            self.system.check()
            await _look(self.reader, self.usage, step)


async def _recovery(waiting: _Waiting, windows: int) -> float:
    """Kill the system when half of so many windows have a result. Return the seconds until one more has one."""
    await waiting.until(windows // 2, _POLL)
    killed = time.monotonic()
    await waiting.system.crash()
    await _look(waiting.reader, waiting.usage, _DOWN)
    before = waiting.reader.windows
    if before == windows:
        raise RuntimeError("all results were there before the kill; a run with more --records lasts longer")
    await waiting.system.restart()
    await waiting.until(before + 1, _POLL)
    return time.monotonic() - killed


async def _look(reader: OutputReader, usage: Usage, seconds: float) -> None:
    """Read what comes for so many seconds, and then look at the processes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.to_thread(reader.poll, _POLL)
    await asyncio.to_thread(usage.sample)
