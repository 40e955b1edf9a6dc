"""An interval that an internal error has ended comes back by a takeover, and loses nothing (G1, G3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from millwheel.server.dev_server import DevServer, DevSettings, running
from millwheel.worker.messages import Appended, Delivery
from tests.patience import patience
from tests.system import words as program
from tests.system.server import run_cli
from tests.system.speaking import SOURCE
from tests.system.words import Seen, Word


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[DevServer]:
    """A server in this process, so that tests can damage its internals."""
    async with running(DevSettings(tmp_path / "db", port=0)) as made:
        code = tmp_path / "mended_words.py"
        code.write_text(SOURCE)
        submitted = await run_cli(made.address, "topology", "submit", f"{code}:words")
        assert submitted.code == 0, submitted.err
        for name in ("count.", "words/seen.log.", "words/dead-letters.log."):
            await taken_up(made, name)
        yield made


def break_after(server: DevServer, steps: int, kinds: Sequence[type]) -> str:
    """Let the core of the words' interval raise at the ``steps``-th event of these kinds. Returns its journal."""
    journal = next(name for name in server.worker.hosts.hosted if name.startswith("count."))
    core: Any = server.worker.hosts.hosted[journal].host.core
    step, left = core.step, steps

    def broken(event: Any, now: int) -> Any:
        nonlocal left
        left -= type(event) in kinds
        if left <= 0:
            raise AssertionError("broken on purpose")
        return step(event, now)

    core.step = broken
    return journal


async def taken_up(server: DevServer, prefix: str, above: int = 0) -> None:
    """Wait until an interval whose journal begins with ``prefix`` runs here under a sequencer above ``above``."""
    async with asyncio.timeout(patience(15)):
        while True:
            hosted = (one for name, one in server.worker.hosts.hosted.items() if name.startswith(prefix))
            if any(one.sequencer > above for one in hosted):
                return
            await asyncio.sleep(0.02)


@pytest.mark.guarantee("G1", section="6.2")
@pytest.mark.parametrize("kinds", [(Delivery,), (Appended,)])
async def test_an_interval_restarts_without_loss_after_an_error(server: DevServer, kinds: Sequence[type]) -> None:
    seen: list[Seen] = []
    async with (
        asyncio.timeout(patience(40)),
        Injector("spoken", address=server.address, process="p", topology=program.words) as injector,
        Subscription("seen", cursor="c", record_type=Seen, address=server.address, auto_ack=True) as subscription,
    ):
        await injector.send(Word("w"), timestamp=0, position=0)
        await injector.flush()
        journal = break_after(server, 5, kinds)
        before = server.worker.hosts.hosted[journal].sequencer
        for number in range(1, 200):
            await injector.send(Word("w"), timestamp=number, position=number)
            await asyncio.sleep(0.001)
        await taken_up(server, journal, before)
        await injector.flush()
        async for batch in subscription:
            seen += batch.values
            if len(seen) >= 200:
                break
    assert sorted(one.times for one in seen) == list(range(1, 201)), "each once; deliveries have no order"


@pytest.mark.guarantee("G8")
async def test_productions_go_on_when_their_consumer_has_been_away(server: DevServer) -> None:
    """The log's interval fails. Its senders in this process learn of it, and send again to its next owner."""
    seen: list[Seen] = []
    log = next(name for name, hosted in server.worker.hosts.hosted.items() if hosted.built.log_of == "words/seen")
    before = server.worker.hosts.hosted[log].sequencer
    async with (
        asyncio.timeout(patience(40)),
        Injector("spoken", address=server.address, process="p", topology=program.words) as injector,
    ):
        await injector.send(Word("w"), timestamp=0, position=0)
        await injector.flush()
        broken: Any = server.worker.hosts.hosted[log].host.core

        def fail(event: Any, now: int) -> Any:
            raise AssertionError("broken on purpose")

        broken.step = fail
        for number in range(1, 50):
            await injector.send(Word("w"), timestamp=number, position=number)
        await injector.flush()
        await taken_up(server, log, before)
        async with Subscription("seen", cursor="c", record_type=Seen, address=server.address) as subscription:
            async for batch in subscription:
                seen += batch.values
                if len(seen) >= 50:
                    break
    assert sorted(one.times for one in seen) == list(range(1, 51))
