"""`make bench-peers`: one count from topic to topic, by several systems by turns, on one broker.

The table goes to build/bench-peers.md, and all figures, versions and settings to build/bench-peers.json.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from bench.build import choose
from bench.kafka_count.feed import feed
from bench.kafka_count.hits import Hits
from bench.kafka_count.topics import make_topic
from bench.machine import Machine
from bench.peers.jobs import Job, Peer
from bench.peers.reporting import Measured, table
from bench.peers.running import PeerRun, measure
from bench.peers.systems import all_peers, chosen
from deploy.local import jars
from deploy.local.apt import InstallError
from deploy.local.ending import stoppable
from deploy.local.kafka import KafkaBroker
from examples.demo.showing import say

__all__ = ["main"]

_SOURCE: Final = "hits"


def main() -> int:
    """Run the command. The exit code is 1 if a system that could be installed gave no results, or wrong ones."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000, help="records that each run counts")
    parser.add_argument("--keys", type=int, default=1_000, help="how many keys they have")
    parser.add_argument("--runs", type=int, default=3, help="runs of each system, of which the best counts")
    parser.add_argument("--processes", type=int, default=2, help="what runs side by side, in each system's own terms")
    parser.add_argument("--commit-seconds", type=int, default=1, help="seconds from one checkpoint to the next")
    parser.add_argument("--limit", type=float, default=300, help="the most seconds of one run")
    parser.add_argument("--only", default="", help="systems whose names begin so, with commas between")
    help_flink = "a setting of Flink, NAME=VALUE, in place of the one here; can be repeated"
    parser.add_argument("--flink", action="append", default=[], metavar="NAME=VALUE", help=help_flink)
    parser.add_argument("--spark", action="append", default=[], metavar="NAME=VALUE", help="the same for Spark")
    help_kill = "kill each system when half of its results are there, start it again, and measure how long that takes"
    parser.add_argument("--kill", action="store_true", help=help_kill)
    parser.add_argument("--pure", action="store_true", help="the Python tree, though a compiled one is there")
    parser.add_argument("--out", type=Path, default=Path("build/bench-peers.json"))
    parser.add_argument("--place", type=Path, help="where data and logs stay; else they go")
    options = parser.parse_args()
    try:
        peers = chosen(options.only, all_peers(_settings(options.flink), _settings(options.spark)))
    except ValueError as error:
        parser.error(str(error))
    try:
        return uvloop.run(stoppable(_measured(options, peers)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted: everything is stopped", file=sys.stderr)
        return 130


def _settings(given: Sequence[str]) -> dict[str, str]:
    """ValueError: one is not NAME=VALUE."""
    if wrong := [one for one in given if "=" not in one]:
        raise ValueError(f"{wrong[0]}: a setting is NAME=VALUE")
    return dict(one.split("=", 1) for one in given)


async def _measured(options: argparse.Namespace, peers: Sequence[Peer]) -> int:
    hits = Hits(options.records, options.keys, per_second=1_000, window_ms=10_000)
    build = choose(options.pure)
    jars.install(jars.KAFKA)
    measured = {peer.name: (peer, _installed(peer)) for peer in peers}
    place = options.place or Path(tempfile.mkdtemp(prefix="millwheel-peers-"))
    machine = Machine()
    machine.look()
    try:
        await _all_runs(options, hits, [one for one in measured.values() if not one[1].missing], place, machine)
    finally:
        # Also of a run that was interrupted.
        found = [one for _, one in measured.values()]
        wrong = any(not run.keeps(one.guarantee) for one in found for run in one.runs)
        if wrong:
            say(f"the logs of runs that failed are in {place}")
        elif options.place is None:
            shutil.rmtree(place, ignore_errors=True)
        figures = {one.name: one.value for one in (build, *machine.figures())}
        _write(options, {"hits": hits, "kafka": jars.KAFKA.version, "machine": figures, "systems": found}, found)
    return int(wrong)


def _installed(peer: Peer) -> Measured:
    """The system without runs, and its versions. Or why it cannot be run here."""
    try:
        peer.install()
        return Measured(peer.name, peer.guarantee, peer.versions())
    except (InstallError, OSError, subprocess.SubprocessError) as error:
        print(f"{peer.name}: {error}", file=sys.stderr)
        return Measured(peer.name, peer.guarantee, missing=str(error))


async def _all_runs(
    options: argparse.Namespace, hits: Hits, peers: Sequence[tuple[Peer, Measured]], place: Path, machine: Machine
) -> None:
    expected = hits.counts()
    with KafkaBroker(place / "kafka", heap_mebibytes=512) as broker:
        make_topic(broker.address, _SOURCE, hits.partitions)
        say(f"writing {hits.records:,} records")
        await asyncio.to_thread(feed, broker.address, _SOURCE, hits, 0.0)
        for turn in range(1, options.runs + 1):
            for peer, measured in peers:
                if any(run.error for run in measured.runs):
                    continue  # it would not end within the limit in a later turn either
                job = _job(options, broker.address, hits, place, f"{peer.name}-{turn}")
                measured.settings = peer.settings(job)
                run = await measure(peer, job, hits, expected, options.limit, kill=options.kill)
                measured.runs.append(run)
                say(f"{peer.name}, {turn} of {options.runs}: {_shown(run)}")
                if options.place is None and run.right:
                    shutil.rmtree(job.place, ignore_errors=True)
            machine.look()


def _job(options: argparse.Namespace, broker: str, hits: Hits, place: Path, name: str) -> Job:
    """A job with a folder and a topic for its results."""
    make_topic(broker, name, hits.partitions)
    (place / name).mkdir(parents=True)
    return Job(
        broker=broker,
        source=_SOURCE,
        target=name,
        window_ms=hits.window_ms,
        out_of_order_ms=hits.out_of_order_ms,
        processes=options.processes,
        commit_seconds=options.commit_seconds,
        place=str((place / name).resolve()),
    )


def _shown(run: PeerRun) -> str:
    again = f", results {run.recovery_s:.1f} s after the kill" if run.recovery_s else ""
    return run.error or f"{run.records_per_s:,.0f} records/s, {run.whole_s:.1f} s in all{again}" + (
        "" if run.right else f"; WRONG: {run.lost} lost, {run.twice} twice, {run.results_twice} results twice"
    )


def _write(options: argparse.Namespace, report: dict[str, Any], found: Sequence[Measured]) -> None:
    """Write and print the table and the report."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    report |= {
        "runs": options.runs,
        "processes": options.processes,
        "commit_seconds": options.commit_seconds,
        "kill": options.kill,
    }
    report |= {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    options.out.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    text = table(found, options.records)
    options.out.with_suffix(".md").write_text(text)
    print(f"\n{text}\nwritten to {options.out} and {options.out.with_suffix('.md')}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
