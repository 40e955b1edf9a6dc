"""Nothing is lost or doubled, however often the server is killed (G1, G2, G6, G9; section 6).

``python -m tests.system.test_restarts ADDRESS SEED PLACE RATE`` is the injector process. It injects the records of a
load, until the file ``PLACE/stop`` appears; then it says by ``PLACE/count`` how many there were, and goes on until it
is killed. A process that was killed and runs again begins with what ``PLACE/acked`` says was ACKed, and ends no sooner
than ``PLACE/taken``, which the one before may have sent.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pytest

from millwheel.client.injector import Injector, InjectorSettings
from millwheel.client.subscription import Subscription
from tests.patience import patience
from tests.submitting import submit_copy
from tests.system import counting
from tests.system.counting import Load, Total, WindowCount
from tests.system.server import RunningCommand, Server, run_cli

BATCH = 20


async def feed(address: str, load: Load, place: Path, rate: float) -> None:
    """Inject until asked to stop; then finish."""
    base, taken = kept(place, "acked"), kept(place, "taken")
    rows = islice(load.records(), base, None)
    position = base
    settings = InjectorSettings(patience=patience(60))
    async with Injector(
        "events", address=address, process="feeder", topology=counting.counting, settings=settings
    ) as injector:
        while position < taken or not (place / "stop").exists():
            await asyncio.sleep(BATCH / rate)
            taken = max(taken, position + BATCH)
            keep(place, "taken", taken)
            batch = list(islice(rows, BATCH))
            await injector.send_many(
                [event for event, _ in batch],
                [timestamp for _, timestamp in batch],
                positions=range(position, position + BATCH),
            )
            position += BATCH
            await injector.advance(position * load.spacing)
            keep(place, "acked", injector.acknowledged() or base)
        keep(place, "count", position)
        await injector.finish()
    await asyncio.Event().wait()


def kept(place: Path, name: str) -> int:
    """A number that a process before this one kept; 0 if none did."""
    path = place / name
    return int(path.read_text()) if path.exists() else 0


def keep(place: Path, name: str, number: int) -> None:
    """Keep a number for the next process."""
    fresh = place / f"{name}.new"
    fresh.write_text(str(number))
    fresh.replace(place / name)


RUNS = int(os.environ.get("MILLWHEEL_RESTARTS", "12"))
"""Kills; `make test-restarts` asks for many."""

SEED = int(os.environ.get("MILLWHEEL_SEED", "7"))


@dataclass
class Read:
    """What a subscriber with a durable cursor has seen, by offset."""

    records: dict[int, object] = field(default_factory=dict)
    again: int = 0

    def take(self, offset: int, value: object) -> None:
        if offset in self.records:
            assert self.records[offset] == value, f"offset {offset} changed"
            self.again += 1
        self.records[offset] = value


async def follow(stream: str, kind: type, address: str, read: Read, chance: random.Random) -> None:
    """Read a stream to its end, by a subscriber that itself comes and goes."""
    while True:
        rounds = chance.randrange(5, 200)
        async with Subscription(
            stream,
            cursor="verifier",
            record_type=kind,
            address=address,
            until_end=True,
            auto_ack=True,
            patience=patience(60),
        ) as subscription:
            async for batch in subscription:
                for offset, _, value in batch:
                    read.take(offset, value)
                rounds -= 1
                if rounds == 0:
                    break
            else:
                return


class FeederProcess(RunningCommand):
    """The injector process, which is killed, too."""

    def __init__(self, address: str, seed: int, place: Path, rate: int) -> None:
        command = [sys.executable, "-m", "tests.system.test_restarts", address, str(seed), str(place), str(rate)]
        super().__init__(place / "feeder.log", command)

    async def kill_again(self) -> None:
        """Kill it, and start its next life. AssertionError if it has ended by itself."""
        assert self.process.returncode is None, self.as_text()
        await self.kill()
        await self.start()

    def as_text(self) -> str:
        """Whether the process runs, and the end of its output."""
        code = self.process.returncode
        return f"the injector {'lives' if code is None else f'has ended with {code}'}:\n{self.tail(3_000)}"


@asynccontextmanager
async def counting_server(place: Path, intervals: int) -> AsyncIterator[Server]:
    """A server that runs the topology "counting"."""
    async with Server(place / "db", place / "server.log", intervals=intervals) as server:
        await submit_copy(server.address, counting.__file__, "counting", place)
        yield server


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
    chance = random.Random(SEED)
    began = time.monotonic()
    load = Load(SEED)
    windows, totals = Read(), Read()
    async with counting_server(tmp_path, intervals=2) as server:
        feeder = FeederProcess(server.address, SEED, tmp_path, 1_500)
        readers = [
            asyncio.create_task(follow("windows", WindowCount, server.address, windows, random.Random(SEED + 1))),
            asyncio.create_task(follow("totals", Total, server.address, totals, random.Random(SEED + 2))),
        ]
        try:
            await feeder.start()
            killed = await kill_again_and_again(server, feeder, chance, RUNS)
            (tmp_path / "stop").touch()
            done, _ = await asyncio.wait(readers, timeout=patience(40), return_when=asyncio.FIRST_EXCEPTION)
            for reader in done:
                reader.result()
            if len(done) < 2:
                waits = (await run_cli(server.address, "watermark", "show")).out
                shown = f"{len(windows.records)} windows\n{waits}\n{feeder.as_text()}\n{server.tail()}"
                pytest.fail(f"the streams did not end: {shown}")
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            await feeder.kill()
    count = int((tmp_path / "count").read_text())
    verify(load, count, windows, totals)
    print(
        f"\n{RUNS} kills of the server, {killed} of the injector, seed {SEED}: {count} records, "
        f"{len(windows.records)} windows and {len(totals.records)} totals, each exactly once; "
        f"{windows.again + totals.again} redelivered to a subscriber that had not ACKed them; "
        f"{time.monotonic() - began:.0f} s"
    )


def verify(load: Load, count: int, windows: Read, totals: Read) -> None:
    """Every window once, with its exact count; every total once, up to the exact sum."""
    expected = load.expected(count)
    assert sorted(windows.records) == list(range(len(windows.records))), "offsets without a gap"
    got = Counter(one for one in windows.records.values() if isinstance(one, WindowCount))
    assert len(windows.records) == got.total()
    assert got == expected, f"missing {list((expected - got).items())[:5]}, extra {list((got - expected).items())[:5]}"
    by_group: dict[str, list[Total]] = {}
    for offset in sorted(totals.records):
        total = totals.records[offset]
        assert isinstance(total, Total)
        by_group.setdefault(total.group, []).append(total)
    for group, seen in by_group.items():
        members = [one for one in expected if one.group == group]
        assert sorted(total.windows for total in seen) == list(range(1, len(members) + 1)), group
        assert max(total.records for total in seen) == sum(one.count for one in members), group
    assert sum(map(len, by_group.values())) == len(expected)


if __name__ == "__main__":
    _, address, seed, place, rate = sys.argv
    asyncio.run(feed(address, Load(int(seed)), Path(place), float(rate)))
