"""A development server of one's own."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from millwheel.cli.loading import load
from millwheel.client.control import ControlClient
from millwheel.server.dev_server import DevServer, DevSettings, running

SHOP = Path(__file__).with_name("injected_shop.py")
Submit = Callable[[str], Awaitable[None]]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[DevServer]:
    """All roles in this process, three intervals per computation."""
    async with running(DevSettings(db=tmp_path / "db", port=0, intervals=3)) as started:
        yield started


@pytest.fixture
def submit(server: DevServer, tmp_path: Path) -> Submit:
    """Runs a topology of :mod:`tests.injectors.injected_shop`."""

    return lambda name: submit_to(server.address, name, tmp_path)


async def submit_to(address: str, name: str, directory: Path) -> None:
    """Run a topology of :mod:`tests.injectors.injected_shop` on any server."""
    # Out of the tests' package, for only the module itself is the topology's code.
    copy = shutil.copy(SHOP, directory)
    packaged = load(f"{copy}:{name}")
    async with ControlClient(address) as client:
        await client.upload_package(packaged.package.digest, packaged.package.data)
        await client.submit(packaged.spec())
