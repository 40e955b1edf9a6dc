"""A source in the cluster beside an injector: `python -m bench.sources [--records N] [--runs N]`.

One count by key and window reads the same records from a topic of Kafka, or gets them from an injector in another
process. The two take turns, each on a fresh development server. What counts is the rate from the moment when a tenth of
the records is in results, until all are. A run fails if a result is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from bench import loop
from bench.kafka_count.checking import Arrival, compare, steady_rate
from bench.kafka_count.feed import feed
from bench.kafka_count.hits import Hits, Window
from bench.kafka_count.program import Hit, injected
from bench.kafka_count.topics import make_topic
from bench.server import server, submit
from deploy.local.kafka import KafkaBroker
from millwheel import windows
from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription

__all__ = ["FORMS", "inject", "main"]

_PROGRAM: Final = "bench.kafka_count.program"
_TOPIC: Final = "from"
_BATCH: Final = 1_000
_PATIENCE: Final = 180.0
FORMS: Final = ("injected", "sourced")
"""The topologies, by their names in the program."""


def _batches(hits: Hits) -> Iterator[tuple[list[Hit], list[int]]]:
    """The records as an injector sends them, with timestamps in microseconds."""
    for first in range(0, hits.total, _BATCH):
        numbers = range(first, min(first + _BATCH, hits.total))
        places = [hits.place(number) for number in numbers]
        values = [Hit(f"key-{key:05d}", number) for number, (key, _) in zip(numbers, places, strict=True)]
        yield values, [at * 1_000 for _, at in places]


async def inject(address: str, hits: Hits) -> None:
    """Inject all records and the low watermark."""
    prepared = list(_batches(hits))
    async with Injector("hits", address=address, process="bench", topology=injected) as injector:
        for number, (values, stamps) in enumerate(prepared):
            first = number * _BATCH
            await injector.send_many(values, stamps, positions=range(first, first + len(values)))
            await injector.advance(max(stamps) - hits.out_of_order_ms * 1_000)
        await injector.finish()


async def _arrivals(address: str, form: str, hits: Hits) -> list[Arrival]:
    """When results came, and how many records each counts. RuntimeError: they are wrong."""
    arrivals: list[Arrival] = []
    results: list[tuple[Window, int]] = []
    counted = 0
    async with Subscription(
        f"{form}/counts", cursor="bench", record_type=windows.Result[int], address=address, auto_ack=True
    ) as subscription:
        async for batch in subscription:
            found = [((one.key, one.start // 1_000), one.value) for one in batch.values]
            found = [(window, count) for window, count in found if window[1] < hits.end_ms]
            results += found
            more = sum(count for _, count in found)
            counted += more
            arrivals.append((time.monotonic(), more))
            if counted >= hits.records:
                break
    if not (compared := compare(hits.counts(), results)).right:
        raise RuntimeError(f"{form}: {compared}")
    return arrivals


def _run(form: str, hits: Hits) -> float:
    """Records per second of one run."""
    with server() as address:
        submit(address, form, _PROGRAM)
        command = [sys.executable, "-m", "bench.sources", "--inject", address, msgspec.json.encode(hits).decode()]
        feeder = subprocess.Popen(command) if form == "injected" else None
        try:
            arrivals = loop.run(asyncio.wait_for(_arrivals(address, form, hits), _PATIENCE))
        finally:
            if feeder is not None:
                feeder.kill()
                feeder.wait()
    return steady_rate(arrivals, hits.records)


def main(records: int, runs: int) -> None:
    """Print the rate of each run, the best ones, and their ratio."""
    hits = Hits(records, keys=200, per_second=5_000, window_ms=1_000)
    rates: dict[str, list[float]] = {form: [] for form in FORMS}
    with tempfile.TemporaryDirectory(prefix="millwheel-bench-") as place, KafkaBroker(Path(place) / "kafka") as broker:
        os.environ["KAFKA_COUNT_BROKER"] = broker.address
        make_topic(broker.address, _TOPIC, hits.partitions)
        feed(broker.address, _TOPIC, hits, 0.0)
        for _ in range(runs):
            for form in FORMS:
                rates[form].append(_run(form, hits))
                print(f"{form:10} {rates[form][-1]:>10,.0f} records/s", flush=True)
    from_injector, from_source = (max(rates[form]) for form in FORMS)
    print(f"best: {from_injector:,.0f} injected, {from_source:,.0f} sourced: {from_source / from_injector:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.sources", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--inject", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inject:
        asyncio.run(inject(given.inject[0], msgspec.json.decode(given.inject[1], type=Hits)))
    else:
        main(given.records, given.runs)
