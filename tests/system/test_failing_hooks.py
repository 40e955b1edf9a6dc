"""Every view for operators shows a hook that fails, or blocks the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.local.child import free_ports
from millwheel.cli.stream_records import kept_note
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.client.subscription import From, Subscription
from tests.daemons.process import metrics_page
from tests.patience import patience, until
from tests.system import words as program
from tests.system.server import WAIT, Finished, Server, run_cli
from tests.system.speaking import SOURCE, speak, submit, submit_source
from tests.system.words import Word


@dataclass
class Watched:
    """A server with a metrics page."""

    server: Server
    metrics_port: int
    topology: str

    async def cli(self, *arguments: str) -> Finished:
        return await run_cli(self.server.address, *arguments)

    async def json(self, *arguments: str) -> Any:
        return json.loads((await self.cli(*arguments, "-o", "json")).out)

    async def metric(self, name: str) -> dict[str, float]:
        """The values of a metric of the topology, by labels."""
        page = await asyncio.to_thread(metrics_page, f"127.0.0.1:{self.metrics_port}")
        lines = [line.rpartition(" ") for line in page.splitlines() if line.startswith(name + "{")]
        return {
            labels.removeprefix(name): float(value)
            for labels, _, value in lines
            if f'topology="{self.topology}"' in labels
        }


@asynccontextmanager
async def running(tmp_path: Path, source: str, name: str = "words") -> AsyncIterator[Watched]:
    """A server that runs ``source``, a module of the topology's name."""
    port = free_ports(1)[0]
    server = Server(tmp_path / "db", tmp_path / "server.log", options=("--metrics-port", str(port)))
    try:
        await server.start()
        await submit_source(server, name, source, name)
        yield Watched(server, port, name)
    finally:
        await server.kill()


async def seen(look: Callable[[], Any], what: Callable[[Any], Any]) -> Any:
    """Wait until ``look`` shows ``what``, and return it."""
    return await until(look, patience(30), every=0.2, holds=what)


async def update(watched: Watched, source: str) -> None:
    """Update the topology to another version of its code."""
    path = watched.server.db.parent / f"{watched.topology}.py"
    path.write_text(source)
    done = await watched.cli("topology", "update", f"{path}:{watched.topology}", *WAIT)
    assert done.code == 0, done.err


def has(*parts: str) -> Callable[[Finished], bool]:
    """Whether a command's output contains all of these texts."""
    return lambda shown: all(part in shown.out for part in parts)


PRODUCES = 'ctx.produce("seen", Seen(text, state.times))'
RETRYING = SOURCE.replace("on_failure=mw.dead_letter(after=1)", "on_failure=mw.retry()")
RAISING = RETRYING.replace(
    PRODUCES, f'if text == "fail":\n            raise ValueError("not this one")\n        {PRODUCES}'
)
UNDECLARED = RETRYING.replace('ctx.produce("seen"', 'ctx.produce("sene"')
STOPPING = RAISING.replace("mw.retry()", "mw.stop(after=2)")
SLOW = RETRYING.replace(PRODUCES, f'if text == "slow":\n            time.sleep(3)\n        {PRODUCES}').replace(
    "import msgspec", "import time\n\nimport msgspec", 1
)


@asynccontextmanager
async def spoken(watched: Watched, *texts: str) -> AsyncIterator[Injector]:
    """Send words without waiting for their ACKs."""
    async with Injector("spoken", address=watched.server.address, process="p", topology=program.words) as injector:
        for text in texts:
            await injector.send(Word(text), timestamp=1_000_000)
        await injector.advance(2_000_000)
        try:
            yield injector
        finally:
            await injector.flush()


LOOKS = {
    "watermark": ("watermark", "explain", "words/count"),
    "key": ("key", "inspect", "words/count", "fail"),
    "interval": ("interval", "list", "words"),
    "topology": ("topology", "describe", "words"),
    "health": ("cluster", "health"),
}


@pytest.mark.guarantee("G8", section="4.5")
@pytest.mark.timeout(120)
async def test_a_failing_hook_is_seen_wherever_one_looks(tmp_path: Path) -> None:
    async with running(tmp_path, RAISING) as watched, spoken(watched, "fail", "fine"):
        shown = await asyncio.gather(
            *(
                seen(lambda arguments=arguments: watched.cli(*arguments), has("ValueError: not this one"))  # type: ignore[misc]
                for arguments in LOOKS.values()
            )
        )
        for found in shown:
            for part in ("process_record of key 'fail' raises", "words.py:", "since 20", "attempt"):
                assert part in found.out, found.out
        by_name = dict(zip(LOOKS, shown, strict=True))
        assert by_name["health"].code == 1
        await _in_json(watched)
        failures = await watched.metric("millwheel_hook_failures_total")
        (labels,) = [name for name, value in failures.items() if value]
        assert labels == '{computation="count",hook="process_record",topology="words"}'
        assert list((await watched.metric("millwheel_failing_keys")).values()) == [1.0]
        assert watched.server.log.read_text().count("Traceback") == 1, "once, however often it fails"
        (why,) = await _asked_by_an_injector(watched)
        assert why.blocks
        assert "computation words/count: 1 key is blocked, and its records are not ACKed" in why.text
        await update(watched, RETRYING)
        await _all_is_well(watched)


