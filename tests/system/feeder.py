"""An injector process that is killed now and then.

Run as ``python -m tests.system.feeder ADDRESS SEED PLACE RATE``: it injects the records of a load, until the file
``PLACE/stop`` appears; then it says by ``PLACE/count`` how many there were, and goes on until it is killed.
A process that was killed and runs again begins with what ``PLACE/acked`` says was ACKed, and ends no sooner than
``PLACE/taken``, which the one before may have sent.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import islice
from pathlib import Path

from millwheel.client.injector import Injector, InjectorSettings
from tests.system.counting import Load, counting

BATCH = 20


async def feed(address: str, load: Load, place: Path, rate: float) -> None:
    """Inject until asked to stop; then finish."""
    base, taken = kept(place, "acked"), kept(place, "taken")
    rows = islice(load.records(), base, None)
    position = base
    settings = InjectorSettings(patience=120.0)
    async with Injector("events", address=address, process="feeder", topology=counting, settings=settings) as injector:
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


def kept(place: Path, name: str) -> int:
    """A number that a process before this one kept; 0 if none did."""
    path = place / name
    return int(path.read_text()) if path.exists() else 0


def keep(place: Path, name: str, number: int) -> None:
    """Keep a number for the next process."""
    fresh = place / f"{name}.new"
    fresh.write_text(str(number))
    fresh.replace(place / name)


if __name__ == "__main__":
    _, address, seed, place, rate = sys.argv
    asyncio.run(feed(address, Load(int(seed)), Path(place), float(rate)))
