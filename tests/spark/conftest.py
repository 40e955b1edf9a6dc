"""One Spark session for all tests here, and a fresh server for each."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from millwheel.injectors.spark import MillwheelDataSource
from tests.spark.faults import VARIABLE, Faulty, disarm
from tests.spark.jobs import session
from tests.spark.server import TripServer

ROOT = str(Path(__file__).parents[2])


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session whose tasks are tried four times; registers the sink, and the one with accidents."""
    with pytest.MonkeyPatch.context() as environment, warnings.catch_warnings():
        environment.setenv(VARIABLE, str(tmp_path_factory.mktemp("faults")))
        environment.setenv("PYTHONPATH", ROOT)
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        warnings.simplefilter("ignore")
        found = session()
        found.dataSource.register(MillwheelDataSource)
        found.dataSource.register(Faulty)
        yield found
        found.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TripServer]:
    """A server that lives for one test."""
    with TripServer(tmp_path) as running:
        yield running


@pytest.fixture
def accidents(spark: SparkSession) -> Iterator[None]:
    """Sees that every accident that a test arms has happened."""
    disarm()
    yield
    assert not disarm(), "an accident was to happen, and has not"
