"""`make soak`: a steady load for long, with moves, splits and merges going on. Nothing is lost, and nothing grows.

Samples go to build/soak.csv, a picture of them to build/soak.html; what was sent and received is checked in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections import Counter
from typing import Final

from examples.demo.showing import say
from tests.faults import history
from tests.faults.checking import check
from tests.faults.cluster import Cluster, cluster
from tests.faults.flatness import Verdict, judge
from tests.faults.history import History
from tests.faults.load import Load, ended
from tests.faults.picture import page
from tests.faults.reshaping import reshape
from tests.faults.running import BUILD, run_to_end
from tests.faults.sampling import Samples

__all__ = ["main"]

_SAMPLE: Final = 5.0
_CHANGE: Final = 4.0
"""Seconds from one change of intervals to the next, about."""
_SHOWN: Final = 20


def main() -> int:
    """The command; 0 if everything stayed flat, and nothing was lost, repeated or early."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--nodes", type=int, default=1, help="of Cassandra")
    parser.add_argument("--members", type=int, default=1, help="of etcd")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    return run_to_end(_run(options), BUILD / "soak")


async def _run(options: argparse.Namespace) -> int:
    place = BUILD / "soak"
    shutil.rmtree(place, ignore_errors=True)
    written, missed = History(place / "history.jsonl"), list[str]()
    try:
        async with cluster(
            place,
            say,
            nodes=options.nodes,
            members=options.members,
            settings="balance = false\n",
            history=60,
            commitlog=64,
        ) as found:
            samples, load = await _soak(found, written, options, missed)
    finally:
        written.close()
    lines, grows = _verdicts(samples)
    title = f"{options.minutes:g} minutes, {load.sent.total():,} records"
    (BUILD / "soak.html").write_text(page(title, samples.times, samples.figures, lines))
    for line in lines:
        print(line)
    violations = check(history.read(place / "history.jsonl"))
    for violation in violations[:_SHOWN]:
        print(f"VIOLATION: {violation.kind}: {violation.text}", file=sys.stderr)
    for one in missed:
        print(f"FAILED: {one}", file=sys.stderr)
    print(f"{title}: {len(violations)} violations, {grows} of {len(samples.figures)} figures grow")
    say(f"written to {BUILD / 'soak.csv'} and soak.html")
    return 1 if violations or grows or missed else 0


async def _soak(
    found: Cluster, written: History, options: argparse.Namespace, missed: list[str]
) -> tuple[Samples, Load]:
    await found.submit()
    samples, load = Samples(found, BUILD / "soak.csv"), Load(found.address, written, options.seed, say)
    reached: Counter[str] = Counter()
    workers = [f"worker-{number}.0" for number in range(1, len(found.daemons.workers) + 1)]
    async with asyncio.TaskGroup() as group:
        loading = group.create_task(load.run())
        await found.settled()
        others = [
            group.create_task(samples.run(_SAMPLE)),
            group.create_task(reshape(found.client, workers, options.seed, _CHANGE, reached)),
        ]
        for minute in range(1, int(options.minutes) + 1):
            await asyncio.sleep(60)
            say(f"{minute} min: {load.sent.total():,} records sent, {load.lag.as_text()}; {dict(reached)}")
        await asyncio.sleep((options.minutes % 1) * 60)
        for task in others:
            task.cancel()
        await ended(load, loading, missed)
    return samples, load


def _verdicts(samples: Samples) -> tuple[list[str], int]:
    """A line for each figure, and how many grow."""
    found: list[Verdict] = [judge(name, samples.times, values) for name, values in samples.figures.items()]
    head = f"{'':6} {'':28} {'early':>10} {'late':>10} {'most':>10} {'an hour':>10}"
    return [head, *map(str, found)], sum(not one.flat for one in found)


if __name__ == "__main__":
    sys.exit(main())
