"""The log of a stream that computations read ends when an operator deletes it. They notice nothing (4.1, 4.3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millwheel.cli.stream_records import kept_note
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.client.subscription import From, Subscription
from millwheel.rpc.failures import FailureCode, RequestError
from tests.patience import patience, until
from tests.system.server import Server, run_cli
from tests.system.speaking import read, submit_source

PROGRAM = """
import msgspec
import millwheel as mw

class Word(msgspec.Struct):
    text: str
    number: int

class Pass(mw.Computation[Word, None]):
    def process_record(self, ctx: mw.Context[None], record: mw.Record[Word]) -> None:
        ctx.produce("passed", record.value)

class Count(mw.Computation[Word, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Word]) -> None:
        ctx.state += 1
        ctx.produce("counts", Word(ctx.key, ctx.state))

passing = mw.Topology("passing")
passing.source("words", Word)
passing.add(Pass, inputs={"words": mw.key("text")}, outputs={"passed": Word})
passing.add(Count, inputs={"passed": mw.key("text")}, outputs={"counts": Word})
"""
ROUNDS = 4
TEXTS = ("a", "b", "c")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(tmp_path / "db", tmp_path / "server.log", intervals=2) as made:
        await submit_source(made, "passing", PROGRAM, "passing")
        yield made


async def feed(server: Server, enough: asyncio.Event) -> int:
    """Send words until it is enough. Return their number."""
    sent = 0
    async with Injector("words", address=server.address, process="p") as injector:
        while not enough.is_set():
            await injector.send({"text": TEXTS[sent % 3], "number": sent}, timestamp=sent, position=sent)
            sent += 1
            await asyncio.sleep(0.005)
        await injector.finish()
    return sent


async def tail_a_little(server: Server) -> None:
    """Begin a log of both streams, and read some of its records."""
    for stream in ("words", "passed"):
        async with Subscription(stream, start=From.OLDEST, address=server.address) as subscription:
            async for batch in subscription:
                if len(batch):
                    break


@pytest.mark.guarantee("G1", section="4.1")
async def test_logs_that_come_and_go_lose_no_record_of_others(server: Server) -> None:
    enough = asyncio.Event()
    async with asyncio.timeout(patience(30)), ControlClient(server.address) as client:
        feeding = asyncio.create_task(feed(server, enough))
        for _ in range(ROUNDS):
            await tail_a_little(server)
            for stream in ("words", "passed"):
                assert (await client.delete_stream_log(stream)).deleted
        enough.set()
        sent = await feeding
        found = await read(server, "counts", dict[str, object], sent)
    for first, text in enumerate(TEXTS):
        counts = [one["number"] for one in found if one["text"] == text]
        assert counts == list(range(1, len(range(first, sent, len(TEXTS))) + 1)), "none is missing, none comes twice"
    ended = await run_cli(server.address, "stream", "tail", "counts", "--until-end", "-o", "json")
    assert ended.code == 0, "the low watermark waits for no log that is gone"


async def test_a_log_with_a_cursor_is_not_deleted_by_a_command(server: Server) -> None:
    async def delete(stream: str) -> tuple[int, str]:
        answer = await run_cli(server.address, "stream", "log", "delete", stream, "--yes")
        return answer.code, answer.out + answer.err

    assert await delete("words") == (0, "stream words has no log\n")
    async with Subscription("words", cursor="mine", start=From.OLDEST, address=server.address) as subscription:
        assert "`millwheel stream log delete words` ends it" in kept_note(subscription, False)
        await until(lambda: listed(server), patience(20), every=0.2)
    code, said = await delete("words")
    assert code != 0
    assert "keeps records for the cursors mine" in said
    async with ControlClient(server.address) as client:
        with pytest.raises(RequestError, match="for the cursors mine") as caught:
            await client.delete_stream_log("words")
    assert (caught.value.code, caught.value.reason) == (FailureCode.FAILED_PRECONDITION, "LOG_HAS_CURSORS")
    assert (await run_cli(server.address, "stream", "cursors", "delete", "words", "mine", "--yes")).code == 0
    assert await delete("words") == (0, "the log of stream passing/words is deleted\n")
    assert await delete("words") == (0, "stream words has no log\n")
    code, said = await delete("counts")
    assert code != 0
    assert "its records go to its log alone" in said


async def test_force_deletes_a_log_with_its_cursors(server: Server) -> None:
    async with Subscription("words", cursor="mine", start=From.OLDEST, address=server.address):
        await until(lambda: listed(server), patience(20), every=0.2)
    done = await run_cli(server.address, "stream", "log", "delete", "words", "--yes", "--force")
    assert (done.code, done.out) == (0, "the log of stream passing/words is deleted\n")
    assert "mine" not in (await run_cli(server.address, "stream", "cursors", "list", "words")).out


async def listed(server: Server) -> bool:
    return "mine" in (await run_cli(server.address, "stream", "cursors", "list", "words")).out
