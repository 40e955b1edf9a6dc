"""Runs surfaces: each case from a seed of its own, so that any one of them can be run again by itself."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Final

from tests.fuzz.calls import Calls
from tests.fuzz.files import ConfigurationFiles
from tests.fuzz.packages import Packages
from tests.fuzz.stored import Contents, StoredValues
from tests.fuzz.tally import Surface, Tally, Unclear, memory
from tests.fuzz.targets import cluster, dev_server

__all__ = ["SURFACES", "replay", "run"]

_GROWTH: Final = 48 << 20
"""Bytes by which the process may have grown over the second half of a surface's cases, caches included."""
_ENOUGH: Final = 4_000
"""With fewer cases growth says nothing: everything is still being loaded."""
_HANGS: Final = 30.0


SURFACES: Final[dict[str, tuple[int, Callable[[], Surface]]]] = {
    "dev-server": (25, lambda: Calls("dev-server", dev_server)),
    "daemons": (25, lambda: Calls("daemons", cluster)),
    "settings": (5, ConfigurationFiles),
    "packages": (3, Packages),
    "stored": (20, StoredValues),
    "contents": (10, Contents),
}
"""By name: which part of the cases it gets, and how it is made."""


def drawn(seed: int, surface: str, case: int) -> Random:
    """What decides one case, and nothing else."""
    return Random(f"{seed}/{surface}/{case}")


async def replay(name: str, seed: int, case: int) -> str:
    """Run one case alone."""
    async with SURFACES[name][1]() as surface:
        return str(await surface.case(drawn(seed, name, case)))


async def run(names: Sequence[str], cases: int, seed: int, *, show: bool = False) -> list[Tally]:
    """Run a number of cases on each of the surfaces; what became of them."""
    weights = {name: SURFACES[name][0] for name in names}
    tallies = []
    for name in names:
        tally = Tally(name)
        tallies.append(tally)
        await _surface(tally, max(1, cases * weights[name] // sum(weights.values())), seed, show)
    return tallies


async def _surface(tally: Tally, cases: int, seed: int, show: bool) -> None:
    progress = _progress(tally, cases, show)
    try:
        async with asyncio.timeout(None), SURFACES[tally.surface][1]() as surface:
            tally.memory_at_start = memory()
            halfway = tally.memory_at_start
            for case in range(cases):
                await _case(tally, surface, seed, case)
                if case == cases // 2:
                    halfway = memory()
                next(progress)
            tally.memory_at_end = memory()
            if cases >= _ENOUGH and tally.memory_at_end - halfway > _GROWTH:
                tally.unclear.append(
                    f"memory grew from {halfway:,} to {tally.memory_at_end:,} bytes over the second half of the cases"
                )
    except Exception as error:
        tally.unclear.append(f"the surface itself failed: {type(error).__name__}: {error}")
    progress.close()


async def _case(tally: Tally, surface: Surface, seed: int, case: int) -> None:
    began = time.perf_counter()
    try:
        async with asyncio.timeout(_HANGS):
            status = await surface.case(drawn(seed, tally.surface, case))
    except Unclear as error:
        status = "UNCLEAR"
        tally.unclear.append(f"case {case}: {error}")
    except Exception as error:
        status = "UNCLEAR"
        tally.unclear.append(f"case {case}: {type(error).__name__}: {error}")
    tally.note(status, time.perf_counter() - began)


def _progress(tally: Tally, cases: int, show: bool) -> Generator[None, None, None]:
    """A line that is rewritten on a terminal, and one every tenth of the cases elsewhere."""
    step = max(1, cases // (100 if show else 10))
    while True:
        if tally.cases and tally.cases % step == 0:
            end = "\r" if show else "\n"
            sys.stdout.write(f"{tally.surface}: {tally.cases:,} of {cases:,}, {len(tally.unclear):,} unclear{end}")
            sys.stdout.flush()
        yield
