"""A server whose commands, metrics and log are looked at, as an operator does."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.server import Finished, Server, free_port, run_cli
from tests.system.speaking import submit_source

__all__ = ["Watched", "has", "running", "seen", "update"]

PATIENCE = 30.0
"""Seconds: three times what it may take on a machine that is not busy."""


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
        """By labels the values of a metric of the topology."""
        page = await asyncio.to_thread(_page, self.metrics_port)
        lines = [line.rpartition(" ") for line in page.splitlines() if line.startswith(name + "{")]
        return {
            labels.removeprefix(name): float(value)
            for labels, _, value in lines
            if f'topology="{self.topology}"' in labels
        }


def _page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


@asynccontextmanager
async def running(tmp_path: Path, source: str, name: str = "words") -> AsyncIterator[Watched]:
    """A server that runs ``source``, a module of the topology's name."""
    port = free_port()
    server = Server(tmp_path / "db", tmp_path / "server.log", options=("--metrics-port", str(port)))
    try:
        await server.start()
        await submit_source(server, name, source, name)
        yield Watched(server, port, name)
    finally:
        await server.close()


async def seen(look: Callable[[], Any], what: Callable[[Any], Any], within: float = PATIENCE) -> Any:
    """What ``look`` shows as soon as it shows ``what``; AssertionError if that takes longer than ``within`` seconds."""
    end = time.monotonic() + within
    while True:
        shown = await look()
        if what(shown):
            return shown
        assert time.monotonic() < end, shown
        await asyncio.sleep(0.2)


async def update(watched: Watched, source: str) -> None:
    """Have the topology run another version of its code."""
    path = watched.server.db.parent / f"{watched.topology}.py"
    path.write_text(source)
    done = await watched.cli("topology", "update", f"{path}:{watched.topology}", "--wait", "20")
    assert done.code == 0, done.err


def has(*parts: str) -> Callable[[Finished], bool]:
    """Whether what a command printed has all of these."""
    return lambda shown: all(part in shown.out for part in parts)
