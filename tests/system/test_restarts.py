"""No record is lost or repeated while the server is killed again and again (G1, G2, G6, G9; section 6)."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults import program
from tests.faults.load import Load, verified
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system.server import RunningCommand, Server

RUNS = int(os.environ.get("MILLWHEEL_RESTARTS", "12"))
"""The number of kills. `make test-restarts` makes many."""

SEED = int(os.environ.get("MILLWHEEL_SEED", "7"))


class FeederProcess(RunningCommand):
    """The injector process, which is killed, too."""

    def __init__(self, address: str, seed: int, place: Path) -> None:
        command = [sys.executable, "-m", "tests.faults.load", address, str(seed), str(place)]
        super().__init__(place / "feeder.log", command)

    async def kill_again(self) -> None:
        """Kill the process, and start it again. AssertionError if it has ended by itself."""
        assert self.process.returncode is None, self.as_text()
        await self.kill()
        await self.start()

    def as_text(self) -> str:
        """Whether the process runs, and the end of its output."""
        code = self.process.returncode
        return f"the injector {'lives' if code is None else f'has ended with {code}'}:\n{self.tail(3_000)}"


@asynccontextmanager
async def loaded_server(place: Path, seed: int, intervals: int) -> AsyncIterator[tuple[Server, FeederProcess, Load]]:
    """A server that runs the topology of the load, whose source is a process that ends with the block."""
    async with Server(place / "db", place / "server.log", intervals=intervals) as server:
        await submit_copy(server.address, program.__file__, "faults", place)
        async with FeederProcess(server.address, seed, place) as feeder:
            try:
                async with verified(server.address, place, seed, sources=()) as load:
                    await until(lambda: load.received["windows"], patience(30), every=0.05)
                    yield server, feeder, load
                    (place / "stop").touch()
            except BaseException:
                print(f"{feeder.as_text()}\n{server.tail()}")
                raise


async def kill_again_and_again(server: Server, feeder: FeederProcess, chance: random.Random, runs: int) -> int:
    """Kill the server ``runs`` times, ready or not, and the injector now and then; how often that was."""
    injectors = 0
    for _ in range(runs):
        await asyncio.sleep(chance.uniform(0.05, 1.1))
        await server.kill()
        if chance.random() < 0.25:
            await feeder.kill_again()
            injectors += 1
        await server.spawn()
        if chance.random() < 0.8:
            await server.ready()
    return injectors


@pytest.mark.guarantee("G1", section="6.1")
@pytest.mark.timeout(120 + 8 * RUNS)
async def test_every_result_comes_exactly_once_through_any_kills(tmp_path: Path) -> None:
    began = time.monotonic()
    async with loaded_server(tmp_path, SEED, intervals=2) as (server, feeder, load):
        killed = await kill_again_and_again(server, feeder, random.Random(SEED), RUNS)
    took = time.monotonic() - began
    kills = f"{RUNS} kills of the server, {killed} of the injector"
    print(f"\n{kills}, seed {SEED}: {dict(load.received)}, each exactly once; {took:.0f} s")
