"""The whole cluster under SIGKILL: Cassandra, etcd, and daemons, one after the other of which is killed (G1)."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from deploy.local.cluster import settings_of
from deploy.local.daemons import Daemons
from millwheel.config import WorkerSection
from tests.components import cassandra, etcd
from tests.faults import program
from tests.faults.load import Load, verified
from tests.patience import patience, until
from tests.submitting import submit_copy

KILLS = int(os.environ.get("MILLWHEEL_KILLS", "10"))
SEED = int(os.environ.get("MILLWHEEL_SEED", "1"))
_EACH = WorkerSection().lease_seconds + 7
"""Seconds that a kill may cost until all flows again: a lease's time, a restart and a takeover."""


async def kill(daemons: Daemons, chance: random.Random, load: Load) -> list[str]:
    """Kill a daemon at random, and again when records flow; which ones."""
    killed = []
    for _ in range(KILLS):
        name = chance.choice(list(daemons.services.processes))
        daemons.kill(name)
        killed.append(name)
        before = load.received["windows"]
        await until(lambda before=before: load.received["windows"] > before, patience(_EACH), every=0.05)  # type: ignore[misc]
        await asyncio.sleep(chance.uniform(0, 2.0))
    return killed


@pytest.mark.guarantee("G1", section="6.1, 7.1")
@pytest.mark.timeout(240 + int(_EACH) * KILLS)
async def test_results_are_right_if_any_daemon_is_killed(tmp_path: Path) -> None:
    node, chance = cassandra(), random.Random(SEED)
    name = f"kills_{os.getpid()}"
    settings = settings_of(etcd(), node, name) + "\n[master]\nlease_seconds = 2\n[authority]\nlease_seconds = 2\n"
    async with Daemons(tmp_path, settings, lambda line: None) as daemons:
        await submit_copy(daemons.address, program.__file__, "faults", tmp_path)
        async with verified(daemons.address, tmp_path, SEED) as load:
            killed = await kill(daemons, chance, load)
    assert len(killed) == KILLS
