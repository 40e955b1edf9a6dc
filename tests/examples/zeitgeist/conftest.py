"""The flights, read once."""

from __future__ import annotations

import pandas as pd
import pytest

from examples.zeitgeist.flights import load_flights, load_table


@pytest.fixture(scope="session")
def table() -> pd.DataFrame:
    return load_table()


@pytest.fixture(scope="session")
def flights(table: pd.DataFrame) -> pd.DataFrame:
    return load_flights(table)


@pytest.fixture(scope="session")
def winter(flights: pd.DataFrame) -> pd.DataFrame:
    """What left up to the middle of March: the blizzard, four spikes, and the day on which the clocks change."""
    return flights[flights["known"] < pd.Timestamp("2013-03-15", tz="UTC").value // 1_000]
