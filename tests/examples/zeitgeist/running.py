"""Runs the example's topology over some flights in virtual time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

import millwheel as mw
from examples.zeitgeist.clock import day_of
from examples.zeitgeist.records import Anomaly, Departure
from examples.zeitgeist.topology import build
from millwheel.testing.harness import TopologyHarness

HOUR = 3_600_000_000
DAY = 24 * HOUR


def departures(flights: pd.DataFrame) -> list[tuple[Departure, mw.Timestamp]]:
    """The flights as records with their timestamps."""
    columns = [flights[name].tolist() for name in ("origin", "city", "dest", "carrier", "flight", "delay")]
    records = [Departure(*fields) for fields in zip(*columns, strict=True)]
    return list(zip(records, flights["scheduled"].tolist(), strict=True))


def end_of(flights: pd.DataFrame) -> mw.Timestamp:
    """Three hours after the last flight's hour. The hours after the data are counted as well."""
    return mw.Timestamp(int(flights["scheduled"].max()) // HOUR * HOUR + 4 * HOUR)


class Run:
    """One run over ``flights``, in the order in which they are sent."""

    def __init__(self, flights: pd.DataFrame, *, cuts: Iterable[str] = (), until: mw.Timestamp | None = None) -> None:
        self.flights = flights
        self.until = end_of(flights) if until is None else until
        self.harness = TopologyHarness(build(self.until), split_at=cuts)

    def feed(self, *, batch: int, watermarks: bool = True, crash_every: int = 0) -> None:
        """Send all flights, ``batch`` at once, with a watermark after each batch or with none."""
        records = departures(self.flights)
        # By the number of records sent, the earliest timestamp still to come. The watermark stays at the midnight
        # before it: at a day's end, several airports have records of one time.
        to_come = np.minimum.accumulate(self.flights["scheduled"].to_numpy()[::-1])[::-1].tolist()
        for number, start in enumerate(range(0, len(records), batch), 1):
            self.harness.send_all("departures", records[start : start + batch])
            if watermarks and start + batch < len(records):
                self.harness.advance(mw.Timestamp(day_of(to_come[start + batch]).start))
            if crash_every and number % crash_every == 0:
                self.harness.crash()

    def finish(self) -> list[Anomaly]:
        """End the source. Returns the anomalies."""
        self.harness.finish()
        assert self.harness.failures == []
        return sorted(self.harness.values("anomalies"))
