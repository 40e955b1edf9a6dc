"""Topologies change while they run, and nothing is lost or done twice (G1, G7, G11; sections 4.1, 4.4, 7.1)."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from pathlib import Path

import pytest

from millwheel.client.injector import Injector
from tests.patience import patience
from tests.system import words as program
from tests.system.server import WAIT, Finished, Server, run_cli
from tests.system.speaking import SOURCE, read, speak, submit, submit_source
from tests.system.words import Seen, Word

SHOUTING = SOURCE.replace('ctx.produce("seen", Seen(text, state', 'ctx.produce("seen", Seen(text.upper(), state')

ECHOING = (
    SOURCE.replace(
        'words = mw.Topology("words")',
        '''class Echo(mw.Computation[Seen, None]):
    """Says again what was seen."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Seen]) -> None:
        ctx.produce("echoes", record.value)


words = mw.Topology("words")''',
    )
    + 'words.add(Echo, inputs={"seen": mw.key("text")}, outputs={"echoes": Seen})\n'
)


def write(server: Server, source: str) -> Path:
    path = server.db.parent / "words.py"
    path.write_text(source)
    return path


async def update(server: Server, source: str, *more: str) -> Finished:
    return await run_cli(server.address, "topology", "update", f"{write(server, source)}:words", *more)


async def updated(server: Server, source: str) -> None:
    done = await update(server, source, *WAIT)
    assert done.code == 0, done.err


async def command(server: Server, *arguments: str) -> str:
    done = await run_cli(server.address, *arguments)
    assert done.code == 0, done.err
    return done.out


async def journals(server: Server) -> list[tuple[str, int]]:
    """The intervals of the words topology: each journal with its owner's sequencer."""
    listed = json.loads(await command(server, "interval", "list", "words", "-o", "json"))
    return [(one["journal"], one["sequencer"]) for one in listed if one["computation"]]


def in_order(seen: list[Seen], times: int) -> None:
    """Each word was counted from 1 to ``times``, one by one."""
    counts: dict[str, list[int]] = defaultdict(list)
    for one in seen:
        counts[one.text.lower()].append(one.times)
    for text, found in counts.items():
        assert found == list(range(1, times + 1)), text


async def flow(server: Server, count: int, stop: asyncio.Event | None = None) -> int:
    """Send 20 different words repeatedly, at least ``count`` times, and until ``stop`` is set."""
    async with Injector("spoken", address=server.address, process="p", topology=program.words) as injector:
        sent = 0
        while sent < count or (stop is not None and not stop.is_set()):
            await injector.send_many(
                [Word(f"w{n}") for n in range(20)], [sent + 1] * 20, positions=list(range(sent, sent + 20))
            )
            sent += 20
            await asyncio.sleep(0.05)
        await injector.flush()
    return sent


@pytest.mark.guarantee("G1", section="4.1")
async def test_new_code_takes_over_under_load_and_counts_have_no_gap(server: Server) -> None:
    await submit(server)
    stop = asyncio.Event()
    flowing = asyncio.create_task(flow(server, 0, stop))
    await asyncio.sleep(0.5)
    await updated(server, SHOUTING)
    await asyncio.sleep(0.3)
    await updated(server, SOURCE)
    await asyncio.sleep(0.3)
    stop.set()
    sent = await asyncio.wait_for(flowing, patience(30))
    seen = await read(server, "seen", Seen, sent)
    assert len(seen) == sent
    in_order(seen, sent // 20)
    of_one = [one.text for one in seen if one.text.lower() == "w7"]
    changes = [(a, b) for a, b in itertools.pairwise(of_one) if a != b]
    assert changes == [("w7", "W7"), ("W7", "w7")]
    assert "(version 3)" in await command(server, "topology", "describe", "words")


@pytest.mark.guarantee("G1", section="6.2")
async def test_a_server_killed_during_an_update_runs_one_version(
    server: Server,
) -> None:
    await submit(server)
    await flow(server, 200)
    place = write(server, SHOUTING)
    updating = asyncio.create_task(run_cli(server.address, "topology", "update", f"{place}:words"))
    await asyncio.sleep(1.1)
    await server.kill()
    await updating
    await server.start()
    await updated(server, SHOUTING)
    async with Injector("spoken", address=server.address, process="p", topology=program.words) as injector:
        await injector.send_many([Word(f"w{n}") for n in range(20)], [999] * 20, positions=list(range(200, 220)))
        await injector.flush()
    seen = await read(server, "seen", Seen, 220)
    in_order(seen, 11)
    assert all(one.text.isupper() for one in seen[-20:])


@pytest.mark.guarantee("G7", section="7.1")
async def test_a_computation_is_added_and_removed_while_the_rest_runs(server: Server) -> None:
    await submit(server)
    await speak(server, "before")
    before = await journals(server)
    place = write(server, ECHOING)
    await command(server, "computation", "add", "words/echo", f"{place}:words", *WAIT)
    await speak(server, "a", "b", first=1)
    assert await read(server, "echoes", Seen, 2) == [Seen("a", 1), Seen("b", 1)], "what joins counts from then on"
    described = await command(server, "topology", "describe", "words")
    assert "echo" in described
    await command(server, "computation", "remove", "words/echo", "--yes", *WAIT)
    await speak(server, "a", first=3)
    assert [one.times for one in await read(server, "seen", Seen, 4)] == [1, 1, 1, 2]
    assert await journals(server) == before, "journal and sequencer are those of before"
    shown = await command(server, "watermark", "show", "words")
    assert "echo" not in shown
    again = await run_cli(server.address, "computation", "remove", "words/echo", "--yes")
    assert again.code == 3
    assert "has no computation 'echo'" in again.err


@pytest.mark.guarantee("G1", section="7.1")
async def test_a_paused_topology_keeps_everything_and_resumes_there(server: Server) -> None:
    await submit(server)
    await flow(server, 100)
    assert "is paused" in await command(server, "topology", "pause", "words")
    assert "is paused" in await command(server, "topology", "pause", "words"), "it is paused, however often it is asked"
    async with Injector("spoken", address=server.address, process="p", topology=program.words) as injector:
        await injector.send_many([Word(f"w{n}") for n in range(20)], [999] * 20, positions=list(range(100, 120)))
        flushing = asyncio.ensure_future(injector.flush())
        await asyncio.sleep(0.7)
        assert not flushing.done(), "the injector waits"
        answer = await command(server, "watermark", "explain", "words/count")
        assert "paused" in answer
        assert "`millwheel topology resume words` lets it go on" in answer
        assert "spoken: not ACKed while words is paused" in await command(server, "injector", "list")
        await server.kill()
        await server.start()
        assert not flushing.done()
        drained = await run_cli(server.address, "topology", "drain", "words", "--yes")
        assert "topology resume words" in drained.err
        assert "is running" in await command(server, "topology", "resume", "words")
        await asyncio.wait_for(flushing, patience(20))
    seen = await read(server, "seen", Seen, 120)
    in_order(seen, 6)


RICHER = SOURCE.replace('    ballast: bytes = b""\n', '    ballast: bytes = b""\n    last: str = ""\n').replace(
    "state.times += 1", "state.times += 1\n        state.last = text"
)
RENAMED = SOURCE.replace("    times: int = 0", "    count: int = 0").replace("state.times", "state.count")
MIGRATING = RENAMED.replace(
    "class Count(mw.Computation[Word, State]):",
    """class OldState(msgspec.Struct):
    times: int = 0
    ballast: bytes = b""


class Count(mw.Computation[Word, State]):""",
).replace(
    "    def process_record",
    """    state_version = 2

    def migrate(self, stored: mw.StoredState) -> State:
        old = stored.read(OldState)
        return State(old.times, old.ballast)

    def process_record""",
    1,
)


@pytest.mark.paper(section="4.4")
async def test_a_changed_state_is_refused_until_old_ones_can_be_read(server: Server) -> None:
    await submit(server)
    await speak(server, "a", "a", "b")
    await updated(server, RICHER)
    await speak(server, "a", first=3)
    refused = await update(server, RENAMED)
    assert refused.code == 5
    assert "field 'times' is gone" in refused.err
    assert "set state_version = 2 and define migrate(self, stored)" in refused.err
    described = await command(server, "topology", "describe", "words")
    assert "(version 2)" in described, "nothing has changed"


TEXTS = SOURCE.replace("    times: int\n", "    times: str\n").replace("Seen(text, state.times)", 'Seen(text, "one")')
GROWN = SOURCE.replace("    times: int\n", "    times: int\n    of: int = 7\n").replace("Seen", "Counted")


class Counted(Seen, frozen=True):
    of: int = 7


READING = """import msgspec
import millwheel as mw

class Seen(msgspec.Struct):
    text: str
    times: int

class Take(mw.Computation[Seen]):
    def process_record(self, ctx: mw.Context[None], record: mw.Record[Seen]) -> None: ...

reading = mw.Topology("reading")
reading.external("words/seen", Seen)
reading.add(Take, inputs={"words/seen": mw.key("text")})
"""


@pytest.mark.paper(section="4.1")
async def test_a_stream_and_its_readers_keep_to_what_was_written(server: Server) -> None:
    await submit(server)
    await speak(server, "a")
    refused = await update(server, TEXTS)
    assert refused.code == 5
    assert "stream 'words/seen': its type is Seen" in refused.err
    assert "field 'times' is written as int and read as str" in refused.err
    await updated(server, GROWN)
    await speak(server, "b", first=1)
    assert await read(server, "seen", Counted, 2) == [Counted("a", 1), Counted("b", 1)]
    place = server.db.parent / "reading.py"
    place.write_text(READING.replace("times: int", "times: str"))
    refused = await run_cli(server.address, "topology", "submit", f"{place}:reading")
    assert refused.code == 5
    assert "its type Seen here cannot read it as Counted in topology 'words'" in refused.err
    await submit_source(server, "reading", READING, "reading")


@pytest.mark.guarantee("G1", section="4.4")
async def test_states_are_migrated_at_their_next_read_through_failures(server: Server) -> None:
    await submit(server)
    await speak(server, "a", "a", "b")
    await updated(server, MIGRATING)
    await speak(server, "a", first=3)
    await server.kill()
    await server.start()
    await speak(server, "a", "b", first=4)
    seen = await read(server, "seen", Seen, 6)
    assert [one.times for one in seen if one.text == "a"] == [1, 2, 3, 4]
    assert [one.times for one in seen if one.text == "b"] == [1, 2]
    back = await update(server, SOURCE)
    assert back.code == 5
    assert "states of version 2 are stored" in back.err


async def test_a_submit_that_waits_returns_when_all_intervals_run(server: Server) -> None:
    path = write(server, SOURCE)
    done = await run_cli(server.address, "topology", "submit", f"{path}:words", *WAIT)
    assert (done.code, done.out) == (0, "topology words is running (version 1)\n"), done.err
    listed = json.loads(await command(server, "interval", "list", "-o", "json"))
    assert [one["load"]["serving"] for one in listed] == [True] * len(listed)
    assert {one["stream"] for one in listed} == {None, "words/seen", "words/dead-letters"}
