"""(a) Keyed count: from the first send, in another process, to the last result committed, delivered and ACKed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.load import expected_results
from bench.report import Figure
from bench.server import server, submit
from bench.topologies import Count
from millwheel import windows
from millwheel.client.subscription import Subscription

__all__ = ["FORMS", "collect", "counted", "measure"]

FORMS = {
    "keyed_count.exactly_once": ("counts", Count),
    "keyed_count.plain": ("counts_plain", Count),
    "keyed_count.window.exactly_once": ("windowed", windows.Result[int]),
    "keyed_count.window.plain": ("windowed_plain", windows.Result[int]),
    "keyed_count.columns.exactly_once": ("windowed", windows.Result[int]),
    "keyed_count.columns.tables": ("windowed", windows.Result[int]),
    "keyed_count.columns.tables.sum": ("windowed_sum", windows.Result[int]),
}
"""By figure: the topology in bench/topologies.py, and the type of its results."""

_OPTIONS = {name: ("--columns",) for name in FORMS if name.startswith("keyed_count.columns.")}
"""By figure: the options of its server, if it has any."""

_ROWS = {name: 8_192 for name in FORMS if name.startswith("keyed_count.columns.tables")}
"""By figure: the rows of the tables of Arrow that its injector sends. The others send records."""

_PATIENCE = 180.0


def measure(name: str, records: int, runs: int) -> Figure:
    """Records per second: the best of ``runs`` runs, each on a fresh server."""
    topology, result_type = FORMS[name]
    wanted = expected_results(records)
    options, rows = _OPTIONS.get(name, ()), _ROWS.get(name, 0)
    rates = [_run(topology, result_type, records, wanted, options, rows) for _ in range(runs)]
    return Figure(name, max(rates), "records/s", tuple(rates))


def _run(topology: str, result_type: Any, records: int, wanted: int, options: Sequence[str], rows: int) -> float:
    with server(*options) as address:
        return counted(address, topology, result_type, records, wanted, rows)


def counted(address: str, topology: str, result_type: Any, records: int, wanted: int, rows: int = 0) -> float:
    """Records per second of one run on a fresh server, which gets the topology here.

    ``wanted``: the number of results. ``rows``: as in ``bench.feed``. RuntimeError: the results are wrong.
    """
    submit(address, topology)
    command = [sys.executable, "-m", "bench.feed", address, str(records), topology, str(rows)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as feeder:
        try:
            ended = asyncio.run(asyncio.wait_for(collect(address, "counts", result_type, records, wanted), _PATIENCE))
            began = float(feeder.communicate(timeout=30)[0])
        finally:
            feeder.kill()  # no effect on a process that has ended
    return records / (ended - began)


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
