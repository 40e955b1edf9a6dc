"""Programs outside look up states, and read a stream as a table (sections 4.3 and 4.4)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.client.states import BlockingStateReader, StateReader
from millwheel.client.subscription import StreamTable
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import interval_pb2 as wire
from millwheel.sdk.errors import ValueDecodeError
from millwheel.server.dev_server import DevServer, DevSettings, running
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system import words as program
from tests.system.server import run_cli
from tests.system.words import Seen, State, Word

START = mw.Timestamp(1_700_000_000_000_000)
WORDS = [f"word-{number:02}" for number in range(20)]
ENOUGH = 20


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[DevServer]:
    async with running(DevSettings(tmp_path / "db", port=0)) as started:
        await submit_copy(started.address, str(program.__file__), "words", tmp_path)
        yield started


async def say(injector: Injector, *texts: str) -> None:
    for text in texts:
        await injector.send(Word(text), timestamp=START)
    await injector.flush()


async def reshape(client: ControlClient) -> str:
    """Split the only interval, or merge the two. Returns the verb, or why it was too early for another change."""
    shown = await client.list_intervals("words", "count")
    lower = wire.IntervalName(topology="words", computation="count", key=b"")
    try:
        if len(shown) == 1:
            await client.split_interval(lower, b"word-10")
            return "split"
        await client.merge_intervals(lower)
        return "merge"
    except RequestError as error:
        return error.reason


@pytest.mark.guarantee("G1", section="4.4")
@pytest.mark.guarantee("G11", section="7.1")
async def test_lookups_have_all_acked_records_through_splits(server: DevServer) -> None:
    done, acked, lookups = asyncio.Event(), 0, 0

    async def look(states: StateReader[State]) -> None:
        """A look-up returns at least what was ACKed before it, and never goes back."""
        nonlocal lookups
        seen = dict.fromkeys(WORDS, 0)
        while not done.is_set():
            before = acked
            found = await states.get_many(WORDS)
            times = {text: found[text].times if text in found else 0 for text in WORDS}
            assert all(times[text] >= max(before, seen[text]) for text in WORDS), (before, seen, times)
            seen = times
            lookups += 1

    async with (
        Injector("spoken", address=server.address, process="one", topology=program.words) as injector,
        StateReader("words/count", State, address=server.address) as states,
        ControlClient(server.address, patience=patience(10.0)) as client,
    ):
        looking, changes = asyncio.create_task(look(states)), set[str]()
        async with asyncio.timeout(patience(60)):
            while lookups < ENOUGH or not {"split", "merge"} <= changes:
                await say(injector, *WORDS)
                acked += 1
                if acked % 3 == 0:
                    changes.add(await reshape(client))
        done.set()
        await looking
        assert changes <= {"split", "merge", "HAS_PARENTS"}
        assert await states.get_many([*WORDS, "absent"]) == {text: State(acked) for text in WORDS}
        assert await states.get("absent") is None


async def test_mistakes_of_lookups_are_named(server: DevServer) -> None:
    async with Injector("spoken", address=server.address, process="one", topology=program.words) as injector:
        await say(injector, "word")
    with pytest.raises(RequestError, match="write TOPOLOGY/COMPUTATION"):
        StateReader("words", State)
    async with StateReader("words/cuont", State, address=server.address) as unknown:
        with pytest.raises(RequestError, match="no computation 'cuont'"):
            await unknown.get("word")
    async with StateReader("words/count", int, address=server.address) as mistyped:
        with pytest.raises(ValueDecodeError, match="the state of words/count"):
            await mistyped.get("word")
        with pytest.raises(RequestError, match="the limit is 4,096"):
            await mistyped.get("x" * 5_000)


async def test_a_program_without_a_loop_looks_states_up(server: DevServer) -> None:
    async with Injector("spoken", address=server.address, process="one", topology=program.words) as injector:
        await say(injector, "word", "word")

    def look() -> tuple[State | None, dict[str, State]]:
        with BlockingStateReader("words/count", State, address=server.address) as states:
            return states.get("word"), states.get_many(["word", "absent"])

    assert await asyncio.to_thread(look) == (State(2), {"word": State(2)})


async def _has_rows(address: str, rows: dict[str, Seen]) -> bool:
    async with StreamTable[str, Seen]("seen", lambda seen: seen.text, Seen, address=address) as table:
        return table.rows == rows


@pytest.mark.paper(section="4.3")
async def test_a_table_has_the_latest_record_of_each_key(server: DevServer) -> None:
    async with Injector("spoken", address=server.address, process="one", topology=program.words) as injector:
        await say(injector, "cat", "dog", "cat")
        # The ACK of a word comes before its production is in the log.
        first = {"cat": Seen("cat", 2), "dog": Seen("dog", 1)}
        await until(lambda: _has_rows(server.address, first))
        table = StreamTable[str, Seen]("seen", lambda seen: seen.text, Seen, address=server.address)
        async with table:
            assert table.rows == first
            await say(injector, "dog", "emu")
            changes = [await asyncio.wait_for(anext(table), patience(10)) for _ in range(2)]
            assert sorted(changes) == [("dog", Seen("dog", 2)), ("emu", Seen("emu", 1))]
            assert table.rows == {"cat": Seen("cat", 2), "dog": Seen("dog", 2), "emu": Seen("emu", 1)}
        shown = await run_cli(server.address, "stream", "table", "words/seen", "--key", "text", "-o", "json")
        assert [row["value"]["times"] for row in json.loads(shown.out)] == [2, 2, 1]
        plain = await run_cli(server.address, "stream", "table", "seen", "--key", "text")
        assert plain.out.splitlines()[1].split() == ["cat", '{"text":"cat","times":2}']
        pairs = await run_cli(
            server.address, "stream", "table", "seen", "--key", "text", "--key", "times", "-o", "json"
        )
        assert [row["key"] for row in json.loads(pairs.out)] == [
            '["cat",1]',
            '["cat",2]',
            '["dog",1]',
            '["dog",2]',
            '["emu",1]',
        ]
        wrong = await run_cli(server.address, "stream", "table", "seen", "--key", "text.length")
        assert (wrong.code, wrong.out) == (5, "")
        assert "has no field 'text.length'" in wrong.err


@pytest.mark.paper(section="4.3")
async def test_a_table_of_a_stream_without_records_is_empty(server: DevServer) -> None:
    async with StreamTable[str, Seen]("seen", lambda seen: seen.text, Seen, address=server.address) as table:
        assert table.rows == {}
