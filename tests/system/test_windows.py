"""Ready-made windows on a server: without outputs=, in one phase and in two (sections 4.6, 8.4)."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel import windows
from millwheel.client.injector import Injector
from tests.system.server import Server
from tests.system.speaking import read, submit_source

PROGRAM = """
import msgspec
import millwheel as mw
from millwheel import agg, windows

class Hit(msgspec.Struct):
    page: str

hits = mw.Topology("hits")
hits.source("hits", Hit)
second = windows.tumbling(mw.seconds(1))
hits.add(windows.Aggregate(second, agg.count(), output="counts"), inputs={"hits": mw.key("page")})
hits.add(windows.SessionAggregate(windows.session(mw.seconds(1)), agg.count()), inputs={"hits": mw.key("page")})
windows.two_phase(
    hits, "hot", source="hits", key_of=lambda hit: hit.page, windows=second, aggregator=agg.count(), output="sums"
)
"""


@pytest.mark.guarantee("G6", section="4.6")
async def test_a_server_produces_windows_when_the_watermark_passes(server: Server) -> None:
    await submit_source(server, "hits", PROGRAM, "hits")
    names: dict[str, Any] = {"__name__": "hits"}
    exec(PROGRAM, names)
    async with Injector("hits", address=server.address, process="p", topology=names["hits"]) as injector:
        hits = [names["Hit"]("ab"[n % 2]) for n in range(20)]
        await injector.send_many(hits, [n * 100_000 for n in range(20)])
        await injector.finish()
    result: Any = windows.Result[int]
    expected = [(page, start, start + 1_000_000, 5) for page in "ab" for start in (0, 1_000_000)]
    for stream in ("counts", "sums"):
        found = await read(server, stream, result, 4)
        assert sorted((r.key, r.start, r.end, r.value) for r in found) == expected
    found = await read(server, "sessions", result, 2)
    assert sorted((r.key, r.start, r.end, r.value) for r in found) == [
        ("a", 0, 2_800_000, 10),
        ("b", 100_000, 2_900_000, 10),
    ]
