"""A server with the topology of trips, in a process of its own, and what can be read from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from millwheel.client.control import ControlClient
from millwheel.client.subscription import From, Subscription
from millwheel.injectors.spark.loop import run
from tests.spark import trips
from tests.spark.trips import Seen
from tests.submitting import submit_copy
from tests.system.server import MAIN

__all__ = ["TripServer"]


class TripServer:
    """``millwheel server start-dev`` with one topology; use it as ``with``."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.address = ""

    def __enter__(self) -> TripServer:
        arguments = ["server", "start-dev", "--port", "0", "--intervals", "3", "--db", str(self._place / "db")]
        with (self._place / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", MAIN, *arguments], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("millwheel is ready at "), (self._place / "server.log").read_text()
        self.address = line.removeprefix("millwheel is ready at ").partition(";")[0].strip()
        run(submit_copy(self.address, trips.__file__, "trips", self._place))
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.communicate()

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
