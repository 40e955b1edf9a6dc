"""One run of a query by a system: what it took, and whether its results are those of the model."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Final

import msgspec

from bench.nexmark.models import Row
from bench.nexmark.systems import NexmarkSystem, QueryJob
from bench.peers.usage import MEBI, Usage

__all__ = ["QueryRun", "compared", "run_query"]

_LOOK: Final = 0.1
_MAX_SHOWN: Final = 200


class QueryRun(msgspec.Struct):
    """What a run showed. With ``error``, the others mean nothing.

    Attributes:
        whole_s: From the start of the job until all results are written.
        cpu_s: Processor seconds of all processes of the system meanwhile.
        peak_mb: The most memory of them together.
        rows: How many rows the results have.
        wrong: How the rows differ from those of the model. Empty: they do not.
        error: Why there is no result.
    """

    whole_s: float = 0.0
    cpu_s: float = 0.0
    peak_mb: float = 0.0
    rows: int = 0
    wrong: str = ""
    error: str = ""

    @property
    def right(self) -> bool:
        """Whether the results are those of the model."""
        return not (self.error or self.wrong)


async def run_query(system: NexmarkSystem, job: QueryJob, expected: Counter[Row], limit: float) -> QueryRun:
    """Run a query to its end. An error of the system is in what is returned, so that others are measured all the same.

    Args:
        system: Who runs it.
        job: The query and its files.
        expected: The rows that it must give.
        limit: The most seconds that it may take.
    """
    usage = Usage()
    try:
        async with system.peer.ready(job) as run:
            usage.mark()
            began = time.monotonic()
            await run.start()
            while not await run.has_ended():
                if time.monotonic() - began > limit:
                    raise TimeoutError(f"it has not ended after {limit:.0f} s")
                await asyncio.to_thread(usage.sample)
                await asyncio.sleep(_LOOK)
            whole = time.monotonic() - began
            usage.sample()
            cpu = usage.seconds  # within the block: the sum of ended children then has no servers
        found = await asyncio.to_thread(system.rows, job)
    except Exception as error:
        return QueryRun(error=f"{type(error).__name__}: {error}")
    return QueryRun(
        whole_s=round(whole, 3),
        cpu_s=round(cpu, 2),
        peak_mb=round(usage.peak / MEBI, 1),
        rows=found.total(),
        wrong=compared(found, expected),
    )


def compared(found: Counter[Row], expected: Counter[Row]) -> str:
    """How the rows differ, with an example of each kind. Empty if they do not.

    >>> compared(Counter([(1, 2)]), Counter([(1, 2)]))
    ''
    >>> compared(Counter([(1, 2)]), Counter([(1, 3)]))
    '1 rows are missing, such as (1, 3); 1 rows too many, such as (1, 2)'
    """
    if found == expected:
        return ""
    missing, extra = Counter(expected), Counter(found)
    missing.subtract(found)
    extra.subtract(expected)
    kinds = (("rows are missing", +missing), ("rows too many", +extra))
    return "; ".join(
        f"{rows.total():,} {what}, such as {next(iter(rows))!s:.{_MAX_SHOWN}}" for what, rows in kinds if rows
    )
