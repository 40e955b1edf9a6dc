"""The same anomalies, computed from the whole table in pandas. The stream's results must be equal to them."""

from __future__ import annotations

import pandas as pd

from examples.zeitgeist.records import Anomaly

__all__ = ["anomalies", "delay_by_day", "traffic_by_hour"]

_HOUR = pd.Timedelta(hours=1)
_ZONE = "America/New_York"


def anomalies(flights: pd.DataFrame, until: int) -> list[Anomaly]:
    """The anomalies of ``flights`` (columns origin, city, scheduled, delay), sorted. Hours count up to ``until``."""
    traffic = traffic_by_hour(flights, until)
    return sorted([*_dips(traffic), *_spikes(flights, until)])


def traffic_by_hour(flights: pd.DataFrame, until: int) -> pd.DataFrame:
    """Departures by airport and local hour, from each airport's first hour on. ``expected`` is the model (NaN: none).

    The index is (origin, start). New York's offset is whole hours, so its hours are also hours of UTC.
    """
    starts = _moments(flights["scheduled"]).dt.floor("h")
    counts = flights.groupby(["origin", starts]).size()
    by_airport = {}
    for airport, count in counts.groupby(level=0):
        hours = pd.date_range(count.index[0][1], _moment(until), freq="h", inclusive="left")
        by_airport[airport] = count.droplevel(0).reindex(hours, fill_value=0)
    traffic = pd.concat(by_airport, names=["origin", "start"]).to_frame("departures").reset_index()
    traffic["start"] = traffic["start"].dt.tz_convert(_ZONE)
    slots = [traffic["origin"], traffic["start"].dt.day_of_week, traffic["start"].dt.hour]
    traffic["expected"] = traffic.groupby(slots)["departures"].transform(
        lambda week: week.shift(1).rolling(6, min_periods=4).quantile(0.5, interpolation="lower")
    )
    return traffic.set_index(["origin", "start"])


def delay_by_day(flights: pd.DataFrame, until: int) -> pd.DataFrame:
    """The city's minutes of delay by local day, with the ``limit`` (NaN: no model). The index is the day's midnight."""
    days = _moments(flights["scheduled"]).dt.tz_convert(_ZONE).dt.normalize()
    late = flights["delay"].clip(lower=0).groupby(days).sum()
    last = _moment(until - 1).tz_convert(_ZONE).normalize()
    delay = late.reindex(pd.date_range(late.index[0], last, freq="D"), fill_value=0).to_frame("delay")
    worst = delay["delay"].rolling(42, min_periods=28).max()
    delay["limit"] = (worst * 9 // 8).shift(2)
    return delay


def _dips(traffic: pd.DataFrame) -> list[Anomaly]:
    found = []
    for airport, hours in traffic[traffic["expected"] >= 4].reset_index().groupby("origin"):
        low = hours["departures"] * 3 < hours["expected"]
        row = (~low).cumsum()
        hours = hours.assign(row=row, low=low.groupby(row).cumsum(), day=hours["start"].dt.date)
        reported = hours[hours["low"] >= 4].groupby(["row", "day"]).first()
        for hour in reported.itertuples():
            start, end = _micros(hour.start), _micros(hour.start + _HOUR)
            found.append(Anomaly(start, end, "dip", str(airport), int(hour.expected), hour.departures, int(hour.low)))
    return found


def _spikes(flights: pd.DataFrame, until: int) -> list[Anomaly]:
    found = []
    for city, of_city in flights.groupby("city"):
        delay = delay_by_day(of_city, until)
        for day in delay[delay["delay"] > delay["limit"]].itertuples():
            end = (day.Index + pd.DateOffset(days=1)).normalize()
            found.append(Anomaly(_micros(day.Index), _micros(end), "spike", str(city), int(day.limit)))
    return found


def _moments(timestamps: pd.Series) -> pd.Series:
    return pd.to_datetime(timestamps, unit="us", utc=True)


def _moment(timestamp: int) -> pd.Timestamp:
    return pd.Timestamp(timestamp, unit="us", tz="UTC")


def _micros(moment: pd.Timestamp) -> int:
    return int((moment - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(microseconds=1))
