"""A real cluster, a load that checks its results, and one fault after the other: `make test-faults`.

``FAULTS=worker,cut`` runs the faults whose names begin so. ``HISTORY=build/faults/history.jsonl`` checks a recorded
history again, and does nothing else. The report for programs is build/faults.json.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import uvloop

from examples.demo.showing import say
from tests.faults import history
from tests.faults.accidents import FAULTS, Fault
from tests.faults.checking import Violation, check
from tests.faults.cluster import Cluster
from tests.faults.history import History, Mended, Struck
from tests.faults.load import Load, wall_micros
from tests.faults.recovery import recoveries, table
from tests.faults.running import BUILD, loaded
from tests.patience import patience

CHOSEN = [one for one in FAULTS if one.name.startswith(tuple(os.environ.get("MILLWHEEL_FAULTS", "").split(",")))]
NODES = int(os.environ.get("MILLWHEEL_FAULTS_NODES", "3"))
"""Of Cassandra, and members of etcd."""
RECORDED = os.environ.get("MILLWHEEL_HISTORY", "")
SEED = int(os.environ.get("MILLWHEEL_SEED", "1"))
PLACE = BUILD / "faults"

ALL = patience(190)
"""Seconds for all faults."""
RECOVERY = 90.0
"""Seconds from a fault's end until the cluster must be back to normal."""
NORMAL = 2.5
"""Seconds that a result may be outstanding in a normal cluster."""
WARM = 15.0
STEADY = 4.0


@pytest.mark.long
@pytest.mark.timeout(ALL + 300)
def test_no_fault_loses_or_repeats_anything_or_lasts() -> None:
    missed: list[str] = []
    if not RECORDED:
        assert CHOSEN, f"there are {', '.join(one.name for one in FAULTS)}"
        uvloop.run(strike(missed))
    failures = report(Path(RECORDED or PLACE / "history.jsonl")) + [f"not recovered: {one}" for one in missed]
    assert not failures, "\n".join(failures)


async def strike(missed: list[str]) -> None:
    """Inject one fault after the other. ``missed``: the faults after which the cluster did not return to normal."""
    async with (
        asyncio.timeout(ALL),
        loaded(PLACE, missed, seed=SEED, nodes=NODES, disk="900m") as (found, load, written),
    ):
        await asyncio.sleep(WARM)
        await normal(load, found)
        for fault in CHOSEN:
            await asyncio.sleep(STEADY)
            await befall(fault, found, written)
            if await normal(load, found):
                written.add(Mended(wall_micros(), fault.name, True))
            else:
                missed.append(f"{fault.name}: after {RECOVERY:.0f} s, {load.lag_as_text()}")
                say(missed[-1])


async def befall(fault: Fault, found: Cluster, written: History) -> None:
    async with fault.befall(found) as whom:
        say(f"{fault.name}: {whom}")
        written.add(Struck(wall_micros(), fault.name, whom, fault.clock))
        await asyncio.sleep(fault.lasts)
    written.add(Mended(wall_micros(), fault.name, False))


async def normal(load: Load, found: Cluster) -> bool:
    """Wait for two seconds in which no result is outstanding for long. Returns False if they do not come in time."""
    since, end = time.monotonic(), time.monotonic() + RECOVERY
    while (now := time.monotonic()) < end:
        if load.lag() > NORMAL:
            since = now
        elif now - since >= 2 and await found.all_there():
            return True
        await asyncio.sleep(0.1)
    return False


def report(recorded: Path) -> list[str]:
    """Check a history, and write the outcome. Returns a line for each failure."""
    violations, found = check(history.read(recorded)), recoveries(history.read(recorded))
    struck = [one for one in history.read(recorded) if isinstance(one, Struck)]
    print("\n", *table(found), sep="\n")
    written = msgspec.json.encode({"faults": found, "violations": violations})
    (BUILD / "faults.json").write_bytes(msgspec.json.format(written, indent=2))
    failures = [f"{one.kind}: {one.text} ({during(one, struck)})" for one in violations]
    return failures + [f"not recovered: {one.fault}" for one in found if not one.recovered]


def during(violation: Violation, struck: Sequence[Struck]) -> str:
    """The time of a violation, relative to the last fault before it."""
    before = [one for one in struck if one.at <= violation.at]
    return f"{(violation.at - before[-1].at) / 1e6:.1f} s after {before[-1].fault}" if before else "before any fault"
