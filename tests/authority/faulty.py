"""A memory store on a bad network: calls whose outcome the caller does not learn, and calls that take their time."""

from __future__ import annotations

import asyncio

from millwheel.store.contract import Append, PartId, StoreUnavailableError
from millwheel.store.memory import MemoryStore

__all__ = ["FaultyStore"]


class FaultyStore(MemoryStore):
    """``lost_requests`` appends do not arrive, the answers of ``lost_answers`` are lost; ``gate`` holds appends."""

    def __init__(self) -> None:
        super().__init__()
        self.lost_requests = 0
        self.lost_answers = 0
        self.lost_parts = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.appends: list[Append] = []
        self.in_flight = 0
        self.most_in_flight = 0

    async def append(self, journal: str, append: Append) -> None:
        self.appends.append(append)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.gate.wait()
            if self.lost_requests:
                self.lost_requests -= 1
                raise StoreUnavailableError("the request was lost")
            await super().append(journal, append)
            if self.lost_answers:
                self.lost_answers -= 1
                raise StoreUnavailableError("the answer was lost")
        finally:
            self.in_flight -= 1

    async def write_part(self, journal: str, part: PartId, blob: bytes) -> None:
        if self.lost_parts:
            self.lost_parts -= 1
            raise StoreUnavailableError("the request was lost")
        await super().write_part(journal, part, blob)
