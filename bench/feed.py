"""The injector process of the keyed count: `python -m bench.feed ADDRESS RECORDS TOPOLOGY [ROWS]`.

``TOPOLOGY`` is a name in ``bench.topologies``. ``ROWS``: send tables of Arrow with so many rows; 0: records. It prints
its start time in seconds.
"""

from __future__ import annotations

import sys
import time
from typing import Any

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


async def feed_tables(address: str, records: int, rows: int, topology: str) -> float:
    """The same records as tables of Arrow. Those of ``windowed_sum`` have a number, too, which is always 1."""
    import pyarrow as pa

    tables, keys, payloads, times = [], list[str](), list[bytes](), list[int]()
    for _, values, stamps in batches(records):
        keys += [value.key for value in values]
        payloads += [value.payload for value in values]
        times += stamps
    for at in range(0, records, rows):
        part = slice(at, at + rows)
        columns: dict[str, list[Any]] = {"key": keys[part], "payload": payloads[part], "at": times[part]}
        if topology == "windowed_sum":
            columns["amount"] = [1] * len(keys[part])
        tables.append(pa.table(columns))
    step = 1_000 // PER_MILLISECOND
    async with Injector("events", address=address, process="bench") as injector:
        began = time.time()
        for number, table in enumerate(tables):
            await injector.send_table(table, timestamp="at", position=number * rows)
            await injector.advance(max(0, (number + 1) * rows * step - MAX_LATE_US))
        await injector.finish()
    return began


if __name__ == "__main__":
    where, count, name, *given = sys.argv[1:]
    size = int(given[0]) if given else 0
    run = feed_tables(where, int(count), size, name) if size else feed(where, int(count), name)
    print(uvloop.run(run), flush=True)
