"""How much of the store's speed remains: the keyed count, compared with its entries as bare fenced appends (5; 6.1.2).

The workers keep the entries that they write. After the run, the workers are stopped. Then the same number of processes
writes the same entries to the same Cassandra again, and does nothing else. Different journals are written at once, the
entries of one journal one after the other.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.cluster.costs import Costs
from bench.cluster.measures import percentile
from bench.cluster.recording import Written, read_entries, worker_code
from bench.cluster.system import Components, System, system
from bench.load import expected_results
from bench.report import Figure
from bench.topologies import Count
from millwheel.client.subscription import Subscription
from millwheel.model.incarnation import incarnation_of_journal

__all__ = ["measure"]

_POINTS: Final = [b"key-02500", b"key-05000", b"key-07500"]
"""Four intervals. Each of two workers owns two of them."""
_PATIENCE: Final = 240.0


async def measure(components: Components, say: Callable[[str], None], warm: int, records: int) -> list[Figure]:
    """Return the share, and the two rates from which it is computed."""
    folder = components.place / "entries"
    async with system(components, say, 2, worker_code(folder)) as running:
        say(f"keyed count: {warm:,} records to warm up")
        await _count(running, warm)
        say(f"keyed count: {records:,} records")
        names, took, costs = await _count(running, records)
        say(costs)
    files = sorted(folder.glob("*.entries"))
    written = [one for file in files for one in read_entries(file) if incarnation_of_journal(one.journal) in names]
    say(f"the same {len(written):,} entries, {sum(len(one.entry) for one in written) / 1e6:,.0f} MB, as bare appends")
    bare = await _replay(components, files, names)
    return [*_figures(records, took, bare), *_profile(records, took, written)]


def _figures(records: int, took: float, bare: float) -> list[Figure]:
    return [
        Figure("group_commit.share_of_bare", bare / took, "", (bare / took,)),
        Figure("group_commit.records_per_s", records / took, "records/s", (records / took,)),
        Figure("group_commit.bare_per_s", records / bare, "records/s", (records / bare,)),
    ]


def _profile(records: int, took: float, written: Sequence[Written]) -> list[Figure]:
    """A description of the run's commits. It helps to explain a small share."""
    spans = [(one.ended - one.began) * 1e3 for one in written]
    values = {
        "entries": (len(written), ""),
        "entry_kb": (sum(len(one.entry) for one in written) / len(written) / 1e3, "kB"),
        "append_p50_ms": (percentile(spans, 0.5), "ms"),
        "in_flight": (sum(spans) / 1e3 / took, "appends"),
    }
    return [Figure(f"group_commit.{name}", value, unit, (value,)) for name, (value, unit) in values.items()]


async def _count(running: System, records: int) -> tuple[set[str], float, str]:
    """Run the keyed count. Return the incarnations that had journals, the duration, and the CPU cost."""
    record = await running.submit("bench.topologies:counts")
    owners = [running.workers[0], running.workers[0], running.workers[1], running.workers[1]]
    await running.arrange("counts", "second-counter", _POINTS, owners)
    await running.log_on("counts", running.workers[0])
    known = await running.components.catalog()
    log = known.logs["counts/counts"].incarnation
    try:
        wanted = await asyncio.to_thread(expected_results, records)
        costs = Costs(running)
        feeder = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.feed", running.address, str(records), "counts"),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            ended = await asyncio.wait_for(_collect(running.address, records, wanted), _PATIENCE)
            spent = costs.as_text()
            said, _ = await asyncio.wait_for(feeder.communicate(), 30)
        finally:
            if feeder.returncode is None:
                feeder.kill()
                await feeder.wait()
    finally:
        await running.cancel("counts")
    return {record.incarnations["second-counter"], log}, ended - float(said), spent


async def _collect(address: str, records: int, wanted: int) -> float:
    """Receive and ACK every result. Return when the last one was durable. Raises if results are wrong."""
    results = counted = 0
    async with Subscription(
        "counts", cursor="bench", record_type=Count, address=address, until_end=True, auto_ack=True
    ) as subscription:
        async for batch in subscription:
            results += len(batch)
            counted += sum(value.count for value in batch.values)
        await subscription.flush()
    if (results, counted) != (wanted, records):
        raise RuntimeError(f"{results} results that count {counted} records, not {wanted} that count {records}")
    return time.time()


async def _replay(components: Components, files: Sequence[Path], names: set[str]) -> float:
    """Seconds from the first append to the end of the last one, over all processes."""
    settings = components.store_settings
    command = (sys.executable, "-m", "bench.cluster.replay", settings.contact_points[0], settings.keyspace)
    processes = [
        await asyncio.create_subprocess_exec(
            *(*command, str(file), *sorted(names)), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        for file in files
    ]
    try:
        async with asyncio.timeout(_PATIENCE):
            for process in processes:
                assert process.stdout is not None
                if await process.stdout.readline() != b"ready\n":
                    raise RuntimeError("the entries could not be read, or the store not opened")
            said = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    times = [[float(word) for word in out.split()] for out, _ in said]
    return max(ended for _, ended in times) - min(began for began, _ in times)
