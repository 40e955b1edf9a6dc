"""The injector process of the keyed count: `python -m bench.feed ADDRESS RECORDS TOPOLOGY [--rows ROWS] ...`.

It prints its start time in seconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import uvloop

from bench import topologies
from bench.load import BATCH, MAX_LATE_US, PER_MILLISECOND, KeyDraw, batches
from millwheel.client.injector.injector import Injector

__all__ = ["feed"]


async def feed(address: str, records: int, keys: KeyDraw, topology: str, ready: Callable[[], None]) -> float:
    """Inject all records and the low watermark. Return the time at which the first record was sent.

    ``ready`` is called before that.
    """
    prepared = list(batches(records, keys))
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


async def feed_tables(
    address: str, records: int, keys: KeyDraw, rows: int, topology: str, ready: Callable[[], None]
) -> float:
    """The same records as tables of Arrow. Those of ``windowed_sum`` have a number, too, which is always 1."""
    import pyarrow as pa

    tables, names, payloads, times = [], list[str](), list[bytes](), list[int]()
    for _, values, stamps in batches(records, keys):
        names += [value.key for value in values]
        payloads += [value.payload for value in values]
        times += stamps
    for at in range(0, records, rows):
        part = slice(at, at + rows)
        columns: dict[str, list[Any]] = {"key": names[part], "payload": payloads[part], "at": times[part]}
        if topology == "windowed_sum":
            columns["amount"] = [1] * len(names[part])
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


def _no_wait() -> None:
    return


def _wait() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.feed")
    parser.add_argument("address")
    parser.add_argument("records", type=int)
    parser.add_argument("topology", help="a name in bench.topologies")
    parser.add_argument("--rows", type=int, default=0, help="send tables of Arrow with so many rows; 0: records")
    parser.add_argument("--keys", type=int, default=KeyDraw().count)
    parser.add_argument("--zipf", type=float, default=0.0, help="the exponent of Zipf's law; 0: uniform keys")
    parser.add_argument(
        "--wait",
        action="store_true",
        help="print a line when the records are there, and send them when one is read. End when another one is read, "
        "so that the processor time can be read",
    )
    given = parser.parse_args()
    keys, ready = KeyDraw(given.keys, given.zipf), _wait if given.wait else _no_wait
    what = given.address, given.records, keys
    run = feed_tables(*what, given.rows, given.topology, ready) if given.rows else feed(*what, given.topology, ready)
    print(uvloop.run(run), flush=True)
    if given.wait:
        sys.stdin.readline()


if __name__ == "__main__":
    _main()
