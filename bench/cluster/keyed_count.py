"""The keyed count of ``make bench`` on the cluster, in one of two forms: by hooks, or windows that are fed by tables.

Each computation has four intervals on two workers. The injector is a process of its own. The time runs from its first
send until the last result is received and ACKed.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any, Final

from bench.cluster.costs import Costs
from bench.cluster.system import System
from bench.keyed_count import collect
from bench.load import expected_results
from bench.topologies import Count
from millwheel import windows

__all__ = ["COLUMNS", "HOOKS", "CountForm", "CountRun", "run_count"]

_POINTS: Final = [b"key-02500", b"key-05000", b"key-07500"]
"""Four intervals. Each of two workers owns two of them."""
_PATIENCE: Final = 240.0


@dataclass(frozen=True, slots=True)
class CountForm:
    """A topology in bench/topologies.py, and how it is fed. ``rows``: those of a table. 0: records are sent."""

    name: str
    topology: str
    computation: str
    result_type: Any
    rows: int = 0


HOOKS: Final = CountForm("hooks", "counts", "second-counter", Count)
COLUMNS: Final = CountForm("columns", "windowed", "counter", windows.Result[int], 32_768)


@dataclass(frozen=True, slots=True)
class CountRun:
    """A run: its records, which incarnations had journals, its seconds, and the processors' time that it took."""

    records: int
    incarnations: set[str]
    seconds: float
    costs: str
    processor_seconds: float


async def run_count(running: System, form: CountForm, records: int) -> CountRun:
    """Run the count once, and delete it. RuntimeError: its results are wrong."""
    topology = form.topology
    record = await running.submit(f"bench.topologies:{topology}")
    owners = [running.workers[0], running.workers[0], running.workers[1], running.workers[1]]
    await running.arrange(topology, form.computation, _POINTS, owners)
    await running.log_on(f"{topology}/counts", running.workers[0])
    known = await running.components.catalog()
    log = known.logs[f"{topology}/counts"].incarnation
    try:
        wanted = await asyncio.to_thread(expected_results, records)
        feeder = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.feed", running.address, str(records), topology),
            *("--rows", str(form.rows), "--wait"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert feeder.stdin is not None
        assert feeder.stdout is not None
        try:
            if await asyncio.wait_for(feeder.stdout.readline(), _PATIENCE) != b"ready\n":
                raise RuntimeError("the injector's process has not started")
            costs = Costs(running, {"injector": feeder.pid})
            feeder.stdin.write(b"go\n")
            ended = await asyncio.wait_for(
                collect(running.address, f"{form.topology}/counts", form.result_type, records, wanted), _PATIENCE
            )
            began = float(await asyncio.wait_for(feeder.stdout.readline(), 30))
            spent, seconds = costs.as_text(), costs.seconds()
            await asyncio.wait_for(feeder.communicate(b"end\n"), 30)
        finally:
            if feeder.returncode is None:
                feeder.kill()
                await feeder.wait()
    finally:
        await running.cancel(topology)
    return CountRun(records, {record.incarnations[form.computation], log}, ended - began, spent, seconds)
