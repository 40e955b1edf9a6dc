"""The lag behind real time that each stage of a pipeline adds to the low watermark (8.2, figure 15)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable
from contextlib import aclosing
from typing import Final

from bench.cluster import topologies
from bench.cluster.measures import added_lags, percentile
from bench.cluster.pacing import beats, wall_micros
from bench.cluster.system import System
from bench.cluster.topologies import Beat, name_of
from bench.report import Figure, Row, Series
from millwheel.client.injector import Injector
from millwheel.client.shards import ShardedWatermarks
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import injector_group
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.failures import authority_is_away

__all__ = ["measure"]

_RATE: Final = 500
_KEYS: Final = 1_000
_SAMPLES: Final = 100
"""Samples of the watermarks per second."""
_SHOWN: Final = 10
"""Of so many samples, a plot shows one."""
_STAGES: Final = ("one", "two", "three")


async def measure(system: System, warm: float, seconds: float) -> list[Row]:
    """Return the largest median lag that a stage adds under load, and the lag of each stage."""
    record = await system.submit("bench.cluster.topologies:chain")
    for computation in _STAGES:
        await system.arrange("chain", computation, [name_of(_KEYS // 2).encode()], system.workers[:2])
    await system.log_on("ticks-3", system.workers[1])
    senders = [injector_group("chain/ticks"), *(record.incarnations[name] for name in _STAGES)]
    try:
        samples = await _samples(system, senders, warm, seconds)
    finally:
        await system.cancel("chain")
    added = added_lags(samples)
    worst = max(added)
    found: list[Row] = [Figure("watermark_lag.per_stage_ms", worst, "ms", tuple(added))]
    for number, name in enumerate(("injector", *_STAGES)):
        lag = percentile((sample[number] for sample in samples), 0.5)
        found.append(Figure(f"watermark_lag.{name}.p50_ms", lag, "ms", (lag,)))
        shown = [(place / _SAMPLES, sample[number]) for place, sample in enumerate(samples) if place % _SHOWN == 0]
        found.append(Series(f"watermark_lag.{name}.by_second", "ms by s", tuple(shown)))
    return found


async def _samples(system: System, senders: list[str], warm: float, seconds: float) -> list[list[float]]:
    """The lags of all senders in milliseconds, sampled while records flow."""
    known: dict[str, int] = {}
    samples: list[list[float]] = []
    places = _Places(await system.components.catalog())
    async with (
        ShardedWatermarks(places, on_refused=lambda report: None) as authority,
        Injector("ticks", address=system.address, process="bench", topology=topologies.chain) as injector,
        asyncio.TaskGroup() as group,
    ):
        watching = group.create_task(_watch(authority, senders, known))
        sending = group.create_task(_send(injector, warm + seconds))
        await asyncio.sleep(warm)
        while not sending.done():
            await asyncio.sleep(1 / _SAMPLES)
            now = time.time_ns() // 1_000
            values = [known.get(sender, MIN_TIMESTAMP) for sender in senders]
            if min(values) > MIN_TIMESTAMP:
                samples.append([(now - value) / 1e3 for value in values])
        watching.cancel()
    return samples


async def _watch(authority: ShardedWatermarks, senders: list[str], known: dict[str, int]) -> None:
    async with aclosing(authority.watch(senders)) as updates:
        async for update in updates:
            known.update((sender, broadcast.watermark) for sender, broadcast in update.items())


async def _send(injector: Injector, seconds: float) -> None:
    async for number in beats(_RATE, seconds):
        at = wall_micros()
        await injector.send(Beat(name_of(number * 7 % _KEYS), at), timestamp=at)
        await injector.advance(at)


class _Places:
    """The addresses of the shards. They do not change during the measurement."""

    def __init__(self, known: Catalog) -> None:
        self._known = known

    def shard_of(self, computation: str) -> Hashable:
        return self._known.shard_of(computation)

    async def address_of(self, shard: Hashable) -> str:
        assert isinstance(shard, int)
        record = self._known.authorities.get(shard)
        if record is None:
            raise authority_is_away(f"shard {shard}")
        return str(record.endpoint.address)
