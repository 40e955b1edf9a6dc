"""A server stops on request, cleanly and at once. Later it continues from the same state."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from tests.system import words as program
from tests.system.server import Server
from tests.system.speaking import read, speak, submit
from tests.system.words import Seen, Word

LEASE = 10.0
"""Seconds that the roles of a development server may stand still."""


async def test_sigterm_ends_an_idle_server_at_once_with_code_0(server: Server) -> None:
    assert await server.stop() == 0


async def test_sigterm_under_load_ends_the_server_and_loses_nothing(server: Server) -> None:
    await submit(server)
    async with (
        Subscription("seen", cursor="test", record_type=Seen, address=server.address, auto_ack=True) as subscription,
        Injector("spoken", address=server.address, process="p", topology=program.words) as injector,
    ):
        sending = asyncio.create_task(flood(injector, 20_000))
        await asyncio.sleep(0.3)
        assert await server.stop() == 0, server.tail()
        await server.start()
        await sending
        await injector.flush()
        times: dict[str, int] = {}
        async for batch in subscription:
            for seen in batch.values:
                times[seen.text] = times.get(seen.text, 0) + 1
                assert seen.times == times[seen.text], "each once, in order"
            if sum(times.values()) == 20_000:
                break
    assert len(times) == 100
    assert "Traceback" not in server.tail(1_000_000)


async def flood(injector: Injector, count: int) -> None:
    for first in range(0, count, 100):
        numbers = range(first, first + 100)
        await injector.send_many([Word(f"w{n % 100}") for n in numbers], list(numbers), positions=list(numbers))
        await asyncio.sleep(0.002)


@pytest.mark.guarantee("G1", section="6.2")
async def test_a_server_paused_beyond_its_lease_repeats_nothing(
    server: Server,
) -> None:
    await submit(server)
    async with Injector("spoken", address=server.address, process="p", topology=program.words) as injector:
        await injector.send(Word("word"), timestamp=1_000_000)
        await injector.flush()
        server.process.send_signal(signal.SIGSTOP)
        sending = asyncio.create_task(injector.send_many([Word("word")] * 100, [1_000_000] * 100))
        await asyncio.sleep(LEASE + 1.0)
        server.process.send_signal(signal.SIGCONT)
        await sending
        await injector.flush()
    assert "the lease has ended" not in server.tail(1_000_000), "all its roles stood still together"
    assert [seen.times for seen in await read(server, "seen", Seen, 101)] == list(range(1, 102))


async def test_sigint_is_as_good(tmp_path: Path) -> None:
    server = Server(tmp_path / "db", tmp_path / "server.log")
    try:
        await server.start()
        await submit(server)
        await speak(server, "one")
        server.process.send_signal(signal.SIGINT)
        assert await server.ended() == 0
        await server.start()
        await speak(server, "one", "one")
        assert await read(server, "seen", Seen, 2) == [Seen("one", 1), Seen("one", 2)]
    finally:
        await server.kill()
