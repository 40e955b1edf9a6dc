"""The load as a process, with one version's client library: ``clients.py ADDRESS SEED PLACE``.

It sends and reads until ``PLACE/stop`` exists, and waits for the ends of all streams. It may be killed and run again.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing
from pathlib import Path

from tests.faults.history import History, read
from tests.faults.load import Load
from tests.patience import patience, until

_MAX_SECONDS = patience(225)


async def _run(address: str, seed: int, place: Path) -> None:
    path = place / "history.jsonl"
    before = list(read(path)) if path.exists() else []
    with closing(History(path)) as history:
        load = Load(address, history, seed + len(before), ["source"], chunk=20, pause=0.2, lives=5.0)
        async with load.flowing(patience(120), before) as missed:
            await until((place / "stop").exists, _MAX_SECONDS, every=0.1)
    if missed:
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
