"""Dead letters of real processes: each replayed record takes effect once, also if the replay is stopped (G1)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from millwheel.client.dead_letters import DeadLetters, LetterFilter, LetterState
from millwheel.client.injector import Injector
from millwheel.client.subscription import From, Subscription
from tests.patience import patience, until
from tests.system import words as program
from tests.system.server import MAIN, ROOT, WAIT, Finished, Server, run_cli
from tests.system.speaking import SOURCE, submit_source
from tests.system.words import Seen, Word

PRODUCES = 'ctx.produce("seen", Seen(text, state.times))'
RAISING = SOURCE.replace(
    PRODUCES, f'if text.startswith("bad"):\n            raise ValueError("not this one")\n        {PRODUCES}'
)
SLOW = SOURCE.replace("import msgspec", "import time\n\nimport msgspec", 1).replace(
    PRODUCES, f"time.sleep(0.002)\n        {PRODUCES}"
)
"""Mended code that takes some time for each record, so that a replay can be killed midway."""
BAD = 1_100
"""Letters for three groups of a replay."""


async def say(server: Server, *texts: str, first: int = 0) -> None:
    """Send words, and wait for their ACKs. A word that fails is ACKed with its letter."""
    async with (
        asyncio.timeout(patience(60)),
        Injector("spoken", address=server.address, process="p", topology=program.words) as injector,
    ):
        numbers = range(first, first + len(texts))
        stamps = [number + 1 for number in numbers]
        await injector.send_many([Word(text) for text in texts], stamps, positions=list(numbers))
        await injector.advance(first + len(texts) + 1)
        await injector.flush()


async def update(server: Server, source: str) -> None:
    path = server.db.parent / "words.py"
    path.write_text(source)
    done = await run_cli(server.address, "topology", "update", f"{path}:words", *WAIT)
    assert done.code == 0, done.err


async def dead_letter(server: Server, verb: str, *arguments: str) -> Finished:
    return await run_cli(server.address, "dead-letter", verb, "words", *arguments, timeout=patience(120))


async def listed(server: Server, *arguments: str) -> list[dict[str, Any]]:
    done = await dead_letter(server, "list", "-o", "json", *arguments)
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = json.loads(done.out)
    return found


async def waiting(server: Server, count: int) -> None:
    """Return when so many letters wait."""

    async def look() -> int:
        async with DeadLetters("words", server.address) as letters:
            return (await letters.states()).count(LetterState.WAITING)

    await until(look, patience(60), every=0.2, holds=lambda found: found >= count)


async def seen(server: Server) -> Counter[tuple[str, int]]:
    """What the computation has produced so far."""
    found: Counter[tuple[str, int]] = Counter()
    async with (
        asyncio.timeout(patience(30)),
        Subscription("seen", start=From.OLDEST, record_type=Seen, address=server.address) as subscription,
    ):
        async for batch in subscription.below(subscription.end):
            found.update((one.text, one.times) for one in batch.values)
    return found


async def replaying(server: Server) -> asyncio.subprocess.Process:
    """Start a replay of all letters as a process."""
    environment = {**os.environ, "MILLWHEEL_ADDRESS": server.address, "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-c", MAIN, "dead-letter", "replay", "words", "--all")
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.timeout(400)
async def test_killed_and_double_replays_take_effect_once(tmp_path: Path) -> None:
    async with Server(tmp_path / "db", tmp_path / "server.log", intervals=4) as server:
        await submit_source(server, "words", RAISING)
        await say(server, "good", *(f"bad-{number}" for number in range(BAD)))
        await waiting(server, BAD)
        note = f"{BAD:,} dead letters of words wait: `millwheel dead-letter list words`"
        await until(lambda: run_cli(server.address, "cluster", "health"), patience(60), holds=lambda it: note in it.out)
        await update(server, SLOW)
        before = await seen(server)
        assert before == {("good", 1): 1}

        killed = await replaying(server)
        await until(lambda: seen(server), patience(60), every=0.05, holds=lambda now: len(now) > len(before))
        killed.kill()
        await killed.wait()
        taken = await seen(server)
        assert 1 < len(taken) < BAD, "the replay was to be killed midway"

        both = [await replaying(server), await replaying(server)]
        for process in both:
            out, err = await asyncio.wait_for(process.communicate(), patience(120))
            assert process.returncode == 0, (out, err)
        assert await seen(server) == Counter({("good", 1): 1, **{(f"bad-{number}", 1): 1 for number in range(BAD)}})
        assert await listed(server) == []
        assert len(await listed(server, "--state", "replayed", "--limit", "2000")) == BAD


@pytest.mark.guarantee("G1", section="7.1")
@pytest.mark.timeout(400)
async def test_a_replay_outlives_its_server_and_a_split(tmp_path: Path) -> None:
    """All roles are killed amid a replay, right after an interval was split. The same replay goes on."""
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit_source(server, "words", RAISING)
        await say(server, *(f"bad-{number}" for number in range(BAD)))
        await waiting(server, BAD)
        await update(server, SLOW)
        process = await replaying(server)
        await until(lambda: seen(server), patience(60), every=0.05)
        split = await run_cli(server.address, "interval", "split", "words/count", "--at", "bad-5")
        assert split.code == 0, split.err
        await server.kill()
        await server.start()
        out, err = await asyncio.wait_for(process.communicate(), patience(120))
        assert process.returncode == 0, (out, err)
        assert out.decode() == f"{BAD:,} letters replayed\n"
        assert await seen(server) == Counter({(f"bad-{number}", 1): 1 for number in range(BAD)})
        assert await listed(server) == []


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.timeout(240)
async def test_letters_are_shown_chosen_and_discarded(tmp_path: Path) -> None:
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit_source(server, "words", RAISING)
        await say(server, "bad-a", "bad-b", "bad-c", "bad-a")
        await waiting(server, 4)
        rows = await listed(server, "--key", "bad-a", "--error", "NOT THIS", "--computation", "count", "--since", "1h")
        assert [(row["id"], row["key"], row["state"], row["stream"]) for row in rows] == [
            (0, "bad-a", "waiting", "words/spoken"),
            (3, "bad-a", "waiting", "words/spoken"),
        ]
        assert await listed(server, "--error", "something else") == []
        first = await dead_letter(server, "list", "--limit", "3")
        log = rows[0]["log"]
        assert f"--from 3@{log}" in first.err
        assert f"\n0@{log} " in first.out
        shown = json.loads((await dead_letter(server, "show", "1", "-o", "json")).out)
        assert (shown["value"], shown["key"], shown["replay_of"]) == ({"text": "bad-b"}, "bad-b", None)
        assert 'raise ValueError("not this one")' in shown["traceback"]
        describe = json.loads((await run_cli(server.address, "topology", "describe", "words", "-o", "json")).out)
        assert shown["code_digest"] == describe["code_digest"]

        # The code is not mended: what is replayed fails again, and says which letter it was.
        done = await dead_letter(server, "replay", f"0@{log}")
        assert (done.code, done.out) == (1, "1 letter replayed\n"), "all have failed again"
        assert done.err.startswith("1 letter failed again with the code that runs (version 1): ")
        await waiting(server, 4)
        assert [row["replay_of"] for row in await listed(server, "--from", "4")] == [0]

        assert (await dead_letter(server, "discard", f"2@{log}", "--yes")).out == "1 letter discarded\n"
        await update(server, SOURCE)
        again = await dead_letter(server, "replay", *(f"{offset}@{log}" for offset in (0, 2, 9)))
        assert (again.code, again.out) == (0, "0 letters replayed\n")
        assert "not meant: 0, 2, 9: replayed or discarded before" in again.err
        unknown = await run_cli(server.address, "dead-letter", "list", "wards")
        assert (unknown.code, "wards" in unknown.err) == (3, True)
        assert (await dead_letter(server, "replay", "--key", "bad-a")).out == "2 letters replayed\n"
        assert [row["id"] for row in await listed(server)] == [1]
        assert (await dead_letter(server, "show", "9")).code == 3
        assert (await dead_letter(server, "replay")).code == 2
        found = await seen(server)
        assert found == {("bad-a", 1): 1, ("bad-a", 2): 1}
        async with DeadLetters("words", server.address) as letters:
            every = await letters.page(LetterFilter(states=frozenset(LetterState)))
            assert [(one.offset, one.state.name) for one in every.letters] == [
                (0, "REPLAYED"), (1, "WAITING"), (2, "DISCARDED"), (3, "REPLAYED"), (4, "REPLAYED"),
            ]  # fmt: skip


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.timeout(240)
async def test_a_list_of_a_former_log_changes_no_letter(tmp_path: Path) -> None:
    """A topology that is submitted again has another log, whose letters have the same numbers."""
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit_source(server, "words", RAISING)
        await say(server, "bad-old")
        await waiting(server, 1)
        (old,) = await listed(server)
        assert (await run_cli(server.address, "topology", "cancel", "words", "--yes")).code == 0

        async def submitted() -> bool:
            try:
                await submit_source(server, "words", RAISING)
            except AssertionError:
                return False
            return True

        await until(submitted, patience(60), every=0.5)
        await say(server, "bad-new")
        await waiting(server, 1)
        (new,) = await listed(server)
        assert new["key"] == "bad-new"
        assert (new["id"], new["log"] != old["log"]) == (old["id"], True)
        stale = f"{old['id']}@{old['log']}"
        for command in (("replay", stale), ("discard", stale, "--yes"), ("show", stale), ("list", "--from", stale)):
            refused = await dead_letter(server, *command)
            assert refused.code != 0
            assert "was replaced: its letters are others" in refused.err
        for command in (("replay", "0"), ("discard", "0", "--yes")):
            assert "of which log" in (await dead_letter(server, *command)).err
        assert (await listed(server)) == [new]
