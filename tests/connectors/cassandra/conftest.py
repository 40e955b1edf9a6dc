"""The table, and a session to look at it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Cluster

from millwheel.store.cassandra.session import connect
from tests.components import cassandra, cassandra_settings
from tests.connectors.cassandra.given import TABLES, Shop


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A node takes its time to start."""
    for item in items:
        if "tests/connectors/cassandra" in str(item.path) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="package")
def driver() -> Iterator[Any]:
    """The superuser's session."""
    cluster, session = connect(cassandra_settings(cassandra(), "sink_tests"), Cluster.connection_class)
    try:
        for statement in TABLES:
            session.execute(statement)
        yield session
    finally:
        cluster.shutdown()


@pytest.fixture
def shop(driver: Any, tmp_path: Path) -> Shop:
    return Shop(f"t{uuid.uuid4().hex}", tmp_path, driver)
