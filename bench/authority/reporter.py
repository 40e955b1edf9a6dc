"""The owners of all intervals, in a process of their own: `python -m bench.authority.reporter ADDRESS INTERVALS`.

It prints ``ready``, and then obeys the lines of its input:

- ``round``: every interval reports a higher watermark once, each another one. It prints the seconds until the last
  broadcast.
- ``rate N``: N intervals a second report, one after the other, until the next line. 0: it rests.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from time import perf_counter
from typing import Final

import uvloop

from bench.authority.intervals import members, names_of
from millwheel.client.watermarks import WatermarkClient
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import BroadcastUpdate, WatermarkReport

__all__ = ["Owners"]

_PATIENCE: Final = 120.0
_TURN: Final = 1_000
"""The reports that are made in one turn of the loop."""
_FIRST_WATERMARK: Final = 1 << 40
_REFRESH: Final = 3_600.0
"""Seconds until reports are repeated. A worker repeats those of its few intervals; all at once would be a flood."""
_SPREAD: Final = 1 << 20
"""The watermarks of a round are so far apart at most. Each is higher than all of the round before."""


class Owners:
    """The owners of intervals, with one client. Sequencers are 1 and on."""

    def __init__(self, client: WatermarkClient, owned: list[tuple[str, KeyInterval]]) -> None:
        self._client = client
        self._owned = owned
        self._least = _FIRST_WATERMARK
        """The least watermark of this round."""

    def _report(self, first: int, last: int) -> None:
        for place in range(first, last):
            name, keys = self._owned[place]
            watermark = self._least + place * 7919 % _SPREAD
            self._client.report(
                WatermarkReport(name, keys, place + 1, watermark, watermark, HoldKind.HOLD_KIND_INPUT, "injector/bids")
            )

    async def round(self, updates: AsyncGenerator[dict[str, BroadcastUpdate], None]) -> float:
        """Seconds from the first report of a round to its broadcast."""
        self._least += _SPREAD
        waiting = set(names_of(self._owned))
        began = perf_counter()
        for first in range(0, len(self._owned), _TURN):
            self._report(first, min(first + _TURN, len(self._owned)))
            await asyncio.sleep(0)
        async for news in updates:
            waiting -= {name for name, broadcast in news.items() if broadcast.watermark >= self._least}
            if not waiting:
                break
        return perf_counter() - began

    async def keep_on(self, rate: float) -> None:
        """Report at ``rate``, one interval after the other, until it is cancelled."""
        began, place, count = perf_counter(), 0, 0
        self._least += _SPREAD
        while True:
            due = min(int((perf_counter() - began) * rate) - count, _TURN, len(self._owned) - place)
            self._report(place, place + due)
            place, count = place + due, count + due
            if place == len(self._owned):
                place, self._least = 0, self._least + _SPREAD
            await asyncio.sleep(0.001)


async def _obey(address: str, intervals: int) -> None:
    """Do what the lines of the input say, to their end."""
    owned = members(intervals)
    async with WatermarkClient(address, on_refused=print, refresh=_REFRESH) as client:
        owners, updates = Owners(client, owned), client.watch(names_of(owned))
        reporting: asyncio.Task[None] | None = None
        print("ready", flush=True)
        while words := (await asyncio.to_thread(sys.stdin.readline)).split():
            if reporting is not None:
                reporting.cancel()
                reporting = None
            if words[0] == "round":
                async with asyncio.timeout(_PATIENCE):
                    print(await owners.round(updates), flush=True)
            elif float(words[1]):
                reporting = asyncio.create_task(owners.keep_on(float(words[1])))
        await updates.aclose()


if __name__ == "__main__":
    uvloop.run(_obey(sys.argv[1], int(sys.argv[2])))
