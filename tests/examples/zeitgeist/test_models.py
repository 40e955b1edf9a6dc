"""The model calculators by themselves: which records they learn from, and when (sections 2 and 4.6)."""

from __future__ import annotations

from datetime import datetime, timedelta

import pandas as pd
import pytest

import millwheel as mw
from examples.zeitgeist.clock import NEW_YORK, hour_of, slot_of
from examples.zeitgeist.flights import load_flights
from examples.zeitgeist.models import DelayModelCalculator, TrafficModelCalculator
from examples.zeitgeist.records import DelayModel, Departure, TrafficModel, WindowCount
from examples.zeitgeist.window_counter import WindowCounter
from millwheel.testing.harness import TopologyHarness
from tests.examples.zeitgeist.running import departures


def delay_models() -> TopologyHarness:
    topology = mw.Topology("delays")
    topology.source("windows", WindowCount)
    topology.add(
        DelayModelCalculator,
        inputs={"windows": mw.key("city")},
        outputs={"delay-models": DelayModel},
        late=mw.Late.DROP,
    )
    return TopologyHarness(topology)


def count(airport: str, moment: datetime, departures: int = 0, delay: int = 0) -> tuple[WindowCount, mw.Timestamp]:
    window = hour_of(mw.from_datetime(moment))
    value = WindowCount(airport, "NYC", slot_of(window), window.start, window.end, departures, delay)
    return value, mw.Timestamp(window.end)


@pytest.mark.paper(section="4.5")
def test_a_day_is_learned_when_every_airports_last_hour_is_in() -> None:
    harness = delay_models()
    first = datetime(2013, 3, 1, 23, tzinfo=NEW_YORK)
    for day in range(28):
        late = first + timedelta(days=day)
        newark, end = count("EWR", late, delay=100 + day)
        harness.send("windows", newark, end)
        # At the day's end itself the other airport's hour may still come.
        harness.advance(end)
        kennedy, _ = count("JFK", late, delay=1_000)
        harness.send("windows", kennedy, end)
        harness.advance(mw.Timestamp(end + 1))
    (model,) = harness.values("delay-models")
    day_after_next = mw.from_datetime(datetime(2013, 3, 30, tzinfo=NEW_YORK))
    assert model == DelayModel("NYC", day_after_next, 1_127 * 9 // 8)
    assert harness.counts("delay-model-calculator")["late"] == 0


@pytest.mark.paper(section="2")
def test_the_traffic_of_a_slot_is_the_lower_median_of_six_weeks() -> None:
    topology = mw.Topology("traffic")
    topology.source("windows", WindowCount)
    topology.add(
        TrafficModelCalculator, inputs={"windows": mw.key("airport", "slot")}, outputs={"traffic-models": TrafficModel}
    )
    harness = TopologyHarness(topology)
    first = datetime(2013, 2, 15, 17, tzinfo=NEW_YORK)
    weeks = [count("LGA", first + timedelta(weeks=week), seen) for week, seen in enumerate([5, 40, 30, 1, 20, 10, 7])]
    harness.send_all("windows", reversed(weeks))
    harness.finish()
    learned = [(model.until, model.expected) for model in harness.values("traffic-models")]
    # Sorted: 1 5 30 40; 1 5 20 30 40; 1 5 10 20 30 40; and without the 5, 1 7 10 20 30 40.
    assert learned == [(weeks[week][1], expected) for week, expected in [(3, 5), (4, 20), (5, 10), (6, 10)]]
    assert {model.slot for model in harness.values("traffic-models")} == {"Fri 17"}


@pytest.mark.paper(section="4.6")
@pytest.mark.parametrize("until", [mw.MAX_TIMESTAMP, mw.from_datetime(datetime(2013, 1, 3, tzinfo=NEW_YORK))])
def test_hours_without_a_departure_are_counted_too_and_end(flights: pd.DataFrame, until: mw.Timestamp) -> None:
    new_year = flights[flights["known"] < mw.from_datetime(datetime(2013, 1, 2, tzinfo=NEW_YORK))]
    records = departures(new_year)
    topology = mw.Topology("counting")
    topology.source("departures", Departure)
    topology.add(WindowCounter(until), inputs={"departures": mw.key("origin")}, outputs={"windows": WindowCount})
    harness = TopologyHarness(topology)
    harness.send_all("departures", records)
    harness.finish()
    windows = sorted((window.airport, window.start, window.end) for window in harness.values("windows"))
    last = int(new_year["scheduled"].max())
    for airport in ("EWR", "JFK", "LGA"):
        hours = [(start, end) for name, start, end in windows if name == airport]
        assert [end for _, end in hours[:-1]] == [start for start, _ in hours[1:]], "one after the other"
        assert hours[-1][1] == until if until < mw.MAX_TIMESTAMP else hours[-1][0] <= last
    assert sum(window.departures for window in harness.values("windows")) == len(new_year)


def test_each_flight_has_its_own_id_and_its_true_time(table: pd.DataFrame, flights: pd.DataFrame) -> None:
    assert len(table) == 336_776
    assert len(table) - len(flights) == 8_255
    assert flights["id"].is_unique
    assert (flights["known"] - flights["scheduled"]).max() == 1_301 * 60_000_000
    assert flights["known"].is_monotonic_increasing
    in_utc = pd.to_datetime(table["time_hour"], utc=True) + pd.to_timedelta(table["minute"], unit="m")
    assert (in_utc == pd.to_datetime(table["scheduled"], unit="us", utc=True)).all()
    assert load_flights(table).equals(flights)
