"""Runs surfaces. Each case has its own seed, so it can be repeated alone."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import psutil

from tests.fuzz.calls import Calls
from tests.fuzz.files import ConfigurationFiles
from tests.fuzz.packages import Packages
from tests.fuzz.stored import Contents, StoredValues
from tests.fuzz.surface import Surface
from tests.fuzz.targets import cluster, dev_server

_GROWTH: Final = 48 << 20
"""The most bytes by which the process may grow over the second half of a surface's cases, with caches."""
_ENOUGH: Final = 4_000
"""With fewer cases, growth is not checked, because modules are still being loaded."""
_HANGS: Final = 30.0

SURFACES: Final[dict[str, Callable[[], Surface]]] = {
    "dev-server": lambda: Calls("dev-server", dev_server),
    "daemons": lambda: Calls("daemons", cluster),
    "settings": ConfigurationFiles,
    "packages": Packages,
    "stored": StoredValues,
    "contents": Contents,
}


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


async def run(name: str, cases: Sequence[int], seed: int) -> Tally:
    """Run cases on one of the surfaces."""
    tally = Tally()
    logging.getLogger().addHandler(logging.NullHandler())  # without a handler, the log would be printed
    async with SURFACES[name]() as surface:
        tally.memory.append(_memory())
        for number, case in enumerate(cases):
            await _case(tally, surface, Random(f"{seed}/{name}/{case}"), case)
            if number == len(cases) // 2:
                tally.memory.append(_memory())
        tally.memory.append(_memory())
    if len(cases) >= _ENOUGH and tally.memory[2] - tally.memory[1] > _GROWTH:
        tally.unclear.append(f"memory grew over the second half of the cases: {tally}")
    return tally


async def _case(tally: Tally, surface: Surface, random: Random, case: int) -> None:
    began = time.perf_counter()
    try:
        async with asyncio.timeout(_HANGS):
            status = await surface.case(random)
    except Exception as error:
        status = "UNCLEAR"
        tally.unclear.append(f"case {case}: {type(error).__name__}: {error}")
        print(f"UNCLEAR {tally.unclear[-1]}")
    tally.statuses[status] += 1
    tally.slowest = max(tally.slowest, time.perf_counter() - began)


def _memory() -> int:
    """Resident bytes of this process after a garbage collection."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)
