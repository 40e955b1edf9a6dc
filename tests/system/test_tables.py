"""Streams and states are read as tables of Arrow, and nothing is left behind (sections 4.3 and 4.4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import millwheel as mw
from millwheel.client.arrow import read_state, read_stream
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.client.kept_log import KeptLog
from millwheel.client.state_pages import StatePages
from millwheel.client.subscription.cursors import list_cursors
from millwheel.model.keys import KeyInterval
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import interval_pb2 as wire
from millwheel.sdk.errors import UsageError
from millwheel.server.dev_server import DevServer, DevSettings, running
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system import words as program
from tests.system.server import Server
from tests.system.speaking import submit
from tests.system.words import Word

START = 1_700_000_000_000_000
SECOND = 1_000_000

BLOBS = """
import msgspec
import millwheel as mw

class Blob(msgspec.Struct):
    number: int
    ballast: bytes

class Pass(mw.Computation[Blob, None]):
    def process_record(self, ctx: mw.Context[None], record: mw.Record[Blob]) -> None:
        ctx.produce("blobs", record.value)

blobs = mw.Topology("blobs")
blobs.source("given", Blob)
blobs.stream("blobs", Blob, retention=mw.Retention(bytes=1))
blobs.add(Pass, inputs={"given": mw.key("number")}, outputs={"blobs": Blob})
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[DevServer]:
    async with running(DevSettings(tmp_path / "db", port=0)) as started:
        await submit_copy(started.address, str(program.__file__), "words", tmp_path)
        yield started


async def say(server: DevServer, *texts: str, process: str = "one", at: int = START) -> None:
    async with Injector("spoken", address=server.address, process=process, topology=program.words) as injector:
        for number, text in enumerate(texts):
            await injector.send(Word(text), timestamp=mw.Timestamp(at + number * SECOND))
        await injector.flush()


async def table(server: DevServer, stream: str, **options: Any) -> list[dict[str, Any]]:
    """What ``read_stream`` returns, row by row."""
    options |= {"address": server.address, "patience": patience(10.0)}
    found = await asyncio.to_thread(lambda: read_stream(stream, **options))
    found.validate(full=True)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


async def logged(server: DevServer, stream: str, count: int) -> None:
    """The ACK of a record comes before its production is in the log."""

    async def has_all() -> bool:
        async with KeptLog(stream, address=server.address) as kept:
            return await kept.end() == count

    await until(has_all)


