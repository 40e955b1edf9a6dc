"""The whole cluster under SIGKILL: Cassandra, etcd, and daemons, one after the other of which is killed (G1)."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

import millwheel as mw
from deploy.local.cluster import settings_of
from deploy.local.daemons import Daemons
from millwheel.client.injector import Injector, InjectorSettings
from millwheel.client.subscription import From, Subscription
from millwheel.config import WorkerSection
from tests.components import cassandra, etcd
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system import counting as counting_module
from tests.system.counting import WINDOW, Load, WindowCount, counting

KILLS = int(os.environ.get("MILLWHEEL_CLUSTER_KILLS", "10"))
SEED = int(os.environ.get("MILLWHEEL_SEED", "1"))
CHUNK = 50
PAUSE = 0.05
"""Seconds between two chunks of records."""
_EACH = WorkerSection().lease_seconds + 7
"""Seconds that a kill may cost until all flows again: a lease's time, a restart and a takeover."""


async def feed(address: str, load: Load, enough: asyncio.Event) -> int:
    """Send records until it is enough; how many."""
    sent = 0
    records = load.records()
    settings = InjectorSettings(patience=120.0)
    async with Injector("events", address=address, process="feeder", topology=counting, settings=settings) as injector:
        while not enough.is_set():
            chunk = list(islice(records, CHUNK))
            await injector.send_many([event for event, _ in chunk], [timestamp for _, timestamp in chunk])
            sent += CHUNK
            await injector.advance(mw.Timestamp(max(0, sent * load.spacing - WINDOW)))
            await asyncio.sleep(PAUSE)
        await injector.finish()
    return sent


async def kill(daemons: Daemons, chance: random.Random, progress: Counter[WindowCount]) -> list[str]:
    """Kill a daemon at random, and again when records flow; which ones."""
    killed = []
    for _ in range(KILLS):
        name = chance.choice(list(daemons.services.processes))
        daemons.kill(name)
        killed.append(name)
        before = progress.total()
        await until(lambda before=before: progress.total() > before, patience(_EACH), every=0.05)  # type: ignore[misc]
        await asyncio.sleep(chance.uniform(0, 2.0))
    return killed


@pytest.mark.guarantee("G1", section="6.1, 7.1")
@pytest.mark.timeout(240 + int(_EACH) * KILLS)
async def test_results_are_right_if_any_daemon_is_killed(tmp_path: Path) -> None:
    node, chance = cassandra(), random.Random(SEED)
    name = f"kills_{os.getpid()}"
    settings = settings_of(etcd(), node, name) + "\n[master]\nlease_seconds = 2\n[authority]\nlease_seconds = 2\n"
    events = Load(SEED)
    async with Daemons(tmp_path, settings, lambda line: None) as daemons:
        await submit_copy(daemons.address, counting_module.__file__, "counting", tmp_path, 60.0)
        found: Counter[WindowCount] = Counter()
        enough = asyncio.Event()
        async with (
            asyncio.TaskGroup() as group,
            Subscription(
                "windows",
                cursor="test",
                start=From.OLDEST,
                record_type=WindowCount,
                address=daemons.address,
                until_end=True,
                patience=120.0,
            ) as subscription,
        ):
            feeding = group.create_task(feed(daemons.address, events, enough))
            killing = group.create_task(kill(daemons, chance, found))
            killing.add_done_callback(lambda _: enough.set())
            async for batch in subscription:
                found.update(batch.values)
    assert len(killing.result()) == KILLS
    expected = events.expected(feeding.result())
    assert (found - expected, expected - found) == (Counter(), Counter()), killing.result()
