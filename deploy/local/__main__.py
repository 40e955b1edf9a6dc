"""``make cluster``: runs the demonstration's job on a whole cluster and on one process, and compares.

See ``--help``.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import pandas as pd

from deploy.local.chaos import Chaos
from deploy.local.cluster import LocalCluster
from deploy.local.comparing import differences, record_counts
from deploy.local.ending import causes, stoppable
from deploy.local.keeping import keep_in_background, stop_kept
from examples.demo.first_pass import FirstPass, stream_flights
from examples.demo.server import ROOT, DemoServer, submit
from examples.demo.showing import say
from examples.demo.watching import Watch
from examples.zeitgeist.flights import load_flights
from examples.zeitgeist.topology import END
from millwheel import MAX_TIMESTAMP, MIN_TIMESTAMP, MillwheelError

__all__ = ["main"]

PLACE: Final = ROOT / "build" / "cluster"
TARGET: Final = "examples.zeitgeist.topology:zeitgeist"
PATIENCE: Final = 840.0
"""Seconds after which the command counts as stuck."""
_EXPECTED: Final = (RuntimeError, TimeoutError, MillwheelError)
WEEKS: Final = 1
"""Weeks of a micro-batch on the cluster. Accidents come at a progress of the job, so it has many small steps."""
STREAMS_END: Final = 240.0
"""Maximum seconds from the end of the job to the end of the streams. After faults, a cluster needs time to catch up."""


def main() -> int:
    """Run the command. The exit code is 0 if both systems found the same."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description=__doc__)
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1, help="of Cassandra")
    parser.add_argument("--chaos", action="store_true", help="kill something of each kind on the way")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up, and say how to reach it")
    parser.add_argument("--stop", action="store_true", help="stop a cluster that was kept, and do nothing else")
    options = parser.parse_args()
    if options.stop:
        return stop_kept(PLACE)
    stop_kept(PLACE, quiet=True)
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    if options.keep:
        return keep_in_background(PLACE, lambda done: _run(options, done))
    return _run(options, lambda cluster, code: None)


Done = Callable[["LocalCluster | None", int], None]


def _run(options: argparse.Namespace, done: Done) -> int:
    """Run everything. ``done`` gets the exit code as soon as it is known.

    A cluster that is kept then runs until stopped.
    """
    try:
        return asyncio.run(stoppable(_job(options, done)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted: everything is stopped", file=sys.stderr)
        return 130
    except Exception as error:
        for cause in causes(error, _EXPECTED, f"not done after {PATIENCE:.0f} seconds"):
            print(f"FAILED: {cause}", file=sys.stderr)
        print(f"logs: {PLACE}", file=sys.stderr)
        done(None, 1)
        return 1


async def _job(options: argparse.Namespace, done: Done) -> int:
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE) as patience:
        flights = load_flights()
        expected = await _embedded(flights)
        members = 3 if options.chaos or options.nodes == 3 else 1
        async with LocalCluster(PLACE, say, nodes=options.nodes, members=members) as cluster:
            say(f"the cluster is ready at {cluster.address}")
            say(submit(cluster.address, TARGET))
            watch, chaos = Watch(cluster.address), Chaos(cluster, say)
            accidents = asyncio.create_task(chaos.run(lambda: _progress(watch))) if options.chaos else None
            try:
                found = await stream_flights(cluster.daemons, flights, PLACE / "job", watch, STREAMS_END, WEEKS)
            finally:
                if accidents is not None:
                    await _end(accidents)
            code = _report(expected, found, chaos.killed if options.chaos else None, time.monotonic() - began)
            if options.keep:
                patience.reschedule(None)
                done(cluster, code)
                await asyncio.Event().wait()
    return code


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel the task and wait for its end. Raises the task's error, if it had one."""
    if not task.done():
        task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _embedded(flights: pd.DataFrame) -> FirstPass:
    say("for comparison: the job on one process, with an embedded store")
    place = PLACE / "embedded"
    place.mkdir()
    with DemoServer(place / "server.log") as server:
        server.submit(TARGET)
        return await stream_flights(server, flights, place)


def _progress(watch: Watch) -> float:
    """The low watermark's progress through the year, 0 to 1."""
    if watch.watermark in (MIN_TIMESTAMP, MAX_TIMESTAMP):
        return float(watch.watermark == MAX_TIMESTAMP)
    year = 365 * 86_400_000_000
    return min(1.0, max(0.0, 1 - (END - watch.watermark) / year))


def _report(expected: FirstPass, found: FirstPass, killed: list[str] | None, seconds: float) -> int:
    print("\nRecords of each stream      embedded     cluster")
    wanted, got = record_counts(expected.found), record_counts(found.found)
    for name, count in wanted.items():
        print(f"  {name:22} {count:12,} {got[name]:11,}")
    for name in killed or ():
        print(f"killed on the way: {name}")
    wrong = list(differences(expected.found, found.found))
    if killed is not None and len(killed) < 4:
        wrong.append(f"only {len(killed)} of 4 accidents happened before the job was through")
    for difference in wrong:
        print(f"FAILED: {difference}", file=sys.stderr)
    verdict = "the same, record for record" if not wrong else "not the same"
    took = f"{expected.seconds:.0f} s embedded, {found.seconds:.0f} s on the cluster"
    print(f"{len(found.found.anomalies)} alerts: {verdict}. The job took {took}; all of it {seconds:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
