"""State that grows: `python -m bench.growing`.

On a development server, or with ``--cassandra`` on a cluster with one worker: what one more element costs in
collections of 10 to 100,000 elements (``--elements 1000000``), beside a number that is counted. Then one key of 200 MB
(``--megabytes 1000``): the worker's memory, and how long the key is away when the worker is killed. ``--interval``
measures one interval without a server, and compares with a list that is one value.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench.build import choose
from bench.cluster.system import System, components, system
from bench.growing import interval
from bench.growing.program import KINDS
from bench.growing.served import Cost, Large, Served, large, single_elements
from bench.server import ServerProcess, submit

__all__ = ["main", "served_by"]


class OnDevServer:
    """A development server."""

    def __init__(self, process: ServerProcess) -> None:
        self._process = process

    @property
    def address(self) -> str:
        """See Served."""
        return self._process.address

    @property
    def worker(self) -> int:
        """See Served."""
        return self._process.pid

    async def restart(self) -> None:
        """See Served."""
        await asyncio.to_thread(self._process.kill)
        await asyncio.to_thread(self._process.start)


class OnCluster:
    """The only worker of a cluster. What restarts it is the cluster itself, as a service manager does."""

    def __init__(self, running: System) -> None:
        self._running = running

    @property
    def address(self) -> str:
        """See Served."""
        return self._running.address

    @property
    def worker(self) -> int:
        """See Served."""
        return self._running.daemons.services.processes["worker 1"].pid

    async def restart(self) -> None:
        """See Served."""
        before = self.worker
        self._running.kill(self._running.workers[0])
        while self.worker == before:  # noqa: ASYNC110 the cluster restarts it
            await asyncio.sleep(0.05)


@asynccontextmanager
async def served_by(*, on_cassandra: bool) -> AsyncIterator[Served]:
    """A server with the program, or a cluster. It ends with the block."""
    place = Path(tempfile.mkdtemp(prefix="millwheel-bench-"))
    try:
        if on_cassandra:
            async with components(place, "periodic", say) as found, system(found, say, 1) as running:
                await running.submit("bench.growing.program:growing")
                for kind in KINDS:
                    await running.settled("growing", kind)
                yield OnCluster(running)
        else:
            process = ServerProcess(place)
            try:
                submit(process.address, "growing", "bench.growing.program")
                yield OnDevServer(process)
            finally:
                process.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)


async def _measure(options: argparse.Namespace) -> None:
    sizes = [10**power for power in range(1, len(str(options.elements)))] if options.elements else []
    async with served_by(on_cassandra=options.cassandra) as served:
        table = Table(box=None, header_style="bold")
        for title in ("STATE", "ELEMENTS", "MS TO THE ACK", "CPU MS", "WORKER MB"):
            table.add_column(title, justify="right")
        for kind in KINDS:
            async for cost in single_elements(served, kind, sizes, options.measured):
                table.add_row(*_row(cost))
                say(" ".join(_row(cost)))
        Console().print(table)
        if options.megabytes:
            _print(await large(served, options.megabytes, say), options.megabytes)


def _row(cost: Cost) -> list[str]:
    numbers = f"{cost.milliseconds:.2f}", f"{cost.cpu:.2f}", f"{cost.memory:,.0f}"
    return [cost.kind, f"{cost.elements:,}", *numbers]


def _print(found: Large, megabytes: int) -> None:
    each = found.seconds / found.elements * 1e6
    print(f"one key of {found.elements:,} elements, {megabytes} MB, in {found.seconds:.0f} s: {each:.0f} µs each")
    print(f"the worker had {found.before:.0f} MB before, and {found.most:.0f} MB at most")
    print(
        f"killed: it ran again after {found.started:.1f} s, and ACKed a record of the key after {found.serving:.1f} s"
    )
    print(f"the worker has {found.after:.0f} MB then")
    for when, reads, cost in zip(("at once", "later"), found.reads, found.appends, strict=True):
        print(f"{when}: reads of single elements {', '.join(f'{one:.1f}' for one in reads)} ms")
        print(f"{when}: one more element: {' '.join(_row(cost))}")


def say(text: str) -> None:
    """Print what happens, with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.growing", description=__doc__)
    parser.add_argument("--elements", type=int, default=100_000, help="the largest collection; 0: none")
    parser.add_argument("--measured", type=int, default=200, help="single elements that are added at each size")
    parser.add_argument("--megabytes", type=int, default=200, help="the size of the large key; 0: none")
    parser.add_argument("--cassandra", action="store_true", help="a cluster with Cassandra, not a development server")
    parser.add_argument("--interval", action="store_true", help="one interval without a server")
    parser.add_argument("--pure", action="store_true", help="the Python tree, though a compiled one is there")
    options = parser.parse_args()
    if options.interval:
        interval.measure(options.megabytes)
        return
    choose(options.pure)
    uvloop.run(_measure(options))


if __name__ == "__main__":
    main()
