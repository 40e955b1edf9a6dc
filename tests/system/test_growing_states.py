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


async def _send(address: str, texts: list[str]) -> None:
    async with Injector("texts", address=address, process="reader") as injector:
        for text in texts:
            await injector.send(text, timestamp=START)
        await injector.flush()
