"""(a) Keyed count: from the first send, in another process, to the last result committed, delivered and ACKed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from bench import loop
from bench.load import USUAL, KeyDraw, expected_results
from bench.report import Figure
from bench.server import ServerProcess, submit
from bench.topologies import LONG, SECOND, Count
from millwheel import windows
from millwheel.client.subscription import Subscription

__all__ = ["FORMS", "Form", "collect", "measure", "run"]


@dataclass(frozen=True, slots=True)
class Form:
    """What is counted, and how.

    Attributes:
        topology: Its name in bench/topologies.py.
        result_type: Of its results.
        columns: Whether the server keeps windows by columns.
        rows: The rows of the tables of Arrow that the injector sends. 0: it sends records.
        keys: The keys of the records.
        window: The length of a window, in microseconds.
    """

    topology: str
    result_type: Any = windows.Result[int]
    columns: bool = False
    rows: int = 0
    keys: KeyDraw = USUAL
    window: int = int(SECOND)


_ROWS: Final = 8_192
FORMS = {
    "keyed_count.exactly_once": Form("counts", Count),
    "keyed_count.plain": Form("counts_plain", Count),
    "keyed_count.batch.exactly_once": Form("counts_batch", Count),
    "keyed_count.batch.tables": Form("counts_batch", Count, rows=_ROWS),
    "keyed_count.window.exactly_once": Form("windowed"),
    "keyed_count.window.plain": Form("windowed_plain"),
    "keyed_count.columns.exactly_once": Form("windowed", columns=True),
    "keyed_count.columns.tables": Form("windowed", columns=True, rows=_ROWS),
    "keyed_count.columns.tables.sum": Form("windowed_sum", columns=True, rows=_ROWS),
    "keyed_count.columns.tables.million": Form(
        "windowed_long", columns=True, rows=_ROWS, keys=KeyDraw(1_000_000), window=int(LONG)
    ),
    "keyed_count.columns.tables.zipf": Form("windowed", columns=True, rows=_ROWS, keys=KeyDraw(zipf=1.2)),
    "keyed_count.columns.tables.small": Form("windowed", columns=True, rows=100),
}
"""By figure."""

_PATIENCE = 180.0


def measure(name: str, records: int, runs: int) -> list[Figure]:
    """Records per second, and the CPU time of the server for each.

    Both are the best of ``runs`` runs, each on a fresh server.
    """
    form = FORMS[name]
    wanted = expected_results(records, form.keys, form.window)
    found = [run(form, records, wanted) for _ in range(runs)]
    rates = tuple(records / seconds for seconds, _ in found)
    spent = tuple(cpu / records * 1e6 for _, cpu in found)
    return [Figure(name, max(rates), "records/s", rates), Figure(f"{name}.cpu_us", min(spent), "µs", spent)]


def run(form: Form, records: int, wanted: int) -> tuple[float, float]:
    """Run it once, on a fresh server. Returns the seconds, and the server's CPU seconds.

    ``wanted``: the number of results. RuntimeError: the results are wrong.
    """
    with tempfile.TemporaryDirectory(prefix="millwheel-bench-") as folder:
        server = ServerProcess(Path(folder), *(() if form.columns else ("--no-columns",)))
        try:
            submit(server.address, form.topology)
            return _counted(server, form, records, wanted)
        finally:
            server.stop()


def _counted(server: ServerProcess, form: Form, records: int, wanted: int) -> tuple[float, float]:
    options = ("--rows", form.rows, "--keys", form.keys.count, "--zipf", form.keys.zipf)
    command = [sys.executable, "-m", "bench.feed", server.address, str(records), form.topology, *map(str, options)]
    process = psutil.Process(server.pid)
    before = process.cpu_times()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as feeder:
        try:
            collecting = collect(server.address, "counts", form.result_type, records, wanted)
            ended = loop.run(asyncio.wait_for(collecting, _PATIENCE))
            after = process.cpu_times()
            began = float(feeder.communicate(timeout=30)[0])
        finally:
            feeder.kill()  # no effect on a process that has ended
    return ended - began, after.user + after.system - before.user - before.system


async def collect(address: str, stream: str, result_type: Any, records: int, wanted: int) -> float:
    """Receive and ACK every result of a count. Return when the last one was durable. RuntimeError: they are wrong."""
    results = counted = 0
    field = "count" if result_type is Count else "value"
    async with Subscription(
        stream, cursor="bench", record_type=result_type, address=address, until_end=True, auto_ack=True
    ) as subscription:
        async for batch in subscription:
            results += len(batch)
            counted += sum(getattr(value, field) for value in batch.values)
        await subscription.flush()
    if (results, counted) != (wanted, records):
        raise RuntimeError(f"{results} results that count {counted} records, not {wanted} that count {records}")
    return time.time()
