"""What a surface is, what became of its cases, and the table of all of them."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Self

import psutil

__all__ = ["Surface", "Tally", "Unclear", "memory", "table"]


class Unclear(AssertionError):
    """A case whose answer was no clear one: a fault of the server's, a hang, or damage that was served."""


class Surface(ABC):
    """Something that takes hostile input; use it as ``async with``."""

    name: str
    place: Path
    """A directory of its own, for the length of the block."""

    async def __aenter__(self) -> Self:
        self.stack = AsyncExitStack()
        self.place = Path(self.stack.enter_context(TemporaryDirectory(prefix="millwheel-fuzz-")))
        try:
            await self.open()
        except BaseException:
            await self.stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()

    @abstractmethod
    async def open(self) -> None:
        """Make ready. What is entered into ``stack`` is left at the end of the block."""

    @abstractmethod
    async def case(self, random: Random) -> str:
        """One case; what became of it in a word. Unclear if that is not as it should be."""


def memory() -> int:
    """Bytes resident in this process, after everything that is garbage has gone."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


@dataclass(slots=True)
class Tally:
    """One surface. Memory in bytes, of the whole process; seconds."""

    surface: str
    cases: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    seconds: float = 0.0
    memory_at_start: int = 0
    memory_at_end: int = 0
    unclear: list[str] = field(default_factory=list)

    def note(self, status: str, seconds: float) -> None:
        """A case has ended."""
        self.cases += 1
        self.statuses[status] += 1
        self.seconds += seconds
        self.slowest = max(self.slowest, seconds)


def table(tallies: Sequence[Tally]) -> str:
    """For people: a line for each surface, then its statuses."""
    lines = [
        f"{'surface':<12} {'cases':>9} {'a second':>9} {'slowest':>10} {'memory before → after':>24} {'unclear':>8}",
    ]
    for one in tallies:
        rate = one.cases / one.seconds if one.seconds else 0.0
        held = f"{one.memory_at_start / 1e6:,.0f} → {one.memory_at_end / 1e6:,.0f} MB"
        slowest = f"{one.slowest * 1e3:,.0f} ms"
        lines.append(f"{one.surface:<12} {one.cases:>9,} {rate:>9,.0f} {slowest:>10} {held:>24} {len(one.unclear):>8,}")
    lines.append(f"{'all':<12} {sum(one.cases for one in tallies):>9,}")
    for one in tallies:
        shown = ", ".join(f"{name} {count:,}" for name, count in one.statuses.most_common())
        lines.append(f"{one.surface}: {shown}")
    return "\n".join(lines)
