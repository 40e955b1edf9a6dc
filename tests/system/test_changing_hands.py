"""Intervals are moved, split and merged while records flow, by the real master and workers over gRPC (G1, G11; 7.1)."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector, InjectorSettings
from millwheel.client.subscription import From, Subscription
from millwheel.worker.interval import IntervalSettings
from tests.daemons.together import Together, together
from tests.patience import patience
from tests.reshaping import reshape
from tests.submitting import submit_copy
from tests.system import counting
from tests.system.counting import Load, Total, WindowCount

SMALL = IntervalSettings(flush_interval=50_000, checkpoint_entries=20)
RATE = 2_000
WORKERS = ["w0.0", "w1.0"]
CUTS = {"counter": [f"key-{number}" for number in range(40)], "adder": [f"group-{number}" for number in range(7)]}
SEED = int(os.environ.get("MILLWHEEL_SEED", "11"))


async def everything(address: str, stream: str, kind: type) -> list[Any]:
    found: list[Any] = []
    async with Subscription(
        stream, start=From.OLDEST, address=address, record_type=kind, until_end=True, patience=30
    ) as reader:
        async for batch in reader:
            found += batch.values
    return found


async def feed(cluster: Together, load_: Load, stop: asyncio.Event) -> int:
    rows, position = load_.records(), 0
    settings = InjectorSettings(patience=30.0)
    async with Injector("events", address=cluster.address, topology=counting.counting, settings=settings) as injector:
        while not stop.is_set():
            batch = list(islice(rows, 20))
            await injector.send_many(
                [event for event, _ in batch], [at for _, at in batch], positions=range(position, position + 20)
            )
            position += 20
            await injector.advance(position * load_.spacing)
            await asyncio.sleep(20 / RATE)
        await injector.finish()
    return position


def enough(reached: Counter[str]) -> bool:
    return reached["move"] > 2 and reached["split"] > 1 and reached["merge"] > 0


@pytest.mark.guarantee("G11", section="7.1")
@pytest.mark.timeout(300)
async def test_moves_splits_and_merges_under_load_keep_exactly_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, reached = random.Random(SEED), Counter[str]()
    load_ = Load(SEED)
    monkeypatch.setattr("millwheel.server.worker.CoreSettings", lambda **_: SMALL)
    async with together(tmp_path) as cluster, AsyncExitStack() as stack:
        await submit_copy(cluster.address, counting.__file__, "counting", tmp_path)
        client = await stack.enter_async_context(ControlClient(cluster.address, patience=10))
        await client.ensure_stream_log("windows")
        await client.ensure_stream_log("totals")
        stop = asyncio.Event()
        feeding = asyncio.create_task(feed(cluster, load_, stop))
        began = time.monotonic()
        while not feeding.done() and time.monotonic() - began < (12 if enough(reached) else patience(60)):
            await asyncio.sleep(chance.uniform(0.05, 0.4))
            reached[await reshape(client, "counting", CUTS, WORKERS, chance)] += 1
        stop.set()
        count = await asyncio.wait_for(feeding, patience(60))
        windows = Counter(await asyncio.wait_for(everything(cluster.address, "windows", WindowCount), patience(30)))
        assert windows == load_.expected(count)
        totals = await asyncio.wait_for(everything(cluster.address, "totals", Total), patience(30))
        largest = {one.group: one for one in sorted(totals, key=lambda one: one.windows)}
        assert sum(one.records for one in largest.values()) == count
        assert len(totals) == len(windows)
        assert enough(reached), reached