@pytest.mark.paper(section="4.3")
async def test_a_stream_is_read_as_a_table(server: DevServer) -> None:
    assert await table(server, "words/seen") == []
    for number, text in enumerate(["cat", "dog", "cat", "emu"]):
        await say(server, text, at=START + number * SECOND)
        await logged(server, "seen", number + 1)
    rows = await table(server, "seen", offset_column="offset", timestamp_column="at")
    assert rows == [
        {"text": text, "times": times, "offset": offset, "at": datetime.fromtimestamp(START // SECOND + offset, UTC)}
        for offset, (text, times) in enumerate([("cat", 1), ("dog", 1), ("cat", 2), ("emu", 1)])
    ]
    texts = [row["text"] for row in rows]
    for begin in ({"offset": 1}, {"since": START + SECOND}, {"since": START + 1}):
        assert [row["text"] for row in await table(server, "seen", **begin)] == texts[1:]
        assert [row["text"] for row in await table(server, "seen", **begin, count=2)] == texts[1:3]
        assert [row["text"] for row in await table(server, "seen", **begin, end=2)] == texts[1:2]
    for nothing in ({"offset": 4}, {"offset": 9}, {"count": 0}, {"since": START + 9 * SECOND}):
        assert await table(server, "seen", **nothing) == []
    async with ControlClient(server.address) as client:
        assert await list_cursors("seen", client) == []


@pytest.mark.paper(section="4.3")
async def test_reading_makes_no_log(server: DevServer) -> None:
    await say(server, "cat")
    for _ in range(2):
        with pytest.raises(RequestError, match=r"'words/spoken' has no log: .*stream tail words/spoken") as refused:
            await table(server, "spoken")
        assert refused.value.reason == "NO_LOG"
    with pytest.raises(UsageError, match="offset and since are two places"):
        await table(server, "seen", offset=1, since=1)


@pytest.mark.guarantee("G1", section="4.3")
async def test_records_that_are_gone_are_an_error(server: DevServer, tmp_path: Path) -> None:
    (tmp_path / "blobs_program.py").write_text(BLOBS)
    (tmp_path / "copy").mkdir()
    await submit_copy(server.address, tmp_path / "blobs_program.py", "blobs", tmp_path / "copy")
    async with Injector("given", address=server.address, process="one") as injector:
        for number in range(6):
            await injector.send({"number": number, "ballast": bytes(700_000)}, timestamp=START)
            await injector.flush()
            await logged(server, "blobs/blobs", number + 1)
    async with KeptLog("blobs/blobs", address=server.address) as kept:
        start = await kept.start()
    assert 0 < start < 6, "the retention has dropped a segment"
    with pytest.raises(RequestError, match=f"does not keep its records from offset 0 to {start - 1} any more") as gone:
        await table(server, "blobs/blobs", offset=0)
    assert gone.value.reason == "RECORDS_NOT_KEPT"
    with pytest.raises(RequestError, match="does not keep its records from offset 0 to 0 any more"):
        await table(server, "blobs/blobs", offset=0, end=1)
    assert [row["number"] for row in await table(server, "blobs/blobs")] == [*range(start, 6)]
    async with KeptLog("blobs/blobs", address=server.address) as kept:
        assert [len(batch) async for batch in kept.read(0, start, lossy=True)] == []
        read = [offset async for batch in kept.read(0, 5, lossy=True) for offset, _, _ in batch]
        assert read == [*range(start, 5)]


@pytest.mark.guarantee("G1", section="4.3")
async def test_another_log_of_a_stream_is_not_read_on(server: DevServer) -> None:
    await say(server, "cat")
    async with KeptLog("seen", address=server.address) as kept:
        former = kept.incarnation
    async with ControlClient(server.address) as client:
        await client.cancel("words")
        await until(lambda: _resubmitted(server))
    await logged(server, "seen", 0)
    with pytest.raises(RequestError, match="the log of stream 'words/seen' was replaced by another") as replaced:
        async with KeptLog("seen", address=server.address, incarnation=former) as kept:
            await kept.end()
    assert replaced.value.reason == "STREAM_LOG_REPLACED"


async def _resubmitted(server: DevServer) -> bool:
    try:
        await submit_copy(server.address, str(program.__file__), "words", server.db.parent)
    except RequestError:
        return False
    return True


async def states(server: DevServer) -> list[dict[str, Any]]:
    found = await asyncio.to_thread(lambda: read_state("words/count", address=server.address))
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


@pytest.mark.paper(section="4.4")
async def test_states_are_read_as_a_table(server: DevServer) -> None:
    assert await states(server) == []
    await say(server, "dog", "cat", "dog")
    assert await states(server) == [
        {"key": text, "state": {"times": times, "ballast": b""}, "timers": [], "hold_us": None}
        for text, times in (("cat", 1), ("dog", 2))
    ]
    with pytest.raises(RequestError, match="no computation 'cuont'"):
        await asyncio.to_thread(lambda: read_state("words/cuont", address=server.address))


@pytest.mark.guarantee("G11", section="7.1")
async def test_states_are_read_once_each_through_splits(server: DevServer) -> None:
    texts = [f"word-{number:03}" for number in range(200)]
    await say(server, *texts)
    lower = wire.IntervalName(topology="words", computation="count", key=b"")
    async with (
        ControlClient(server.address, patience=patience(10.0)) as client,
        StatePages("words/count", address=server.address, patience=patience(10.0)) as pages,
    ):
        assert await pages.ranges() == [KeyInterval()]
        found: list[str] = []
        await client.split_interval(lower, b"word-100")
        # It still asks the owner of the one interval that was there before.
        async for page in pages.read():
            found += [one.key.decode() for one in page]
        assert found == texts
        assert await pages.ranges() == [KeyInterval(b"", b"word-100"), KeyInterval(b"word-100")]
        some = [one.key.decode() async for page in pages.read(KeyInterval(b"word-050", b"word-150")) for one in page]
        assert some == texts[50:150]


@pytest.mark.guarantee("G1", section="4.3")
@pytest.mark.parametrize("way", ["kill", "stop"])
async def test_reading_goes_on_when_the_owner_comes_back(tmp_path: Path, way: str) -> None:
    texts = [f"{number:05}{'x' * 1_500}" for number in range(4_000)]
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit(server)
        async with Injector("spoken", address=server.address, process="one", topology=program.words) as injector:
            await injector.send_many([Word(text) for text in texts], [START] * len(texts))
            await injector.flush()
        async with KeptLog("seen", address=server.address, patience=patience(60.0)) as kept:
            await until(lambda: _has(kept, len(texts)))
            offsets: list[int] = []
            async for batch in kept.read(0, len(texts)):
                if not offsets:
                    await getattr(server, way)()
                    await server.start()
                offsets += [offset for offset, _, _ in batch]
            assert offsets == [*range(len(texts))]


async def _has(kept: KeptLog, count: int) -> bool:
    return await kept.end() == count
