"""A development server with a console, and what runs on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.client.injector import Injector
from millwheel.rpc.clock import wall_now
from millwheel.server.dev_server import DevServer, DevSettings, running
from tests.console import shop
from tests.console.browser import Page, browsing
from tests.submitting import submit_copy

Start = Callable[[str], Awaitable[None]]
Inject = Callable[..., Awaitable[None]]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[DevServer]:
    """All roles in this process, with two intervals for each computation."""
    async with running(DevSettings(db=tmp_path / "db", port=0, intervals=2, ui_port=0)) as started:
        yield started


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    """A page of a new browser. The test fails if the browser complained of something."""
    async with browsing(tmp_path / "browser") as opened:
        yield opened
        assert opened.errors == []


@pytest.fixture
def start(server: DevServer, tmp_path: Path) -> Start:
    """Runs a topology of :mod:`tests.console.shop`."""

    async def submit(name: str) -> None:
        await submit_copy(server.address, shop.__file__, name, tmp_path)

    return submit


@pytest.fixture
async def inject(server: DevServer) -> AsyncIterator[Inject]:
    """Injects a record for each customer. Its process stays until the test ends, so that its watermark is published.

    ``to``: its low watermark. 0: now. None: it has none. ``into``: the stream, if it is not ``shop/orders``.
    """
    opened: list[Injector] = []

    async def send(*customers: str, process: str = "p", to: int | None = 0, into: str = "shop/orders") -> None:
        topology = getattr(shop, into.partition("/")[0])
        injector = Injector(into, process=process, address=server.address, topology=topology)
        await injector.open()
        opened.append(injector)
        for customer in customers:
            await injector.send(shop.Order(customer, 5), timestamp=mw.Timestamp(wall_now()))
        if to is not None:
            await injector.advance(mw.Timestamp(to or wall_now()))
        await injector.flush()

    yield send
    for injector in opened:
        await injector.close()
