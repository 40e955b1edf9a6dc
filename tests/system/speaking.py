"""Common steps of the tests of the words topology."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from tests.patience import patience
from tests.submitting import submit_copy
from tests.system import words as program
from tests.system.server import Server, run_cli
from tests.system.words import Word

SOURCE = Path(program.__file__).read_text()
"""The source code of the words topology. Tests vary it."""


async def submit(server: Server) -> None:
    """Submit the words topology as its own package, without the tests' package."""
    await submit_copy(server.address, program.__file__, "words", server.db.parent)


async def submit_source(server: Server, name: str, source: str, attribute: str = "words") -> None:
    """Submit a program as a module ``name``."""
    path = server.db.parent / f"{name}.py"
    path.write_text(source)
    submitted = await run_cli(server.address, "topology", "submit", f"{path}:{attribute}")
    assert submitted.code == 0, submitted.err


async def speak(server: Server, *spoken: str, stream: str = "spoken", process: str = "p", first: int = 0) -> None:
    """Inject words, and wait for their ACKs. The injector process stays open for more words."""
    topology = program.words if stream == "spoken" else None
    async with (
        asyncio.timeout(patience(30)),
        Injector(stream, address=server.address, process=process, topology=topology) as injector,
    ):
        for number, text in enumerate(spoken, first):
            keys = None if topology else {"count": [text]}
            await injector.send_many([Word(text)], [number + 1], positions=[number], keys=keys)


async def read(server: Server, stream: str, kind: Any, count: int) -> list[Any]:
    """The first ``count`` records of a stream."""
    found: list[Any] = []
    async with (
        asyncio.timeout(patience(30)),
        Subscription(stream, cursor="test", record_type=kind, address=server.address) as subscription,
    ):
        async for batch in subscription:
            found += batch.values
            if len(found) >= count:
                return found
    raise AssertionError("the stream ended")
