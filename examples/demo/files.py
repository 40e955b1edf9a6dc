"""The input files of the Spark job: the flights in one file for each day on which they became known."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from examples.zeitgeist.clock import NEW_YORK

__all__ = ["write_files"]


def write_files(flights: pd.DataFrame, place: Path) -> int:
    """Write ``flights`` (ordered by ``known``) to ``place``. Return the number of files.

    Spark reads files in the order of their modification times, so each file gets a different time.
    """
    place.mkdir(parents=True)
    known = pd.to_datetime(flights["known"], unit="us", utc=True).dt.tz_convert(NEW_YORK)
    days = list(flights.groupby(known.dt.date, sort=True))
    for number, (day, left) in enumerate(days):
        path = place / f"{day}.parquet"
        left.to_parquet(path, index=False)
        os.utime(path, (1_400_000_000 + number, 1_400_000_000 + number))
    return len(days)
