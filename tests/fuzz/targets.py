"""The servers that are fuzzed. They are real, in this process and on loopback, with a topology that has work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.package import CodePackage, build_package, load_topology
from millwheel.server.dev_server import DevSettings, running
from tests.daemons.together import together
from tests.patience import patience
from tests.system import words as program
from tests.system.speaking import SOURCE
from tests.system.words import Word


@dataclass(frozen=True, slots=True)
class Target:
    """Servers, and the names that are valid there."""

    addresses: tuple[str, ...]
    words: tuple[str, ...]
    """The names of the topology that must stay."""
    spec: topology_pb2.TopologySpec
    package: CodePackage
    still_serves: Callable[[], Awaitable[None]]
    """Raise unless the topology takes records as before."""


@asynccontextmanager
async def dev_server(place: Path) -> AsyncIterator[Target]:
    """All roles behind one address."""
    async with running(DevSettings(place / "db", port=0)) as server:
        yield await _prepared(place, server.address, (server.address,))


async def made_database(place: Path) -> None:
    """Make a database at ``place / "db"`` with a value of every kind, and close it."""
    async with running(DevSettings(place / "db", port=0)) as server:
        target = await _prepared(place, server.address, (server.address,))
        # Enough commits for a base and a truncation of the journal.
        async with Injector("spoken", address=server.address, process="slow", topology=program.words) as injector:
            for number in range(70):
                await injector.send(Word(f"w{number % 9}"), timestamp=number + 1, position=number)
                await injector.flush()
        for hosted in list(server.worker.hosts.hosted.values()):
            if not hosted.built.log_of:
                await hosted.host.prepare_release()
        await target.still_serves()


@asynccontextmanager
async def cluster(place: Path) -> AsyncIterator[Target]:
    """The daemon of each role, each at its own address. The second master is a standby."""
    async with together(place) as made:
        daemons = [*made.masters, *made.authorities, *made.workers]
        yield await _prepared(place, made.address, tuple(one.address for one in daemons))


async def _prepared(place: Path, master: str, addresses: tuple[str, ...]) -> Target:
    source = place / "fuzzed_words.py"
    source.write_text(SOURCE)
    package = build_package(f"{source}:words")
    topology = load_topology(package.digest, package.data, package.entry_point, place / "packages")
    spec = topology.to_spec(package.reference())
    said = count(1)

    async def speak() -> None:
        number = next(said)
        async with (
            asyncio.timeout(patience(20)),
            Injector("spoken", address=master, process="speaker", topology=program.words) as injector,
        ):
            await injector.send(Word(f"w{number}"), timestamp=number, position=number)
            await injector.flush()

    async with ControlClient(master) as client:
        await client.upload_package(package.digest, package.data)
        await client.submit(spec)
        await speak()
        found = await client.get_topology("words")
    words = ["words", "count", "spoken", "seen", "speaker", "w1", package.digest, package.entry_point]
    for record in found.interval_maps:
        for interval in record.intervals:
            words += [interval.journal, interval.journal.rpartition(".j")[0], interval.owner.worker_id]
    return Target(addresses, tuple(dict.fromkeys(words)), spec, package, speak)
