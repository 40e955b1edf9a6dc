"""A development server of one's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from millwheel.server.dev_server import DevServer, DevSettings, running
from tests.injectors import injected_shop
from tests.submitting import submit_copy

SHOP = Path(injected_shop.__file__)
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
    await submit_copy(address, injected_shop.__file__, name, directory)
