"""Topologies whose modules clash, and two versions of one, run side by side in the workers of a cluster (4.1, 7.1)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.cli.loading import load
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.client.subscription import From, Subscription
from tests.daemons.together import Together, together
from tests.patience import patience

PROGRAM = """
import msgspec
import millwheel as mw
from parts.words import said


class Spoken(msgspec.Struct):
    text: str


class Say(mw.Computation[Spoken, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Spoken]) -> None:
        ctx.state += 1
        ctx.produce("{name}-said", f"{{said}} {{record.value.text}} {{ctx.state}}")


program = mw.Topology("{name}")
program.source("{name}", Spoken)
program.add(Say, inputs={{"{name}": mw.key("text")}}, outputs={{"{name}-said": str}})
"""


def program(place: Path, name: str, said: str) -> Path:
    """A topology in modules that are always named the same."""
    (place / "parts").mkdir(parents=True)
    (place / "parts" / "__init__.py").write_text("")
    (place / "parts" / "words.py").write_text(f"said = {said!r}\n")
    (place / "program.py").write_text(PROGRAM.format(name=name))
    return place / "program.py"


def packaged(path: Path) -> Any:
    return load(f"{path}:program", [str(path.parent / "parts")])


async def submit(cluster: Together, path: Path, *, update: bool = False) -> None:
    made = packaged(path)
    async with ControlClient(cluster.address, patience=patience(20)) as client:
        await client.upload_package(made.package.digest, made.package.data)
        await (client.update(made.spec()) if update else client.submit(made.spec()))


async def say(cluster: Together, name: str, words: list[str], first: int) -> None:
    async with asyncio.timeout(patience(30)), Injector(name, address=cluster.address, process="p") as injector:
        for position, word in enumerate(words, first):
            await injector.send({"text": word}, timestamp=mw.Timestamp(1 + position), position=position)


async def received(cluster: Together, name: str, count: int) -> list[str]:
    found: list[str] = []
    stream = f"{name}-said"
    async with (
        asyncio.timeout(patience(30)),
        Subscription(stream, start=From.OLDEST, record_type=str, address=cluster.address) as subscription,
    ):
        async for batch in subscription:
            found += batch.values
            if len(found) >= count:
                break
    return sorted(found)


@pytest.mark.paper(section="4.1")
async def test_topologies_with_clashing_modules_and_versions_coexist(tmp_path: Path) -> None:
    async with together(tmp_path) as cluster:
        await submit(cluster, program(tmp_path / "a", "one", "hears"))
        await submit(cluster, program(tmp_path / "b", "two", "repeats"))
        await asyncio.gather(say(cluster, "one", ["x", "y"], 0), say(cluster, "two", ["x", "y"], 0))
        assert await received(cluster, "one", 2) == ["hears x 1", "hears y 1"]
        assert await received(cluster, "two", 2) == ["repeats x 1", "repeats y 1"]
        before = (await cluster.catalog()).topologies["two"]
        await submit(cluster, program(tmp_path / "c", "one", "heard"), update=True)
        await cluster.until(lambda known: not known.topologies["one"].switching)
        await asyncio.gather(say(cluster, "one", ["x", "z"], 2), say(cluster, "two", ["x"], 2))
        assert await received(cluster, "one", 4) == ["heard x 2", "heard z 1", "hears x 1", "hears y 1"]
        assert await received(cluster, "two", 3) == ["repeats x 1", "repeats x 2", "repeats y 1"]
        assert (await cluster.catalog()).topologies["two"] == before, "it has heard nothing of the other's update"
