"""Hostile input: ``make test`` runs a slice of each surface. ``make fuzz`` runs many cases, or one of them again."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil
import pytest

from tests.fuzz import Case
from tests.fuzz.calls import calls, methods
from tests.fuzz.files import configurations
from tests.fuzz.packages import packages
from tests.fuzz.stored import contents, stored_values
from tests.fuzz.targets import cluster, dev_server

GROWTH = 48 << 20
"""The most bytes by which the process may grow over the second half of a surface's cases, with caches."""
ENOUGH = 4_000
"""With fewer cases, growth is not checked, because modules are still being loaded."""
HANGS = 30.0
"""Seconds."""


@asynccontextmanager
async def calls_of_dev_server(place: Path) -> AsyncIterator[Case]:
    async with dev_server(place) as target, calls(target) as case:
        yield case


@asynccontextmanager
async def calls_of_daemons(place: Path) -> AsyncIterator[Case]:
    async with cluster(place) as target, calls(target) as case:
        yield case


SURFACES: dict[str, Callable[[Path], AbstractAsyncContextManager[Case]]] = {
    "dev-server": calls_of_dev_server,
    "daemons": calls_of_daemons,
    "settings": configurations,
    "packages": packages,
    "stored": stored_values,
    "contents": contents,
}
SLICES = {
    "dev-server": 700,
    "daemons": 500,
    "settings": 100,
    "packages": 150,
    "stored": 400,
    "contents": 1_000,
}
PARTS = {"dev-server": 25, "daemons": 25, "settings": 5, "packages": 3, "stored": 20, "contents": 10}
"""The number of cases of ``make fuzz``, over all surfaces."""

CASES = int(os.environ.get("MILLWHEEL_FUZZ_CASES", "0"))
"""The number of cases in all. 0: a slice of each surface."""
CASE = os.environ.get("MILLWHEEL_FUZZ_CASE", "")
"""The number of the only case to run."""
SEED = int(os.environ.get("MILLWHEEL_SEED", "1"))


def cases_of(surface: str) -> Sequence[int]:
    if CASE:
        return [int(CASE)]
    return range(max(1, CASES * PARTS[surface] // sum(PARTS.values())) if CASES else SLICES[surface])


@dataclass(slots=True)
class Tally:
    """The outcomes of one surface's cases. Memory is that of the whole process, in bytes: before, midway and after."""

    statuses: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    memory: list[int] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        held = " → ".join(f"{size / 1e6:,.0f}" for size in self.memory)
        shown = ", ".join(f"{status} {count:,}" for status, count in self.statuses.most_common())
        return f"{self.statuses.total():,} cases, slowest {self.slowest * 1e3:,.0f} ms, memory {held} MB: {shown}"

    def measure(self) -> None:
        """Add the resident bytes of this process after a garbage collection."""
        gc.collect()
        self.memory.append(psutil.Process().memory_info().rss)

    async def run(self, case: Case, number: int, random: Random) -> None:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(HANGS):
                status = await case(random)
        except Exception as error:
            status = "UNCLEAR"
            self.unclear.append(f"case {number}: {type(error).__name__}: {error}")
            print(f"UNCLEAR {self.unclear[-1]}")
        self.statuses[status] += 1
        self.slowest = max(self.slowest, time.perf_counter() - began)


@pytest.mark.timeout(180 + CASES // 20)
@pytest.mark.parametrize("surface", sorted(SURFACES))
async def test_hostile_input_is_answered_clearly_and_does_no_harm(surface: str, tmp_path: Path) -> None:
    cases, tally = cases_of(surface), Tally()
    logging.getLogger().addHandler(logging.NullHandler())  # without a handler, the log would be printed
    async with SURFACES[surface](tmp_path) as case:
        tally.measure()
        for count, number in enumerate(cases):
            # Each case has its own seed, so it can be repeated alone.
            await tally.run(case, number, Random(f"{SEED}/{surface}/{number}"))
            if count == len(cases) // 2:
                tally.measure()
        tally.measure()
    print(f"\n{surface}: {tally}")
    assert tally.unclear == []
    assert tally.statuses.total() == len(cases)
    assert len(tally.statuses) > 1 or len(cases) < 100, "cases that all end alike test nothing"
    assert tally.slowest < 10
    if len(cases) >= ENOUGH:
        assert tally.memory[2] - tally.memory[1] <= GROWTH, "memory grew over the second half of the cases"


def test_every_method_and_every_surface_is_among_the_cases() -> None:
    assert {"/millwheel.v1.DeliveryService/Deliver", "/millwheel.v1.ClusterService/GetClusterHealth"} <= set(methods())
    assert SURFACES.keys() == SLICES.keys() == PARTS.keys()
