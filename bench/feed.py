"""The injector process of the keyed count: `python -m bench.feed ADDRESS RECORDS TOPOLOGY`.

``TOPOLOGY`` is a name in ``bench.topologies``. It prints its start time in seconds.
"""

from __future__ import annotations

import sys
import time

import uvloop

from bench import topologies
from bench.load import BATCH, MAX_LATE_US, PER_MILLISECOND, batches
from millwheel.client.injector.injector import Injector

__all__ = ["feed"]


async def feed(address: str, records: int, topology: str) -> float:
    """Inject all records and the low watermark. Return the time at which the first record was sent."""
    prepared = list(batches(records))
    step = BATCH * 1_000 // PER_MILLISECOND
    program = getattr(topologies, topology)
    async with Injector("events", address=address, process="bench", topology=program) as injector:
        began = time.time()
        for number, (_, values, stamps) in enumerate(prepared):
            first = number * BATCH
            await injector.send_many(values, stamps, positions=range(first, first + len(values)))
            await injector.advance(max(0, (number + 1) * step - MAX_LATE_US))
        await injector.finish()
    return began


if __name__ == "__main__":
    print(uvloop.run(feed(sys.argv[1], int(sys.argv[2]), sys.argv[3])), flush=True)
