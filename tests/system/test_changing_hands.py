"""Intervals are moved, split and merged while records flow, by the real master and workers over gRPC (G1, G11; 7.1)."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from millwheel.client.control import ControlClient
from millwheel.worker.interval import IntervalSettings
from tests.daemons.together import together
from tests.faults import program
from tests.faults.load import CUTS, verified
from tests.patience import patience
from tests.reshaping import reshape
from tests.submitting import submit_copy

SMALL = IntervalSettings(flush_interval=50_000, checkpoint_entries=20)
WORKERS = ["w0.0", "w1.0"]
SEED = int(os.environ.get("MILLWHEEL_SEED", "11"))


def enough(reached: Counter[str]) -> bool:
    return reached["move"] > 2 and reached["split"] > 1 and reached["merge"] > 0


@pytest.mark.guarantee("G11", section="7.1")
@pytest.mark.timeout(300)
async def test_moves_splits_and_merges_under_load_keep_exactly_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, reached = random.Random(SEED), Counter[str]()
    monkeypatch.setattr("millwheel.server.worker.CoreSettings", lambda **_: SMALL)
    async with together(tmp_path) as cluster, ControlClient(cluster.address, patience=patience(10)) as client:
        await submit_copy(cluster.address, program.__file__, "faults", tmp_path)
        async with verified(cluster.address, tmp_path, SEED):
            began = time.monotonic()
            while time.monotonic() - began < (12 if enough(reached) else patience(60)):
                await asyncio.sleep(chance.uniform(0.05, 0.4))
                reached[await reshape(client, "faults", CUTS, WORKERS, chance)] += 1
    assert enough(reached), reached
