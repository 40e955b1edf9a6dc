"""The injector process of the keyed count: `python -m bench.feed ADDRESS RECORDS TOPOLOGY [ROWS [wait]]`.

``TOPOLOGY`` is a name in ``bench.topologies``. ``ROWS``: send tables of Arrow with so many rows; 0: records. With
``wait``, it prints a line when the records are there, and sends them when it has read one. It ends when it has read
another one, so that its processor time can be read. It prints its start time in seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import uvloop

from bench import topologies
from bench.load import BATCH, MAX_LATE_US, PER_MILLISECOND, batches
from millwheel.client.injector.injector import Injector

__all__ = ["feed"]


async def feed(address: str, records: int, topology: str, ready: Callable[[], None]) -> float:
    """Inject all records and the low watermark. Return the time at which the first record was sent.

    ``ready`` is called before that.
    """
    prepared = list(batches(records))
    step = BATCH * 1_000 // PER_MILLISECOND
    program = getattr(topologies, topology)
    async with Injector("events", address=address, process="bench", topology=program) as injector:
        ready()
        began = time.time()
        for number, (_, values, stamps) in enumerate(prepared):
            first = number * BATCH
            await injector.send_many(values, stamps, positions=range(first, first + len(values)))
            await injector.advance(max(0, (number + 1) * step - MAX_LATE_US))
        await injector.finish()
    return began


async def feed_tables(address: str, records: int, rows: int, topology: str, ready: Callable[[], None]) -> float:
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
        ready()
        began = time.time()
        for number, table in enumerate(tables):
            await injector.send_table(table, timestamp="at", position=number * rows)
            await injector.advance(max(0, (number + 1) * rows * step - MAX_LATE_US))
        await injector.finish()
    return began


def _wait() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    where, count, name, *given = sys.argv[1:]
    size = int(given[0]) if given else 0
    wait = _wait if given[1:] == ["wait"] else lambda: None
    run = feed_tables(where, int(count), size, name, wait) if size else feed(where, int(count), name, wait)
    print(uvloop.run(run), flush=True)
    if wait is _wait:
        sys.stdin.readline()
