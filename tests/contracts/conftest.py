"""Fixtures of the contract suites: every test runs once for each implementation.

Names are fresh for each test, so that an implementation may keep its data between tests.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millwheel.coordination.contract import Coordinator
from millwheel.store.contract import StateStore
from tests.contracts.implementations import (
    COORDINATORS,
    DURABLE_COORDINATORS,
    DURABLE_STORES,
    STORES,
    OpenCoordinator,
    OpenStore,
    params,
)


@pytest.fixture(params=params(STORES))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StateStore]:
    async with STORES[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture(params=params(DURABLE_STORES))
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    return DURABLE_STORES[request.param]


@pytest.fixture(params=COORDINATORS)
async def coordinator(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Coordinator]:
    async with COORDINATORS[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture(params=DURABLE_COORDINATORS)
def open_coordinator(request: pytest.FixtureRequest) -> OpenCoordinator:
    return DURABLE_COORDINATORS[request.param]


@pytest.fixture
def journal() -> str:
    """A journal id that was never used."""
    return f"window-counter.17.j{uuid.uuid4().hex}"


@pytest.fixture
def computation() -> str:
    """A computation's incarnation id that was never used."""
    return f"window-counter.{uuid.uuid4().hex}"


@pytest.fixture
def prefix() -> str:
    """A prefix of coordinator keys that was never used."""
    return f"test/{uuid.uuid4().hex}/"
