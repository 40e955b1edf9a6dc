"""Runs cases of hostile input. Each case has its own seed, so it can be repeated alone."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeAlias

import psutil
import pytest

from tests.patience import patience

_CASES: Final = int(os.environ.get("MILLWHEEL_FUZZ_CASES", "0"))
"""The number of cases in all. 0: a slice of each surface."""
_CASE: Final = os.environ.get("MILLWHEEL_FUZZ_CASE", "")
"""The number of the only case to run."""
_SEED: Final = int(os.environ.get("MILLWHEEL_SEED", "1"))
_GROWTH: Final = 48 << 20
"""The most bytes by which the process may grow over the second half of a surface's cases, with caches."""
_ENOUGH: Final = 4_000
"""With fewer cases, growth is not checked, because modules are still being loaded."""
_HANGS: Final = patience(30)

LIMIT: Final = pytest.mark.timeout(180 + _CASES // 20)
"""The time limit of a test that runs cases."""


class Unclear(AssertionError):
    """A case without a clear answer: an internal error, a hang, or damage that was served."""


Case: TypeAlias = Callable[[Random], Awaitable[str]]
"""Runs one case. Returns its outcome in a word. Raises Unclear if there is no clear answer."""


async def run(surface: str, case: Case, *, few: int, percent: int) -> None:
    """Run cases, and check that each is answered clearly and in time, and that the process does not grow.

    ``few``: the number of cases in `make test`. ``percent``: the share of the cases of `make fuzz`.
    """
    numbers = [int(_CASE)] if _CASE else range(max(1, _CASES * percent // 100) if _CASES else few)
    logging.getLogger().addHandler(logging.NullHandler())  # without a handler, the log would be printed
    statuses, unclear, slowest, memory = Counter[str](), list[str](), 0.0, [_memory()]
    for count, number in enumerate(numbers):
        began = time.perf_counter()
        status = await _outcome(case, Random(f"{_SEED}/{surface}/{number}"))
        slowest = max(slowest, time.perf_counter() - began)
        if status.startswith("UNCLEAR"):
            unclear.append(f"case {number} is {status}")
            print(unclear[-1])
        statuses[status] += 1
        if count == len(numbers) // 2:
            memory.append(_memory())
    memory.append(_memory())
    held = " → ".join(f"{size / 1e6:,.0f}" for size in memory)
    shown = ", ".join(f"{status} {count:,}" for status, count in statuses.most_common())
    print(f"\n{surface}: {len(numbers):,} cases, slowest {slowest * 1e3:,.0f} ms, memory {held} MB: {shown}")
    assert unclear == []
    assert len(statuses) > 1 or len(numbers) < 100, "cases that all end alike test nothing"
    assert slowest < _HANGS / 3
    assert len(numbers) < _ENOUGH or memory[2] - memory[1] <= _GROWTH, "memory grew over the second half of the cases"


async def _outcome(case: Case, random: Random) -> str:
    try:
        async with asyncio.timeout(_HANGS):
            return await case(random)
    except Exception as error:
        return f"UNCLEAR: {type(error).__name__}: {error}"


def _memory() -> int:
    """Resident bytes of this process after a garbage collection."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)
