"""The second pass: late records and duplicates in known numbers, and the latency of single records and watermarks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pandas as pd

from examples.demo.server import DemoServer
from examples.demo.watching import Watch
from examples.zeitgeist.records import Anomaly, Departure
from examples.zeitgeist.reference import anomalies
from examples.zeitgeist.topology import WINTER_END
from millwheel.client.injector import Injector

__all__ = ["Outcome", "second_pass"]

CHUNK: Final = 2_000
PROBES: Final = 300
"""The number of records that are sent one at a time."""
WATERMARK_PROBES: Final = 50


@dataclass
class Outcome:
    """What was sent, what was counted, and which checks failed."""

    on_time: int = 0
    late: int = 0
    duplicates: int = 0
    counted: dict[str, dict[str, int]] = field(default_factory=dict)
    record_ms: list[float] = field(default_factory=list)
    """Milliseconds from the sending of a record to its ACK. By then the record has taken effect and is on disk."""
    watermark_ms: list[float] = field(default_factory=list)
    """Milliseconds from the publishing of a watermark to its arrival behind the last computation."""
    problems: list[str] = field(default_factory=list)


async def second_pass(server: DemoServer, flights: pd.DataFrame) -> Outcome:
    """Send the flights up to the blizzard's end. One in 97 is too late, and one in 41 is sent twice."""
    flights = flights[flights["scheduled"] < WINTER_END]
    late = flights[flights["flight"] % 97 == 0]
    on_time = flights.drop(late.index)
    again = on_time[on_time["flight"] % 41 == 0]
    outcome = Outcome(len(on_time), len(late), len(again))
    async with (
        Watch(server.address) as watch,
        Injector("departures", address=server.address, process="second-pass") as injector,
    ):
        probes = on_time.tail(PROBES)
        await _send_on_time(injector, on_time.head(-PROBES), set(again["id"]))
        await injector.flush()
        await watch.until(lambda: watch.watermark >= injector.watermark)
        await _probe_records(injector, probes, outcome)
        await _send(injector, probes[probes["id"].isin(set(again["id"]))])
        await _probe_watermarks(injector, watch, outcome)
        await _send(injector, late)
        await injector.flush()
        await injector.finish()
        await watch.ended()
    check(outcome, server, watch.found.anomalies, on_time)
    return outcome


async def _send_on_time(injector: Injector, flights: pd.DataFrame, twice: set[str]) -> None:
    """Send the flights in the order in which they left.

    Some are sent twice. The copy comes before the low watermark passes the flight, because ids may be dropped after
    that.
    """
    to_come = flights["scheduled"][::-1].cummin()[::-1].tolist()
    for start in range(0, len(flights), CHUNK):
        part = flights.iloc[start : start + CHUNK]
        await _send(injector, part)
        await _send(injector, part[part["id"].isin(twice)])
        if start + CHUNK < len(flights):
            # The flights of the probes are sent later, and their timestamps are above this watermark.
            await injector.advance(min(to_come[start + CHUNK], int(part["known"].iloc[-1]) - 1_301 * 60_000_000))


async def _probe_records(injector: Injector, flights: pd.DataFrame, outcome: Outcome) -> None:
    for index in range(len(flights)):
        began = time.perf_counter()
        await _send(injector, flights.iloc[index : index + 1])
        await injector.flush()
        outcome.record_ms.append((time.perf_counter() - began) * 1e3)


async def _probe_watermarks(injector: Injector, watch: Watch, outcome: Outcome) -> None:
    """Raise the watermark in steps up to the end. After each step, wait until it is behind all computations."""
    await injector.flush()
    reached = max(int(injector.watermark), WINTER_END - WATERMARK_PROBES * 60_000_000 * 10)
    for step in range(WATERMARK_PROBES + 1):
        target = reached + (WINTER_END - reached) * step // WATERMARK_PROBES
        began = time.perf_counter()
        await injector.advance(target)
        await asyncio.wait_for(watch.until(lambda target=target: watch.watermark >= target), 60)  # type: ignore[misc]
        if step:
            # The first step is not measured, because it covers the long way up to the last day.
            outcome.watermark_ms.append((time.perf_counter() - began) * 1e3)


async def _send(injector: Injector, flights: pd.DataFrame) -> None:
    if len(flights):
        await injector.send_many(_values(flights), flights["scheduled"].tolist(), ids=flights["id"].tolist())


def _values(flights: pd.DataFrame) -> Sequence[Departure]:
    columns: list[list[Any]] = [flights[name].tolist() for name in Departure.__struct_fields__]
    return [Departure(*fields) for fields in zip(*columns, strict=True)]


def check(outcome: Outcome, server: DemoServer, found: list[Anomaly], on_time: pd.DataFrame) -> None:
    """Check the counts at both consumers of the flights, and that late records changed nothing."""
    expected = {"late_records": outcome.late, "duplicates": outcome.duplicates, "dead_letters": 0}
    for computation in ("window-counter", "spike-detector"):
        counted = outcome.counted[computation] = server.counts(computation)
        for name, number in expected.items():
            if counted.get(name) != number:
                what = name.replace("_", " ")
                outcome.problems.append(f"{computation} counted {counted.get(name)} {what} instead of {number}")
    if sorted(found) != anomalies(on_time, WINTER_END):
        outcome.problems.append("the alerts are not those of the flights that came in time")
