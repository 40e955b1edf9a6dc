"""A server process with the topology of trips, and readers of its results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self, TypeVar

from millwheel.client.control import ControlClient
from millwheel.client.subscription import BlockingSubscription, From
from millwheel.injectors.spark.loop import run
from tests.spark import trips
from tests.spark.trips import Seen
from tests.submitting import submit_copy
from tests.system.server import Server

Answer = TypeVar("Answer")


class TripServer(Server):
    """``millwheel server start-dev`` with one topology of :mod:`tests.spark.trips`; use it as ``with``."""

    def __init__(self, place: Path, topology: str = "trips") -> None:
        super().__init__(place / "db", place / "server.log", intervals=3)
        self._topology = topology

    def __enter__(self) -> Self:
        run(self.start())
        run(submit_copy(self.address, trips.__file__, self._topology, self.db.parent))
        return self

    def __exit__(self, *_: object) -> None:
        run(self.kill())

    def effects(self, stream: str = "seen") -> list[Seen]:
        """Every record of a stream that has ended."""
        options = {"start": From.OLDEST, "address": self.address, "record_type": Seen, "until_end": True}
        with BlockingSubscription(stream, **options) as subscription:
            return [value for batch in subscription for value in batch.values]

    def cursor(self, query: str) -> int:
        """The last completed batch of ``query``."""
        return run(self._ask(lambda client: client.batch_cursor(f"{query}/trips/trips")))

    def watermark(self, process: str = "spark") -> int:
        """The watermark that the injector process has published, in microseconds."""
        listed = run(self._ask(lambda client: client.list_injectors("trips")))
        return next(one.watermark_us for one in listed if one.process == process)

    async def _ask(self, call: Callable[[ControlClient], Awaitable[Answer]]) -> Answer:
        async with ControlClient(self.address) as client:
            return await call(client)
