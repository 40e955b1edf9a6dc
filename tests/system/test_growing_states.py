"""A state that grows, on a server with a small cache that is stopped and started again (4.4; G1, G12)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

import millwheel as mw
from millwheel.cli.loading import load
from millwheel.cli.main import app
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.client.states import StateReader
from millwheel.client.subscription import Subscription
from millwheel.server.dev_server import DevSettings, running
from millwheel.worker.interval import IntervalSettings
from tests.system.server import WAIT, Finished, Server, run_cli

START = mw.Timestamp(1_700_000_000_000_000)
RECORDS = 3_000
PROGRAM = """
import millwheel as mw


class Seen(mw.GrowingState):
    count: int = 0
    texts: mw.ListState[str]
    lengths: mw.MapState[str, int]


class Remember(mw.Computation[str, Seen]):
    def process_record(self, ctx: mw.Context[Seen], record: mw.Record[str]) -> None:
        state, text = ctx.state, record.value
        if text.startswith("ask"):
            known = sum(state.lengths[one] == len(one) for one in state.texts)
            ctx.produce("answers", f"{state.count} {len(state.texts)} {known} {state.texts[0]} {state.texts[-1]}")
        elif text not in state.lengths:
            state.count += 1
            state.texts.append(text)
            state.lengths[text] = len(text)


topology = mw.Topology("memory")
topology.source("texts", str)
topology.add(Remember, inputs={"texts": mw.key(lambda text: "all")}, outputs={"answers": str})
"""


LATER = """
import msgspec

import millwheel as mw


class Text(msgspec.Struct):
    text: str
    length: int


def with_length(text: str) -> Text:
    return Text(text, len(text))


class Seen(mw.GrowingState):
    total: int = 0
    texts: mw.ListState[Text] = mw.migrated(with_length)
    lengths: mw.Dropped


class Remember(mw.Computation[str, Seen]):
    state_version = 2

    def migrate(self, stored: mw.StoredState) -> Seen:
        state = Seen()
        state.total = stored.plain()["count"]
        return state

    def process_record(self, ctx: mw.Context[Seen], record: mw.Record[str]) -> None:
        state, text = ctx.state, record.value
        if text.startswith("ask"):
            known = sum(one.length == len(one.text) for one in state.texts)
            ctx.produce("answers", f"{state.total} {len(state.texts)} {known} {state.texts[0].text}")
        else:
            state.total += 1
            state.texts.append(Text(text, len(text)))


topology = mw.Topology("memory")
topology.source("texts", str)
topology.add(Remember, inputs={"texts": mw.key(lambda text: "all")}, outputs={"answers": str})
"""


class Shown(msgspec.Struct):
    """A part of the state, from a look-up."""

    count: int
    texts: dict[str, int]


@pytest.mark.guarantee("G12", section="4.4")
async def test_a_growing_state_is_there_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.py").write_text(PROGRAM)
    settings = IntervalSettings(flush_interval=10_000, checkpoint_entries=20, cache_bytes=100_000)
    monkeypatch.setattr("millwheel.server.dev_server.IntervalSettings", lambda **_: settings)
    texts = [f"text {number} {'x' * (number % 60)}" for number in range(RECORDS)]
    first, second = texts[: RECORDS // 2], [*texts[RECORDS // 2 :], *texts[:50], "ask"]
    async with running(DevSettings(tmp_path / "db", port=0)) as server:
        packaged = load(f"{tmp_path / 'memory.py'}:topology")
        async with ControlClient(server.address) as client:
            await client.upload_package(packaged.package.digest, packaged.package.data)
            await client.submit(packaged.spec())
        await _send(server.address, first)
    async with running(DevSettings(tmp_path / "db", port=0)) as server:
        await _send(server.address, second)
        async with Subscription("answers", cursor="test", record_type=str, address=server.address) as answers:
            batch = await anext(aiter(answers))
        async with StateReader("memory/remember", Shown, address=server.address) as states:
            looked_up = await states.get_many(["all", "none"])
        command = ["key", "inspect", "memory/remember", "all", "-o", "json", "--address", server.address]
        shown = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert batch.values == [f"{RECORDS} {RECORDS} {RECORDS} {texts[0]} {texts[-1]}"]
    assert looked_up == {"all": Shown(RECORDS, {"elements": RECORDS, "page_levels": 2})}
    state = json.loads(shown.stdout)["state"]
    assert (state["count"], state["texts"]["elements"], state["lengths"]["elements"]) == (RECORDS,) * 3


@pytest.mark.guarantee("G1", section="4.4")
async def test_a_growing_state_outlives_an_update(server: Server) -> None:
    async def run(*command: str) -> Finished:
        return await run_cli(server.address, "topology", *command)

    first, later = (server.db.parent / name / "memory.py" for name in ("first", "later"))
    for path, source in ((first, PROGRAM), (later, LATER)):
        path.parent.mkdir()
        path.write_text(source)
    assert (done := await run("submit", f"{first}:topology", *WAIT)).code == 0, done.err
    await _send(server.address, [f"text {number}" for number in range(600)])
    assert (done := await run("update", f"{later}:topology", *WAIT)).code == 0, done.err
    await _send(server.address, ["more"])
    await server.kill()
    await server.start()
    await _send(server.address, ["ask"])
    async with Subscription("answers", cursor="test", record_type=str, address=server.address) as answers:
        assert (await anext(aiter(answers))).values == ["601 601 601 text 0"]
    back = await run("update", f"{first}:topology")
    assert back.code == 5
    assert "field 'texts' was migrated by with_length, and is by nothing" in back.err
    assert "field 'lengths' was dropped" in back.err


async def _send(address: str, texts: list[str]) -> None:
    async with Injector("texts", address=address, process="reader") as injector:
        for text in texts:
            await injector.send(text, timestamp=START)
        await injector.flush()
