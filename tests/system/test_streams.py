"""A stream belongs to its topology: programs, commands and other topologies name it in full or in short (4.1, 4.2)."""

from __future__ import annotations

import pytest

from millwheel.client.injector import Injector
from millwheel.rpc.failures import RequestError
from tests.system.server import Server, run_cli
from tests.system.speaking import read, submit_source

PROGRAM = """
import msgspec
import millwheel as mw

class Click(msgspec.Struct):
    user: str

class Count(mw.Computation[Click, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Click]) -> None:
        ctx.state += 1
        ctx.produce("totals", f"{ctx.state} of {record.stream}")

def counting(name: str, stream: str) -> mw.Topology:
    topology = mw.Topology(name)
    topology.external(stream, Click) if "/" in stream else topology.source(stream, Click)
    topology.add(Count, inputs={stream: mw.key("user")}, outputs={"totals": str})
    return topology

one, two = counting("one", "clicks"), counting("two", "clicks")
reader = counting("reader", "one/clicks")
"""


async def submit(server: Server, *names: str) -> None:
    for name in names:
        await submit_source(server, "program", PROGRAM, name)


async def click(server: Server, stream: str, id_: str) -> None:
    async with Injector(stream, address=server.address) as injector:
        assert "/" in injector.stream
        await injector.send({"user": "u"}, timestamp=1_000, id=id_)


@pytest.mark.paper(section="4.1")
async def test_one_program_under_two_names_counts_each_record_once(server: Server) -> None:
    await submit(server, "one")
    await click(server, "clicks", "a")
    await click(server, "one/clicks", "a")  # the same record, whichever name it comes under
    await submit(server, "two")
    await click(server, "two/clicks", "a")
    await click(server, "one/clicks", "b")
    assert await read(server, "one/totals", str, 2) == ["1 of clicks", "2 of clicks"]
    assert await read(server, "two/totals", str, 1) == ["1 of clicks"]


@pytest.mark.paper(section="4.2")
async def test_a_short_name_is_taken_while_it_is_unique(server: Server) -> None:
    await submit(server, "one")
    await click(server, "clicks", "a")
    assert await read(server, "totals", str, 1) == ["1 of clicks"]
    tail = await run_cli(server.address, "stream", "tail", "totals", "--from", "oldest", "-n", "1")
    assert "1 of clicks" in tail.out, tail.err
    listed = await run_cli(server.address, "injector", "list", "clicks")
    assert "one/clicks" in listed.out, listed.err
    await submit(server, "two")
    with pytest.raises(RequestError, match="2 topologies have a stream 'clicks': one/clicks, two/clicks"):
        await click(server, "clicks", "b")
    with pytest.raises(RequestError, match="one/totals, two/totals"):
        await read(server, "totals", str, 1)
    for command in ("stream tail totals", "stream cursors list totals", "injector list clicks"):
        refused = await run_cli(server.address, *command.split())
        assert refused.code != 0
        assert "use one of these full names" in refused.err
    tail = await run_cli(server.address, "stream", "tail", "one/totals", "--from", "oldest", "-n", "1")
    assert "1 of clicks" in tail.out, tail.err


@pytest.mark.paper(section="4.1")
async def test_a_reader_of_a_stream_outlives_its_owner_and_return(
    server: Server,
) -> None:
    await submit(server, "one", "reader")
    await click(server, "one/clicks", "a")
    assert await read(server, "reader/totals", str, 1) == ["1 of one/clicks"]
    cancelled = await run_cli(server.address, "topology", "cancel", "one", "--yes")
    assert cancelled.code == 0, cancelled.err
    with pytest.raises(RequestError, match="there is no stream 'one/clicks'"):
        await click(server, "one/clicks", "b")
    await submit(server, "one")
    await click(server, "one/clicks", "c")
    assert await read(server, "reader/totals", str, 2) == ["1 of one/clicks", "2 of one/clicks"]
    assert await read(server, "one/totals", str, 1) == ["1 of clicks"], "it begins without state"
