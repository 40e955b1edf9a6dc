"""The input files of the Spark job: the flights in the order of the weeks in which they became known."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from examples.zeitgeist.clock import NEW_YORK

__all__ = ["write_files"]


def write_files(flights: pd.DataFrame, place: Path, weeks: int = 1) -> int:
    """Write ``flights`` (ordered by ``known``) to ``place``. Return the number of files.

    Spark reads files in the order of their modification times, so each file gets a different time.

    Args:
        flights: The flights.
        place: A folder, which is made.
        weeks: How many weeks a file has.
    """
    place.mkdir(parents=True)
    known = pd.to_datetime(flights["known"], unit="us", utc=True).dt.tz_convert(NEW_YORK)
    days = (known.dt.tz_localize(None).dt.normalize() - known.iloc[0].tz_localize(None).normalize()).dt.days
    parts = list(flights.groupby(days // (7 * weeks), sort=True))
    for number, (_, left) in enumerate(parts):
        path = place / f"part-{number:02}.parquet"
        left.to_parquet(path, index=False)
        os.utime(path, (1_400_000_000 + number, 1_400_000_000 + number))
    return len(parts)
