"""The latency of a committed result: one stage between two computations with different keys (8.1, figure 13).

The stage begins in the hook of the first computation, which produces a record. The second computation produces a result
from this record. The stage ends in the hook of the result's consumer. With strong productions, the stage contains two
commits in sequence: the commit of the production and the commit of the result. Without exactly-once and strong
productions, it contains none.

Each computation has one interval. The second computation's interval is on another worker than the others. So a record
crosses between processes twice. Only the processes that a cluster needs run beside the measurement.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from typing import Final

from bench.cluster import topologies
from bench.cluster.measures import histogram, percentile
from bench.cluster.pacing import beats, wall_micros
from bench.cluster.system import System
from bench.cluster.topologies import PINGS_PER_RECORD, Ping, Seen, name_of
from bench.report import Figure, Row, Series
from millwheel import Topology
from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription

__all__ = ["RATE", "cost_of_guarantees", "measure"]

RATE: Final = 500
_KEYS: Final = 1_000
_ADVANCE: Final = 10
"""The number of records between two steps of the low watermark: 50 steps a second."""
_GRACE: Final = 30.0


async def measure(system: System, form: str, warm: float, seconds: float) -> list[Row]:
    """Measure the figures of the stage in one ``form``: "strong" or "plain"."""
    topology = f"stage-{form}"
    await system.submit(f"bench.cluster.topologies:{form}_stage")
    for computation, worker in (("first", 0), ("second", 1), ("probe", 0)):
        await system.arrange(topology, computation, [], [system.workers[worker]])
    await system.log_on("seen", system.workers[1])
    try:
        pings = await _pings(system.address, getattr(topologies, f"{form}_stage"), warm, seconds)
    finally:
        await system.cancel(topology)
    return figures(form, pings)


def figures(form: str, pings: Sequence[Ping]) -> list[Row]:
    """The figures of the stage, of its part up to the second hook, and of the whole way from the injector's send.

    And the histograms of the first two.
    """
    spans = {
        "": [ping.got - ping.made for ping in pings],
        "delivery.": [ping.run - ping.made for ping in pings],
        "whole.": [ping.got - ping.sent for ping in pings],
    }
    found: list[Row] = []
    for part, nanos in spans.items():
        for name, share in (("p50", 0.50), ("p95", 0.95), ("p99", 0.99)):
            value = percentile(nanos, share) / 1e6
            found.append(Figure(f"stage_latency.{form}.{part}{name}_ms", value, "ms", (value,)))
        if part != "whole.":
            points = histogram(span / 1e6 for span in nanos)
            found.append(Series(f"stage_latency.{form}.{part}histogram", "share by ms", points))
    return found


def cost_of_guarantees(found: Iterable[Figure]) -> list[Figure]:
    """How many times as long a strong stage takes as a plain one, at the median. Empty: one of them is missing."""
    medians = {figure.name: figure.value for figure in found}
    strong, plain = (medians.get(f"stage_latency.{form}.p50_ms") for form in ("strong", "plain"))
    if not (strong and plain):
        return []
    return [Figure("stage_latency.strong_over_plain", strong / plain, "", (strong / plain,))]


async def _pings(address: str, topology: Topology, warm: float, seconds: float) -> list[Ping]:
    """Send pings and receive all but the last few. The pings of the warm-up are not returned."""
    received: dict[int, Ping] = {}
    count = int(RATE * (warm + seconds))
    async with (
        Subscription("seen", cursor="bench", record_type=Seen, address=address, auto_ack=True) as subscription,
        asyncio.timeout(warm + seconds + _GRACE),
    ):
        receiving = asyncio.create_task(_receive(subscription, received, count - PINGS_PER_RECORD))
        async with Injector("pings", address=address, process="bench", topology=topology) as injector:
            draw = random.Random(1)
            async for number in beats(RATE, warm + seconds):
                ping = Ping(name_of(draw.randrange(_KEYS)), name_of(draw.randrange(_KEYS)), time.perf_counter_ns())
                at = wall_micros()
                await injector.send(ping, timestamp=at)
                if number % _ADVANCE == 0:
                    await injector.advance(at)
            await injector.flush()
        await receiving
    return [received[sent] for sent in sorted(received)[int(RATE * warm) :]]


async def _receive(subscription: Subscription, received: dict[int, Ping], enough: int) -> None:
    """Receive until all pings have arrived.

    Without exactly-once, some may arrive twice. The first arrival counts.
    """
    begun = time.perf_counter_ns()
    async for batch in subscription:
        for ping in (ping for seen in batch.values for ping in seen.pings):
            if ping.sent >= begun:
                received.setdefault(ping.sent, ping)
        if len(received) > enough:
            return
