"""A topology that has only sources: its streams have logs for their subscribers (section 4.3)."""

from __future__ import annotations

import pytest

from millwheel.client.injector import Injector
from tests.system.server import WAIT, Server, run_cli
from tests.system.speaking import read, submit_source
from tests.system.words import Seen

SOURCES = """
import msgspec
import millwheel as mw

class Seen(msgspec.Struct):
    text: str
    times: int

sources = mw.Topology("sources")
sources.source("sightings", Seen)
"""

READER = """
class Reader(mw.Computation[Seen, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Seen]) -> None:
        ctx.state += record.value.times
        ctx.produce("totals", ctx.state)

sources.add(Reader, inputs={"sightings": mw.key("text")}, outputs={"totals": int})
"""


async def inject(server: Server, process: str, *values: Seen) -> None:
    async with Injector("sightings", address=server.address, process=process) as injector:
        for value in values:
            await injector.send(value, timestamp=1_000)
        await injector.advance(5_000)


@pytest.mark.paper(section="4.3")
async def test_records_of_a_source_that_nothing_reads_are_in_its_log(server: Server) -> None:
    await submit_source(server, "sources", SOURCES, "sources")
    await inject(server, "a", Seen("x", 1), Seen("y", 2))
    tail = await run_cli(server.address, "stream", "tail", "sightings", "--from", "oldest", "-n", "2")
    assert '{"text":"x","times":1}' in tail.out, tail.err
    assert '{"text":"y","times":2}' in tail.out
    described = await run_cli(server.address, "topology", "describe", "sources")
    assert described.code == 0, described.err
    assert "sightings" in described.out


@pytest.mark.paper(section="4.3")
async def test_a_topology_of_sources_alone_survives_a_kill(server: Server) -> None:
    await submit_source(server, "sources", SOURCES, "sources")
    await inject(server, "a", Seen("x", 1))
    await server.kill()
    await server.start()
    await inject(server, "b", Seen("y", 2))
    assert sorted(one.text for one in await read(server, "sightings", Seen, 2)) == ["x", "y"]


@pytest.mark.paper(section="4.1")
async def test_computations_may_come_to_sources_and_go_again(server: Server) -> None:
    await submit_source(server, "sources", SOURCES, "sources")
    await inject(server, "a", Seen("x", 1))
    path = server.db.parent / "sources.py"
    path.write_text(SOURCES + READER)
    updated = await run_cli(server.address, "topology", "update", f"{path}:sources", *WAIT)
    assert updated.code == 0, updated.err
    await inject(server, "a", Seen("x", 2))
    assert await read(server, "totals", int, 1) == [2]
    removed = await run_cli(server.address, "computation", "remove", "sources/reader", *WAIT, "--yes")
    assert removed.code == 0, removed.err
    await inject(server, "a", Seen("x", 3))
    assert [one.times for one in await read(server, "sightings", Seen, 3)] == [1, 2, 3]


@pytest.mark.paper(section="7.1")
async def test_sources_alone_are_drained_and_cancelled(server: Server) -> None:
    await submit_source(server, "sources", SOURCES, "sources")
    await inject(server, "a", Seen("x", 1))
    drained = await run_cli(server.address, "topology", "drain", "sources", "--yes", *WAIT)
    assert "is drained" in drained.out, drained.err
    cancelled = await run_cli(server.address, "topology", "cancel", "sources", "--yes")
    assert cancelled.code == 0, cancelled.err
