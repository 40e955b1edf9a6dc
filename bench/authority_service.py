"""The watermark authority's throughput as a service: reports over loopback gRPC, journaled and broadcast (section 7.2).

    python bench/authority_service.py [--intervals 20000]

One process with one event loop and a memory store runs everything. So the figures are those of the authority and its
client together.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from itertools import pairwise
from time import perf_counter

import uvloop

from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shard import AuthorityShard
from millwheel.client.watermarks import WatermarkClient
from millwheel.model.keys import KeyInterval
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server
from millwheel.rpc.watermarks import WatermarkReport
from millwheel.store.memory import MemoryStore

JOURNAL = "authority.0"
COMPUTATION = "window-counter.17"


def pieces(count: int) -> list[KeyInterval]:
    """All keys in ``count`` intervals."""
    bounds = [b"", *(b"%08x" % (n * (2**32 // count)) for n in range(1, count)), None]
    return [KeyInterval(start or b"", end) for start, end in pairwise(bounds)]


async def one_way(client: WatermarkClient, rounds: int) -> list[float]:
    """Seconds from a report to the broadcast that it causes, measured at the same client."""
    await client.accept("lone.1", KeyInterval(), 1)
    updates = client.watch(["lone.1"])
    await anext(updates)
    taken = []
    for watermark in range(1, rounds):
        began = perf_counter()
        client.report(WatermarkReport("lone.1", KeyInterval(), 1, watermark))
        while (await anext(updates))["lone.1"].watermark != watermark:
            pass
        taken.append(perf_counter() - began)
    await updates.aclose()
    return taken


async def rounds(client: WatermarkClient, intervals: list[KeyInterval], count: int) -> float:
    """Seconds for ``count`` rounds. In a round, every interval reports once, and waits for the broadcast."""
    updates = client.watch([COMPUTATION])
    began = perf_counter()
    for watermark in range(1, count + 1):
        for sequencer, keys in enumerate(intervals, start=1):
            client.report(WatermarkReport(COMPUTATION, keys, sequencer, watermark))
        async for news in updates:
            if news[COMPUTATION].watermark == watermark:
                break
    await updates.aclose()
    return perf_counter() - began


async def measure(count: int) -> None:
    """Start a shard, and print one line for each figure."""
    store = MemoryStore()
    await store.create_journal(JOURNAL)
    open_shard = await AuthorityShard.open(store, JOURNAL, 1)
    server = create_server()
    add_WatermarkServiceServicer_to_server(WatermarkServicer(open_shard), server)
    address = bind(server)
    await server.start()
    intervals = pieces(count)
    for first in range(0, count, 1_000):
        await asyncio.gather(
            *(open_shard.accept(COMPUTATION, intervals[n], n + 1) for n in range(first, min(first + 1_000, count)))
        )
    async with WatermarkClient(address, on_refused=print) as client:
        taken = sorted(await one_way(client, 1_000))
        print(
            f"report to broadcast: p50 {statistics.median(taken) * 1e3:.1f} ms, "
            f"p99 {taken[int(len(taken) * 0.99)] * 1e3:.1f} ms"
        )
        seconds = await rounds(client, intervals, 5)
        print(f"{count:,} intervals, every one reports in every round: {5 * count / seconds:,.0f} reports/s")
    await server.stop(None)
    await open_shard.close()


def main() -> None:
    """Run the measurement."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--intervals", type=int, default=20_000)
    uvloop.run(measure(arguments.parse_args().intervals))


if __name__ == "__main__":
    main()
