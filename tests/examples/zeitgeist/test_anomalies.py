"""The stream finds the anomalies of the whole table, and no others, in any order of arrival (sections 2, 4.5, 4.6)."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import numpy as np
import pandas as pd
import pytest

from examples.zeitgeist.clock import local_time
from examples.zeitgeist.records import Anomaly
from examples.zeitgeist.reference import anomalies
from examples.zeitgeist.topology import END
from millwheel import Timestamp
from tests.examples.zeitgeist.running import DAY, Run, departures, end_of

KNOWN = {
    ("dip", "2013-02-08"),
    ("dip", "2013-02-09"),
    ("spike", "2013-03-08"),
    ("spike", "2013-07-01"),
}


def new_york(moment: str) -> Timestamp:
    return Timestamp(pd.Timestamp(moment, tz="America/New_York").value // 1_000)


def days(found: list[Anomaly]) -> set[tuple[str, str]]:
    return {(anomaly.kind, f"{local_time(anomaly.start):%F}") for anomaly in found}


def test_the_table_shows_the_blizzard_the_worst_days_little_else(flights: pd.DataFrame) -> None:
    found = anomalies(flights, END)
    assert days(found) >= KNOWN
    assert len(found) == 14
    blizzard = [anomaly for anomaly in found if anomaly.kind == "dip" and ("dip", "2013-02-08") in days([anomaly])]
    assert sorted(anomaly.subject for anomaly in blizzard) == ["EWR", "JFK", "LGA"]


@pytest.mark.guarantee("G1", section="2")
@pytest.mark.timeout(300)
def test_the_year_as_it_happened_finds_the_tables_anomalies(flights: pd.DataFrame) -> None:
    run = Run(flights, until=END)
    run.feed(batch=1_000)
    assert run.finish() == anomalies(flights, END)
    for name in ("window-counter", "spike-detector"):
        counts = run.harness.counts(name)
        assert counts["late"] == counts["duplicates"] == counts["dead_letters"] == 0
    assert run.harness.counts("window-counter")["records"] == len(flights) == 328_521


def as_known(flights: pd.DataFrame) -> pd.DataFrame:
    return flights


def as_scheduled(flights: pd.DataFrame) -> pd.DataFrame:
    return flights.sort_values(["scheduled", "id"])


def in_shuffled_weeks(flights: pd.DataFrame) -> pd.DataFrame:
    week = flights["known"] // (7 * DAY)
    return flights.assign(week=week, chance=np.random.default_rng(7).random(len(flights))).sort_values(
        ["week", "chance"]
    )


def backwards_in_blocks(flights: pd.DataFrame) -> pd.DataFrame:
    block = flights["known"] // (3 * DAY)
    return flights.assign(block=block).sort_values(["block", "known"], ascending=[True, False])


@pytest.mark.guarantee("G11", section="4.2")
@pytest.mark.parametrize("order", [as_known, as_scheduled, in_shuffled_weeks, backwards_in_blocks])
@pytest.mark.parametrize("cuts", [(), ("F", "JFK|Tue", "LGA", "N")])
def test_order_and_parallelism_change_no_anomaly(
    winter: pd.DataFrame, order: Callable[[pd.DataFrame], pd.DataFrame], cuts: tuple[str, ...]
) -> None:
    expected = anomalies(winter, end_of(winter))
    assert len(expected) == 9
    run = Run(order(winter), cuts=cuts)
    run.feed(batch=1_500)
    assert run.finish() == expected


@pytest.mark.guarantee("G12", section="6.2")
def test_crashes_change_no_anomaly(winter: pd.DataFrame) -> None:
    run = Run(winter, cuts=["K"])
    run.feed(batch=1_500, crash_every=3)
    assert run.finish() == anomalies(winter, end_of(winter))


@pytest.mark.guarantee("G6", section="4.6")
def test_a_watermark_only_at_the_end_changes_no_anomaly(winter: pd.DataFrame) -> None:
    blizzard = winter[winter["known"] < new_york("2013-02-10 12:00")]
    run = Run(blizzard)
    run.feed(batch=20_000, watermarks=False)
    assert run.harness.values("anomalies") == []
    found = run.finish()
    assert found == anomalies(blizzard, end_of(blizzard))
    assert ("dip", "2013-02-09") in days(found)


@pytest.mark.paper(section="4.6")
def test_a_spike_does_not_wait_for_the_watermark_and_a_dip_does(winter: pd.DataFrame) -> None:
    evening = new_york("2013-03-08 22:00")
    run = Run(winter[winter["known"] < evening])
    run.feed(batch=1_000)
    assert ("spike", "2013-03-08") in days(run.harness.values("anomalies"))
    assert run.harness.watermark("window-counter") < evening, "the day of the spike is still open"

    run = Run(winter[winter["known"] < new_york("2013-02-10 00:00")])
    night = new_york("2013-02-08 16:30")
    run.feed(batch=1_000)
    found = run.harness.produced("anomalies")
    assert ("dip", "2013-02-08") in days([one.value for one in found])
    # The dip's cause, no departures, is known at 20:00. But only the watermark shows that none comes late.
    held = Run(run.flights)
    held.harness.send_all("departures", departures(held.flights))
    held.harness.advance(night)
    assert not [one for one in held.harness.values("anomalies") if one.kind == "dip"]


@pytest.mark.guarantee("G14", section="4.5")
def test_late_departures_are_dropped_and_duplicates_are_known(winter: pd.DataFrame) -> None:
    """The stream finds the anomalies of the table without the late departures."""
    february = winter[winter["known"] < new_york("2013-02-12")]
    held_back = february[february["flight"] % 97 == 0]
    on_time = february.drop(held_back.index)
    ids = [blake2b(name.encode(), digest_size=16).digest() for name in on_time["id"]]
    again = slice(1_000, 1_777)
    run = Run(on_time)
    records = departures(on_time)
    run.harness.send_all("departures", records, record_ids=ids)
    run.harness.send_all("departures", records[again], record_ids=ids[again])
    run.harness.advance(run.until)
    run.harness.send_all("departures", departures(held_back))
    for name in ("window-counter", "spike-detector"):
        counts = run.harness.counts(name)
        assert counts["duplicates"] == 777
        assert counts["late"] == len(held_back) > 300
    found = run.finish()
    assert found == anomalies(on_time, run.until)
    assert ("dip", "2013-02-08") in days(found)
