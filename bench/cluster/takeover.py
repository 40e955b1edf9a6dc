"""How long an interval with many keys and timers is unavailable when its owner is killed (7.1; design section 5).

The worker is killed under a steady load. Before another worker can own the interval, the lease must end, or the
restarted worker must give it up. This wait depends on the cluster's settings. The takeover is the time from the new
owner's entry in the interval map to the first record that is processed, committed and ACKed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import Final

from bench.cluster import topologies
from bench.cluster.pacing import beats, wall_micros
from bench.cluster.system import System, until
from bench.cluster.topologies import Setting, name_of
from bench.report import Figure
from millwheel.client.injector import Injector
from millwheel.rpc.v1.control_pb2 import WatchRoutingResponse

__all__ = ["measure"]

_RATE: Final = 200
_FILLING: Final = 1_000
_STATE: Final = 100
_YEAR: Final = 365 * 86_400_000_000
_POLL_SECONDS: Final = 0.001


async def measure(system: System, say: Callable[[str], None], keys: int, kills: int) -> list[Figure]:
    """Return the median and the longest time of a takeover, and the time until there was a new owner."""
    await system.submit("bench.cluster.topologies:timers")
    await system.settled("timers", "timer-holder")
    waits, takeovers = [], []
    async with Injector("settings", address=system.address, process="bench", topology=topologies.timers) as injector:
        for first in range(0, keys, _FILLING):
            await _set(injector, range(first, min(first + _FILLING, keys)))
        await injector.flush()
        say(f"{keys:,} keys with timers are set")
        load = _Steady(injector, keys)
        steady = asyncio.create_task(load.run())
        try:
            for _ in range(kills):
                await asyncio.sleep(2)
                wait, takeover = await _kill(system, load)
                say(f"a new owner after {wait * 1e3:,.0f} ms, its first record {takeover * 1e3:,.0f} ms later")
                waits.append(wait * 1e3)
                takeovers.append(takeover * 1e3)
                await _all_back(system)
        finally:
            steady.cancel()
            await asyncio.gather(steady, return_exceptions=True)
    await system.cancel("timers")
    return [
        Figure("takeover.first_record_ms", median(takeovers), "ms", tuple(takeovers)),
        Figure("takeover.first_record_max_ms", max(takeovers), "ms", ()),
        Figure("takeover.new_owner_ms", median(waits), "ms", tuple(waits)),
    ]


async def _set(injector: Injector, numbers: range) -> None:
    at = wall_micros()
    settings = [Setting(name_of(number), at + _YEAR + number, bytes(_STATE)) for number in numbers]
    await injector.send_many(settings, [at] * len(settings))
    await injector.advance(at)


class _Steady:
    """Sends one record after the other, and counts the ACKs."""

    def __init__(self, injector: Injector, keys: int) -> None:
        self._injector = injector
        self._keys = keys
        self._sent = 0

    async def run(self) -> None:
        async for number in beats(_RATE):
            key = number * 7_919 % self._keys
            await _set(self._injector, range(key, key + 1))
            self._sent += 1

    @property
    def acked(self) -> int:
        return self._sent - self._injector.unacked


async def _kill(system: System, load: _Steady) -> tuple[float, float]:
    """Kill the owner. Return the seconds until there was a new owner, and from then to its first committed record."""
    (interval,) = await system.settled("timers", "timer-holder")
    watching = asyncio.create_task(_new_owner(system, interval.sequencer))
    await asyncio.sleep(0.2)
    killed = time.monotonic()
    system.kill(interval.owner.worker_id)
    # An ACK of the killed owner may still arrive. It does not count as an ACK of the new owner.
    await asyncio.sleep(0.2)
    acked = load.acked
    owned = await asyncio.wait_for(watching, 60)
    async with asyncio.timeout(60):
        while load.acked <= acked + 1:  # noqa: ASYNC110 ACKs come by themselves
            await asyncio.sleep(_POLL_SECONDS)
    return owned - killed, time.monotonic() - owned


async def _new_owner(system: System, sequencer: int) -> float:
    """The time at which the interval map named another owner."""
    async for routing in system.client.watch_routing("settings"):
        if _sequencer(routing) > sequencer:
            return time.monotonic()
    raise RuntimeError("no routing arrives any more")


def _sequencer(routing: WatchRoutingResponse) -> int:
    """The sequencer of the interval. 0 if it has no owner."""
    (interval,) = routing.consumers[0].intervals.intervals
    return int(interval.sequencer) if interval.HasField("owner") else 0


async def _all_back(system: System) -> None:
    """Wait until all workers are registered again."""

    async def all_there() -> bool | None:
        health = await system.client.cluster_health()
        return True if len(health.workers) == len(system.workers) else None

    await until(all_there, "a worker that was killed has not come back")
