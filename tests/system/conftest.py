"""A server of its own for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.system.server import Server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A server that is ready, on a database of its own; nothing of it is left afterwards."""
    async with Server(tmp_path / "db", tmp_path / "server.log") as made:
        yield made
