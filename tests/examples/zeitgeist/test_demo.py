"""The parts of the demonstration: its checks and its output. ``make demo`` runs all of it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from datetime import datetime
from pathlib import Path

import msgspec
import pandas as pd
import pytest

import millwheel as mw
from examples.demo.__main__ import missing
from examples.demo.files import write_files
from examples.demo.first_pass import FirstPass, read_back_problems
from examples.demo.picture import alert_line, render_page
from examples.demo.second_pass import check, second_pass
from examples.demo.server import DemoServer
from examples.demo.showing import Show, percentiles
from examples.demo.watching import Found
from examples.zeitgeist.clock import NEW_YORK
from examples.zeitgeist.records import Anomaly, TrafficModel
from examples.zeitgeist.reference import anomalies
from examples.zeitgeist.topology import END, WINTER_END
from tests.examples.zeitgeist.running import Run


def test_what_happened_has_to_be_found(flights: pd.DataFrame) -> None:
    found = anomalies(flights, END)
    assert missing(found) == []
    assert missing([one for one in found if not alert_line(one).startswith("2013-07-01")]) == [
        "the delays of 1 July was not found"
    ]
    assert missing([one for one in found if one.kind == "spike"]) == ["the blizzard was not found"]
    assert len(missing([])) == 3


def test_what_spark_reads_back_has_to_be_what_came() -> None:
    alerts = [Anomaly(2, 3, "dip", "EWR", 21, 0, 4), Anomaly(1, 2, "spike", "NYC", 49_024)]
    done = FirstPass(found=Found(anomalies=alerts, traffic_models=[TrafficModel("EWR", "Mon 06", 5, 21)]))
    rows = [list(msgspec.structs.astuple(one)) for one in alerts]
    done.read_back = {"alerts": rows[::-1], "learned": 1}
    assert read_back_problems(done) == []
    done.read_back = {"alerts": rows[1:], "learned": 2}
    assert read_back_problems(done) == [
        "Spark has read 1 alerts, which are not those of the subscription",
        "Spark has read 2 models instead of 1",
    ]


def test_an_alert_is_a_line_that_begins_with_its_local_date() -> None:
    start = mw.from_datetime(datetime(2013, 2, 8, 23, tzinfo=NEW_YORK))
    dip = Anomaly(start, start + 3_600_000_000, "dip", "EWR", 21, 0, 4)
    assert alert_line(dip) == ("2013-02-08  dip    EWR  23:00-00:00: 0 departures where 21 are usual, low for 4 hours")
    spike = Anomaly(start, start, "spike", "NYC", 49_024)
    assert alert_line(spike) == "2013-02-08  spike  NYC  more than 49,024 minutes of delay that day"


def test_files_in_order_of_their_times_hold_flights_in_theirs(flights: pd.DataFrame, tmp_path: Path) -> None:
    january = flights.head(20_000)
    count = write_files(january, tmp_path / "files")
    files = sorted((tmp_path / "files").iterdir(), key=lambda path: path.stat().st_mtime)
    assert len(files) == count == 4
    again = pd.concat([pd.read_parquet(path) for path in files], ignore_index=True)
    assert again.astype(object).equals(january.astype(object))


def test_the_picture_shows_every_alert_and_needs_nothing_else(winter: pd.DataFrame) -> None:
    run = Run(winter)
    run.feed(batch=3_000)
    alerts = run.finish()
    values = run.harness.values
    page = render_page(
        Found(alerts, values("windows"), values("traffic-models"), values("delay-models")),
        [("1 < 2", "a figure", "a remark")],
    )
    for alert in alerts:
        assert f"<td>{alert_line(alert)[:10]}</td>" in page
    assert "1 &lt; 2" in page
    assert not re.search(r"https?://|src=|@import|<script", page)
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(charts) == 5
    drawn = [ET.fromstring(chart) for chart in charts]
    assert len(drawn[0].findall("circle[@class='dip']")) == 2, "two days with dips"
    assert len(drawn[1].findall("rect[@class='spike']")) == 3, "three days with spikes"
    assert all(len(chart.findall("rect[@class='alarm']")) == 2 for chart in drawn[2:])


def test_without_a_terminal_progress_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Show("departures", 328_521) as show:
        show.update(1_000, mw.from_datetime(datetime(2013, 2, 8, 12, tzinfo=NEW_YORK)), 3)
        show.update(2_000, mw.MIN_TIMESTAMP, 3)
    out = capsys.readouterr().out
    assert out.endswith("departures: 1,000 of 328,521; low watermark 2013-02-08 12:00, 3 alerts\n")
    assert out.count("\n") == 1, "one line in five seconds"


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentiles([5.0]) == (5.0, 5.0, 5.0)
    assert percentiles([float(value) for value in range(100, 0, -1)]) == (51.0, 96.0, 100.0)


@pytest.mark.guarantee("G14", section="4.5")
async def test_late_and_duplicate_departures_are_counted_and_harmless(flights: pd.DataFrame, tmp_path: Path) -> None:
    with DemoServer(tmp_path / "server.log") as server:
        server.submit("examples.zeitgeist.topology:winter")
        outcome = await second_pass(server, flights)
        assert outcome.problems == []
        assert outcome.late > 300
        assert outcome.duplicates > 600
        # The check itself can fail.
        outcome.late += 1
        winter = flights[flights["scheduled"] < WINTER_END]
        check(outcome, server, anomalies(winter, WINTER_END)[1:], winter[winter["flight"] % 97 != 0])
    assert len(outcome.problems) == 3
    assert outcome.problems[0] == "window-counter counted 316 late records instead of 317"
