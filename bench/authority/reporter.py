"""The owners of all intervals, in a process of their own: `python -m bench.authority.reporter ADDRESS INTERVALS`.

It prints ``ready``, waits for a line of its input, has every interval report once, and prints the seconds until the
broadcast of that value by all computations.
"""

from __future__ import annotations

import asyncio
import sys
from time import perf_counter
from typing import Final

import uvloop

from bench.authority.intervals import members, names_of
from millwheel.client.watermarks import WatermarkClient
from millwheel.rpc.watermarks import WatermarkReport

__all__ = ["WATERMARK", "report_all"]

_PATIENCE: Final = 120.0
WATERMARK: Final = 1 << 40


async def report_all(address: str, intervals: int) -> float:
    """Seconds from the first report to the broadcast."""
    owned = members(intervals)
    waiting = set(names_of(owned))
    async with asyncio.timeout(_PATIENCE), WatermarkClient(address, on_refused=print) as client:
        updates = client.watch(list(waiting))
        print("ready", flush=True)
        sys.stdin.readline()
        began = perf_counter()
        for sequencer, (name, keys) in enumerate(owned, start=1):
            client.report(WatermarkReport(name, keys, sequencer, WATERMARK))
        async for news in updates:
            waiting -= {name for name, broadcast in news.items() if broadcast.watermark == WATERMARK}
            if not waiting:
                break
        took = perf_counter() - began
        await updates.aclose()
    return took


if __name__ == "__main__":
    print(uvloop.run(report_all(sys.argv[1], int(sys.argv[2]))), flush=True)
