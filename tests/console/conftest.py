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
from tests.submitting import submit_copy

Start = Callable[[str], Awaitable[None]]
Inject = Callable[..., Awaitable[None]]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[DevServer]:
    """All roles in this process, with two intervals for each computation."""
    async with running(DevSettings(db=tmp_path / "db", port=0, intervals=2, ui_port=0)) as started:
        yield started


@pytest.fixture
def start(server: DevServer, tmp_path: Path) -> Start:
    """Runs a topology of :mod:`tests.console.shop`."""

    async def submit(name: str) -> None:
        await submit_copy(server.address, shop.__file__, name, tmp_path)

    return submit


@pytest.fixture
async def inject(server: DevServer) -> AsyncIterator[Inject]:
    """Injects a record for each customer. Its process stays until the test ends, so that its watermark is published.

    ``to``: its low watermark. 0: now. None: it has none.
    """
    opened: list[Injector] = []

    async def send(*customers: str, process: str = "p", to: int | None = 0) -> None:
        injector = Injector("shop/orders", process=process, address=server.address, topology=shop.shop)
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