async def _in_json(watched: Watched) -> None:
    explained = await watched.json("watermark", "explain", "words/count")
    assert "ValueError: not this one" in explained["cause"]["notes"][0]
    assert explained["failing"][0]["oldest"][0]["error"] == "ValueError"
    inspected = (await watched.json("key", "inspect", "words/count", "fail"))["failure"]
    (listed,) = await watched.json("interval", "list", "words/count")
    (described,) = (await watched.json("topology", "describe", "words"))["computations"]
    for found in (inspected, listed["load"]["failures"]["oldest"][0], described["failing"]["oldest"][0]):
        assert (found["key"], found["error"], found["message"]) == ("fail", "ValueError", "not this one")
        assert found["attempts"] >= 1
        assert found["since_us"] <= found["last_us"] < found["next_attempt_us"]
    (hook,) = [one for one in described["hooks"] if one["hook"] == "process_record"]
    assert hook["calls"] >= 2
    assert hook["failures"] >= 1
    assert hook["seconds"] > 0
    (problem,) = [one for one in (await watched.json("cluster", "health"))["problems"] if "ValueError" in one]
    assert "words/count" in problem


async def _asked_by_an_injector(watched: Watched) -> Any:
    async with ControlClient(watched.server.address) as client:
        return await client.hook_failures(stream="spoken")


async def _all_is_well(watched: Watched) -> None:
    for name, arguments in LOOKS.items():
        shown = await seen(lambda arguments=arguments: watched.cli(*arguments), lambda found: "Value" not in found.out)  # type: ignore[misc]
        assert shown.code == 0, (name, shown.out)
    assert await _asked_by_an_injector(watched) == []
    assert set((await watched.metric("millwheel_failing_keys")).values()) == {0.0}


async def test_a_tail_reports_since_when_its_stream_keeps_records(server: Server) -> None:
    await submit(server)
    await speak(server, "before")
    for stream, asked, words in (
        ("spoken", False, "stream spoken had no log yet: its records are kept from now on (20"),
        ("spoken", True, "stream spoken keeps its records since 20"),
        ("seen", True, "stream seen keeps its records since 20"),
        ("seen", False, ""),
    ):
        async with Subscription(stream, start=From.OLDEST, address=server.address) as subscription:
            note = kept_note(subscription, asked)
        assert note.startswith(words), note
        assert bool(note) is bool(words)


@pytest.mark.timeout(120)
async def test_an_error_that_no_retry_can_fix_is_reported_as_such(tmp_path: Path) -> None:
    async with running(tmp_path, UNDECLARED) as watched, spoken(watched, "fail"):
        for arguments in LOOKS.values():
            await seen(
                lambda arguments=arguments: watched.cli(*arguments),  # type: ignore[misc]
                has("UndeclaredStreamError", "(did you mean 'seen'?)", "trying again does not help: fix the code"),
            )
        assert "does not pass by trying again" in watched.server.log.read_text()
        await update(watched, RETRYING)


@pytest.mark.timeout(120)
async def test_a_computation_stopped_by_its_policy_is_seen_everywhere(tmp_path: Path) -> None:
    async with running(tmp_path, STOPPING) as watched, spoken(watched, "fail"):
        for name, arguments in LOOKS.items():
            words = "has stopped by its failure policy"
            found = await seen(lambda arguments=arguments: watched.cli(*arguments), has(words, "ValueError"))  # type: ignore[misc]
            assert "(2 attempts)" in found.out, name
            assert "next attempt" not in found.out, name
            assert "tried again" not in found.out, name
        await update(watched, RETRYING)


@pytest.mark.timeout(120)
async def test_a_hook_that_keeps_the_event_loop_is_named(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW) as watched, spoken(watched, "slow"):
        await seen(lambda: watched.metric("millwheel_hook_blocking_seconds"), lambda found: any(found.values()))
        log = watched.server.log.read_text()
        assert "computation words/count: process_record has kept the event loop for" in log
        assert "now for key 'slow' at words.py:" in log
        assert "time.sleep(3)" in log
        await seen(lambda: watched.metric("millwheel_hook_slow_batches_total"), lambda found: any(found.values()))
        assert "one call of process_record for key 'slow' kept the event loop for" in watched.server.log.read_text()
        table = (await watched.cli("topology", "describe", "words")).out
        assert "process_record" in table
