"""Every command prints with -o json what docs/json-output.md says, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from millwheel.cli.cluster import plain_health
from millwheel.cli.column_use import plain_columns
from millwheel.cli.connector_rows import connector_row
from millwheel.cli.dead_letter_rows import plain_replay
from millwheel.cli.event import plain_event
from millwheel.cli.failing import describe
from millwheel.cli.hooks import plain_failures
from millwheel.cli.interval import plain_status
from millwheel.cli.main import app
from millwheel.cli.output import JSON_FORMAT
from millwheel.client.control import ControlClient
from millwheel.client.dead_letters import ReplayReport
from millwheel.client.dead_letters.reports import RefusedLetter
from millwheel.client.injector import Injector
from millwheel.rpc.clock import wall_now
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2, cluster_pb2, common_pb2, interval_pb2
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.sdk.errors import Problem
from tests.cli.json_page import PAGE, named, read_page
from tests.cli.test_connectors import announce
from tests.cli.test_help import commands
from tests.patience import until
from tests.system.server import Server, run_cli

PLAIN = {"any", "boolean", "integer", "number", "text", "time"}
PROGRAM = """
import msgspec
import millwheel as mw

class Word(msgspec.Struct):
    text: str

class Count(mw.Computation[Word, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Word]) -> None:
        ctx.state += 1
        ctx.produce("seen", record.value)
        ctx.set_timer(mw.Timestamp(4_000_000_000_000_000), "later", hold=mw.Timestamp(3_000_000_000_000_000))
        if record.value.text == "fail":
            raise ValueError("no")

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        pass

class Strict(mw.Computation[Word, None]):
    def process_record(self, ctx: mw.Context[None], record: mw.Record[Word]) -> None:
        if record.value.text == "poison":
            raise ValueError("no")

GIVES_UP = mw.dead_letter(after=1)

words = mw.Topology("words")
words.source("spoken", Word)
words.stream("seen", Word, retention=mw.Retention(age=mw.days(7)))
words.add(Count, inputs={"spoken": mw.key("text")}, outputs=["seen"], on_failure=mw.retry())
words.add(Strict, inputs={"spoken": mw.key("text")}, on_failure=GIVES_UP)

more = mw.Topology("words")
more.source("spoken", Word)
more.stream("seen", Word, retention=mw.Retention(age=mw.days(7)))
more.add(Count, inputs={"spoken": mw.key("text")}, outputs=["seen"], on_failure=mw.retry())
more.add(Strict, inputs={"spoken": mw.key("text")}, on_failure=GIVES_UP)
more.add(Count, name="again", inputs={"spoken": mw.key("text")}, outputs=["seen"], on_failure=mw.retry())
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(tmp_path / "db", tmp_path / "server.log") as made:
        yield made


def test_the_page_names_every_command_and_uses_every_form() -> None:
    page = read_page()
    printing = {
        path
        for path, command in commands(typer.main.get_command(app))
        for one in command.params
        if "--output" in one.opts and path != "topology graph"
    }
    assert {command.partition(" --")[0] for command in page.commands} == printing
    used = {named(kind) for fields in page.forms.values() for kind in fields.values()}
    used |= {named(kind) for kind in page.commands.values()} | {"error", "injector state"}
    assert used - PLAIN == page.forms.keys()
    assert f"**format {JSON_FORMAT}**" in PAGE.read_text()


