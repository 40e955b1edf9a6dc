"""An injector process by the client library; see feeder.py for what it is told and what it tells.

Run as ``python -m tests.system.library_feeder ADDRESS SEED PLACE RATE``.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import islice
from pathlib import Path

from millwheel.client.injector import Injector, InjectorSettings
from tests.system.counting import Load, counting
from tests.system.feeder import BATCH, keep, kept

STREAM, PROCESS = "events", "feeder"


async def feed(address: str, load: Load, place: Path, rate: float) -> None:
    """Inject until asked to stop; then finish."""
    base, taken = kept(place, "acked"), kept(place, "taken")
    rows = islice(load.records(), base, None)
    position = base
    settings = InjectorSettings(patience=120.0)
    async with Injector(STREAM, address=address, process=PROCESS, topology=counting, settings=settings) as injector:
        while position < taken or not (place / "stop").exists():
            await asyncio.sleep(BATCH / rate)
            taken = max(taken, position + BATCH)
            keep(place, "taken", taken)
            batch = list(islice(rows, BATCH))
            await injector.send_many(
                [event for event, _ in batch],
                [timestamp for _, timestamp in batch],
                positions=range(position, position + BATCH),
            )
            position += BATCH
            await injector.advance(position * load.spacing)
            keep(place, "acked", injector.acknowledged() or base)
        keep(place, "count", position)
        await injector.finish()
    await asyncio.Event().wait()


if __name__ == "__main__":
    _, address, seed, place, rate = sys.argv
    asyncio.run(feed(address, Load(int(seed)), Path(place), float(rate)))
