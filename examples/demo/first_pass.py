"""The first pass: Spark streams the year into MillWheel, the alerts arrive, and Spark reads them back."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pandas as pd

from examples.demo.files import write_files
from examples.demo.server import ROOT, Server
from examples.demo.showing import Show, say
from examples.demo.watching import Found, Watch
from examples.zeitgeist.records import Anomaly
from examples.zeitgeist.reference import anomalies
from examples.zeitgeist.topology import END
from millwheel import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["FirstPass", "first_pass", "read_back_problems", "stream_flights"]

WEEKS: Final = 8
"""Weeks of a micro-batch. Each has a plan, tasks and a commit of its own, which take longer than a week's rows. It also
has one file, because a task opens a file in the time in which it reads some thousand rows."""
_ALERT: Final = Anomaly.__struct_fields__
LOOK_EVERY: Final = 1.0
"""Seconds between two readings of the counts."""


@dataclass
class FirstPass:
    """The results of the first pass."""

    found: Found = field(default_factory=Found)
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    """Seconds from the start of Spark's session to the end of the streams: all departures are through."""
    spark: dict[str, Any] = field(default_factory=dict)
    read_back: dict[str, Any] = field(default_factory=dict)
    """What a second Spark job has read of the alerts' stream and of the models' states."""
    lag_hours: list[float] = field(default_factory=list)
    """How far the low watermark was behind the newest departure while the pass ran, in event time."""
    problems: list[str] = field(default_factory=list)


async def first_pass(server: Server, flights: pd.DataFrame, place: Path) -> FirstPass:
    """Stream ``flights`` by a Spark job that works in ``place``. Check the results against the whole table."""
    done = await stream_flights(server, flights, place)
    _check(done, server, flights)
    say("Spark reads the alerts and the models back")
    done.read_back = await _run_job(place, "reading_job", server.address)
    done.problems += read_back_problems(done)
    return done


async def stream_flights(
    server: Server,
    flights: pd.DataFrame,
    place: Path,
    watch: Watch | None = None,
    patience: float = 60.0,
    weeks: int = WEEKS,
) -> FirstPass:
    """Stream ``flights`` by a Spark job that works in ``place``. ``watch`` (not yet entered) shows the progress.

    ``patience``: seconds from the end of the job to the end of the streams, at most. ``weeks``: those of a micro-batch.
    """
    done = FirstPass()
    watch = watch or Watch(server.address)
    files = write_files(flights, place / "departures", weeks)
    say(f"{len(flights):,} departures in {files} files, by the weeks in which they became known; starting Spark")
    async with watch:
        async with _spark(place, "spark_job", *_arguments(server.address, place)) as job:
            assert job.stdout is not None
            if await job.stdout.readline():
                say("Spark has started")
            started = time.monotonic()
            with Show("departures", len(flights)) as show:
                looking = asyncio.create_task(_look(server, watch, flights, show, done))
                try:
                    out, _ = await job.communicate()
                finally:
                    looking.cancel()
                    await asyncio.gather(looking, return_exceptions=True)
        done.spark = _output(job, out, place)
        await watch.ended(patience)
        done.seconds = watch.ended_at - started
    done.found = watch.found
    return done


def _arguments(address: str, place: Path) -> list[str]:
    return [address, str(place / "departures"), str(place / "checkpoint")]


async def _run_job(place: Path, job: str, *arguments: str) -> dict[str, Any]:
    """Run a job to its end. Returns its output."""
    async with _spark(place, job, *arguments) as running:
        out, _ = await running.communicate()
    return _output(running, out, place)


def _output(job: asyncio.subprocess.Process, out: bytes, place: Path) -> dict[str, Any]:
    if job.returncode:
        raise RuntimeError(f"the Spark job failed:\n{_log(place).read_text()[-3_000:]}")
    output: dict[str, Any] = json.loads(out.splitlines()[-1])
    return output


@asynccontextmanager
async def _spark(place: Path, job: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a job in a separate process, which ends with this one."""
    with _log(place).open("a") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"examples.demo.{job}", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "SPARK_LOCAL_DIRS": str(place / "spark")},
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _log(place: Path) -> Path:
    return place / "spark.log"


async def _look(server: Server, watch: Watch, flights: pd.DataFrame, show: Show, done: FirstPass) -> None:
    """Show the progress, and sample the watermark's lag, until cancelled."""
    known = flights["known"].tolist()
    while True:
        counts = await asyncio.to_thread(server.counts, "window-counter")
        records = counts.get("records", 0)
        if MIN_TIMESTAMP < watch.watermark < MAX_TIMESTAMP:
            done.lag_hours.append((known[min(records, len(known)) - 1] - watch.watermark) / 3.6e9)
        show.update(records, watch.watermark, len(watch.found.anomalies))
        await asyncio.sleep(LOOK_EVERY)


def _check(done: FirstPass, server: Server, flights: pd.DataFrame) -> None:
    counts = done.counts = server.counts("window-counter")
    expected = {"records": len(flights), "late_records": 0, "duplicates": 0, "dead_letters": 0}
    for name, number in expected.items():
        if counts.get(name) != number:
            done.problems.append(f"{counts.get(name)} {name.replace('_', ' ')} instead of {number}")
    if sorted(done.found.anomalies) != anomalies(flights, END):
        done.problems.append("the alerts are not those that the whole table shows")


def read_back_problems(done: FirstPass) -> list[str]:
    """What Spark has read, and the streams' subscribers have not; as texts."""
    problems = []
    alerts = sorted(msgspec.convert(dict(zip(_ALERT, row, strict=True)), Anomaly) for row in done.read_back["alerts"])
    if alerts != sorted(done.found.anomalies):
        problems.append(f"Spark has read {len(alerts)} alerts, which are not those of the subscription")
    modelled = {(model.airport, model.slot) for model in done.found.traffic_models}
    if done.read_back["learned"] != len(modelled):
        problems.append(f"Spark has read {done.read_back['learned']} models instead of {len(modelled)}")
    return problems
