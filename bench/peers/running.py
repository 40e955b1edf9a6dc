"""One run of a system: its rate, its first result, its memory, and whether its results are right."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from bench.kafka_count.checking import compare, steady_rate
from bench.kafka_count.hits import Hits, Window
from bench.kafka_count.topics import OutputReader
from bench.peers.jobs import Job, Peer
from bench.peers.usage import MEBI, Usage

__all__ = ["PeerRun", "measure"]

_POLL: Final = 0.05
_SAMPLE: Final = 0.5
_SETTLE: Final = 2.0
"""Seconds after the last result in which results that are there twice may still come."""


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
    error: str = ""

    @property
    def right(self) -> bool:
        """Whether each record was counted once, and each window has one result."""
        return not (self.error or self.lost or self.twice or self.results_twice)


async def measure(peer: Peer, job: Job, hits: Hits, expected: Mapping[Window, int], limit: float) -> PeerRun:
    """Run a job to its end. An error of the system is in what is returned, so that others are measured all the same.

    Args:
        peer: The system.
        job: Its topics.
        hits: What is in the topic that it reads.
        expected: The results that it should have.
        limit: The most seconds that it may take.
    """
    usage, begun = Usage(), time.monotonic()
    try:
        async with peer.ready(job) as system:
            ready = time.monotonic() - begun
            usage.mark()
            reader = OutputReader(job.broker, job.target, hits.partitions, hits.end_ms)
            started = time.monotonic()
            try:
                await system.start()
                while reader.windows < len(expected):
                    if time.monotonic() - started > limit:
                        raise TimeoutError(f"{reader.windows:,} of {len(expected):,} results after {limit:.0f} s")
                    system.check()
                    await _look(reader, usage, _SAMPLE)
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
    )


async def _look(reader: OutputReader, usage: Usage, seconds: float) -> None:
    """Read what comes for so many seconds, and then look at the processes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.to_thread(reader.poll, _POLL)
    await asyncio.to_thread(usage.sample)