class Printing:
    """Runs commands in this process, and compares what they print with the page."""

    def __init__(self, address: str) -> None:
        self.page = read_page()
        self.ran: set[str] = set()
        self._address = address

    async def __call__(self, command: str, *words: str, failing: int = 0) -> Any:
        """Run the command of that name in the page with more words, and return what it prints."""
        line = [*command.split(), *words, "-o", "json"]
        out = await self._out(line, failing)
        kind = self.page.commands[command]
        lines = out.splitlines() if command == "stream tail" else [out]
        printed = [json.loads(one) for one in lines]
        assert printed, line
        for value in printed:
            self.page.check(value, kind, command)
        self.ran.add(command)
        return printed[0]

    async def _out(self, line: list[str], failing: int) -> str:
        if line[0] == "inject":  # it handles signals, which only the main thread of a process can
            finished = await run_cli(self._address, *line)
            assert finished.code == failing, finished.err
            return finished.out
        done = await asyncio.to_thread(CliRunner().invoke, app, line, env={"MILLWHEEL_ADDRESS": self._address})
        assert done.exit_code == failing, (line, done.output, done.exception)
        return done.stdout


async def test_every_command_prints_what_the_page_says(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Printing(server.address)
    announce(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    await run("connectors list")
    assert await run("connectors show") == []
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words, more = f"{program}:words", f"{program}:more"
    assert (await run("version"))["json_format"] == JSON_FORMAT
    await run("config show")
    await run("certificates create", str(tmp_path / "certificates"), "--host", "alpha")
    await run("certificates show", str(tmp_path / "certificates" / "worker.alpha.pem"))
    await run("topology submit", words, "--wait", "60")
    await run("topology quota", "words", "--weight", "2", "--intervals", "64")
    await run("topology validate", words)
    await run("topology validate --update", more)
    await run("topology update", more, "--wait", "60")
    for _ in ("back", "and forth"):
        await run("topology rollback", "words", "--yes", "--wait", "60")
    await run("computation remove", "words/again", "--yes", "--wait", "60")
    await run("computation add", "words/again", more, "--wait", "60")
    await _look_at_records(run, tmp_path)
    await _look_at_letters(run)
    await _look_at_failures(run, server)
    await _look_at_the_rest(run, server)
    place = str(tmp_path / "snapshots")
    await run("snapshot create", "words", "--to", place, "--name", "s")
    await run("snapshot list", place)
    for verb in ("show", "verify"):
        await run(f"snapshot {verb}", place, "s")
    await run("snapshot states", place, "s", "words/count", "--to", str(tmp_path / "states.parquet"))
    await run("snapshot create", "words", "--to", place, "--name", "t")
    await run("snapshot delete", place, "t", "--yes")
    for command in ("pause", "resume", "drain --yes", "cancel --yes"):
        verb, *options = command.split()
        await run(f"topology {verb}", "words", *options)
    await run("snapshot restore", place, "s", "--paused")
    await run("snapshot restore", place, "s", "--as", "fork")
    assert (await run("topology describe", "fork"))["fork"]["topology"] == "words"
    await run("computation remove", "fork/again", "--yes", "--wait", "60")
    await run("computation add", "fork/again", more, "--wait", "60")
    _check_what_is_rare(run)
    assert run.ran == run.page.commands.keys()
    assert run.page.seen == run.page.forms.keys()


async def _look_at_records(run: Printing, place: Path) -> None:
    lines = place / "lines.jsonl"
    lines.write_text('{"text": "a"}\n')
    await run("inject file", "spoken", str(lines), "--process", "file")
    await run("stream produce", "spoken", '{"text": "b"}', "--process", "one")
    await run("stream tail", "seen", "--cursor", "c", "-n", "1")
    await run("stream cursors list", "seen")
    await run("stream table", "seen", "--key", "text")
    await run("stream list")
    await run("key list", "words/count")
    await run("timer list", "words/count")
    assert (await run("key inspect", "words/count", "a"))["timers"]


async def _look_at_letters(run: Printing) -> None:
    await run("stream produce", "spoken", '{"text": "poison"}', "--process", "two")
    await until(lambda: run("dead-letter list", "words", "--state", "all"), holds=lambda one: one)
    shown = await run("dead-letter show", "words", "0")
    replayed = await run("dead-letter replay", "words", f"0@{shown['log']}", failing=1)
    assert (replayed["replayed"], replayed["failed_again"]) == ([0], [0]), "the code is the same"
    await run("dead-letter discard", "words", "--all", "--yes")


async def _look_at_failures(run: Printing, server: Server) -> None:
    injector = Injector("spoken", address=server.address, process="p")
    await injector.open()
    try:
        await injector.send({"text": "fail"}, timestamp=wall_now())

        async def failing() -> Any:
            return (await run("key inspect", "words/count", "fail"))["failure"]

        await until(failing)
        await until(lambda: _described(run), holds=lambda one: one["failing"])
        await until(lambda: run("watermark explain", "words/count"), holds=lambda one: one["chain"] and one["failing"])
        await run("watermark show")
        await run("watermark show --percentile", "99")
        await run("cluster health", failing=1)
    finally:
        await injector.close()


async def _described(run: Printing) -> Any:
    return next(one for one in (await run("topology describe", "words"))["computations"] if one["name"] == "count")


async def _look_at_the_rest(run: Printing, server: Server) -> None:
    nouns = ("topology", "computation", "worker", "interval", "injector", "event")
    for command in (f"{noun} list" for noun in nouns):
        await run(command)
    (interval,) = await _intervals(run)
    await run("interval move", interval["journal"], "--to", interval["owner"])
    await run("interval split", interval["journal"], "--at", "m")
    await until(lambda: _intervals(run), holds=lambda found: not any(one["parents"] for one in found), every=0.2)
    await run("interval merge", "words/again", "--key", "a")
    await run("injector advance", "spoken", "one", "--to", "now", "--yes")
    for verb in ("finish", "retire"):
        await run(f"injector {verb}", "spoken", "one", "--yes")
    async with ControlClient(server.address) as client:
        await client.commit_batch("query", 3)
    await run("injector queries")
    await run("injector retire-query", "query", "--yes")


async def _intervals(run: Printing) -> list[Any]:
    return [one for one in await run("interval list", "words") if one["computation"] == "again"]


def _check_what_is_rare(run: Printing) -> None:
    """What a server shows only after minutes, under load, or with other settings."""
    use = wire.ComputationColumns(inputs=[wire.InputColumns(stream="words/spoken", by_values="its key is code")])
    taken = wire.HookTime(hook="process_record", calls=4, by_columns=3)
    shown = plain_columns(use, [taken])
    run.page.check(shown, "column use", "topology describe")
    assert shown is not None
    assert shown["share_by_columns"] == 0.75
    reads = cluster_pb2.ComputationOverview(name="a-reader", connector=cluster_pb2.CONNECTOR_PART_READS)
    row = connector_row("words", reads, cluster_pb2.ComputationOverview(), [])
    run.page.check(row, "running connector", "connectors show")
    waiting = [common_pb2.WaitingRecords(process="p", oldest_us=1)]
    failures = wire.HookFailures(
        awaited=[wire.AwaitedHook(key=b"k")], key_functions=[wire.KeyFunctionFailure(waiting=waiting)]
    )
    run.page.check(plain_failures(failures), "failures", "failures")
    hot = interval_pb2.IntervalStatus(hot_keys=[wire.KeyLoad(key=b"\xff", share=0.5)])
    run.page.check(plain_status(hot), "listed interval", "interval list")
    moved = catalog_pb2.EventRecord(owners=[catalog_pb2.OwnerChange(before="a", after="b", intervals=1)])
    run.page.check(plain_event(moved), "event", "event list")
    replay = ReplayReport(refused=[RefusedLetter(1, "a timer")])
    run.page.check(plain_replay(replay), "replay report", "dead-letter replay")
    health = cluster_pb2.GetClusterHealthResponse(
        hot_keys=[cluster_pb2.HotKey(key=b"k")], departed=[cluster_pb2.DepartedWorker(worker_id="w")]
    )
    run.page.check(plain_health(health, {"words": 1}), "health", "cluster health")
    error = RequestError(FailureCode.NOT_FOUND, "no x", problems=[Problem("a", "b")])
    run.page.check(describe(error), "error", "error")
