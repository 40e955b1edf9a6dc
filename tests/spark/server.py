"""A server with the topology of trips, in a process of its own, and what can be read from it."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from millwheel.client.control import ControlClient
from millwheel.client.subscription import From, Subscription
from millwheel.injectors.spark.loop import run
from tests.spark import trips
from tests.spark.trips import Seen
from tests.submitting import submit_copy
from tests.system.server import Server

__all__ = ["TripServer"]


class TripServer(Server):
    """``millwheel server start-dev`` with one topology; use it as ``with``."""

    def __init__(self, place: Path) -> None:
        super().__init__(place / "db", place / "server.log", intervals=3)

    def __enter__(self) -> Self:
        run(self.start())
        run(submit_copy(self.address, trips.__file__, "trips", self.db.parent))
        return self

    def __exit__(self, *_: object) -> None:
        run(self.kill())

    def effects(self, stream: str = "seen") -> list[Seen]:
        """Every record of a stream that has ended."""

        async def read() -> list[Seen]:
            found: list[Seen] = []
            options = {"start": From.OLDEST, "address": self.address, "record_type": Seen, "until_end": True}
            async with Subscription(stream, **options) as subscription:  # type: ignore[arg-type]
                async for batch in subscription:
                    found += batch.values
            return found

        return run(read())

    def cursor(self, query: str) -> int:
        """The last batch of ``query`` that is in."""

        async def ask() -> int:
            async with ControlClient(self.address) as client:
                return await client.batch_cursor(f"{query}/trips/trips")

        return run(ask())

    def watermark(self, process: str = "spark") -> int:
        """What the injector process has published, in microseconds."""

        async def ask() -> int:
            async with ControlClient(self.address) as client:
                return next(one.watermark_us for one in await client.list_injectors("trips") if one.process == process)

        return run(ask())
