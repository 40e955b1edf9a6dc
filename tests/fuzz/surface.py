"""What a surface is: something that takes hostile input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Self


class Unclear(AssertionError):
    """A case whose answer was no clear one: a fault of the server's, a hang, or damage that was served."""


class Surface(AsyncExitStack, ABC):
    """Use it as ``async with``. What is entered into it is left at the end of the block."""

    name: str
    place: Path
    """A directory of its own, for the length of the block."""

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
        """One case; what became of it in a word. Unclear if that is not as it should be."""
