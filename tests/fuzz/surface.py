"""The base of surfaces. A surface takes hostile input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Self


class Unclear(AssertionError):
    """A case without a clear answer: an internal error, a hang, or damage that was served."""


class Surface(AsyncExitStack, ABC):
    """Use it as ``async with``. The block exits the contexts that were entered."""

    name: str
    place: Path
    """A directory for this surface, for the length of the block."""

    async def __aenter__(self) -> Self:
        self.place = Path(self.enter_context(TemporaryDirectory(prefix="millwheel-fuzz-")))
        try:
            await self.open()
        except BaseException:
            await self.aclose()
            raise
        return self

    @abstractmethod
    async def open(self) -> None:
        """Prepare the surface, which closes at the end of the block."""

    @abstractmethod
    async def case(self, random: Random) -> str:
        """Run one case. Returns its outcome in a word. Raises Unclear if there is no clear answer."""
