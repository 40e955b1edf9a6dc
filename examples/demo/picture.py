"""The picture of the year: traffic, model and alerts over time, as one self-contained HTML page."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from html import escape
from typing import Final

from examples.demo.page import PAGE, STYLE
from examples.demo.svg import Plot
from examples.demo.watching import Found
from examples.zeitgeist.clock import NEW_YORK, day_of, local_time
from examples.zeitgeist.records import Anomaly
from millwheel import from_datetime

__all__ = ["alert_line", "render_page"]

WIDTH: Final = 1160
HOUR: Final = 3_600_000_000
AIRPORTS: Final = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}


@dataclass
class _Year:
    """The data of the charts, by day (ordinals) or by airport and hour."""

    departures: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    expected: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    delay: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    limit: dict[int, int] = field(default_factory=dict)
    hours: dict[tuple[str, int], tuple[int, int | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Found) -> _Year:
        """Join the windows with the models by which they were judged."""
        year = cls()
        models: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for model in found.traffic_models:
            models[model.airport, model.slot].append((model.until, model.expected))
        for known in models.values():
            known.sort()
        judged: set[int] = set()
        for window in found.windows:
            day = local_time(window.start).toordinal()
            known = models.get((window.airport, window.slot), [])
            at = bisect.bisect_right(known, (window.start, 1 << 62))
            expected = known[at - 1][1] if at else None
            year.hours[window.airport, window.start] = window.departures, expected
            year.departures[day] += window.departures
            year.delay[day] += window.delay
            if expected is not None:
                year.expected[day] += expected
                judged.add(day)
        # The first models came in the course of these days, so their expected values do not cover the whole day.
        for day in [day for day in year.expected if judged and day <= min(judged) + 1]:
            del year.expected[day]
        year.limit = {local_time(model.day).toordinal(): model.limit for model in found.delay_models}
        return year


def alert_line(alert: Anomaly) -> str:
    """One line of text that begins with the ISO date, in New York time."""
    start, end = local_time(alert.start), local_time(alert.end)
    if alert.kind == "spike":
        return f"{start:%F}  spike  {alert.subject}  more than {alert.expected:,} minutes of delay that day"
    return (
        f"{start:%F}  dip    {alert.subject}  {start:%H:%M}-{end:%H:%M}: {alert.observed} departures "
        f"where {alert.expected} are usual, low for {alert.hours} hours"
    )


def render_page(found: Found, figures: Sequence[tuple[str, str, str]]) -> str:
    """Return the page. ``figures`` are shown at the top, each as (value, description, remark)."""
    year, alerts = _Year.of(found), sorted(found.anomalies)
    cards = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(what)}</span><small>{escape(remark)}</small></div>'
        for value, what, remark in figures
    )
    rows = "".join(
        f'<tr class="{alert.kind}"><td>{alert_line(alert)[:10]}</td><td><i>{alert.kind}</i></td>'
        f"<td>{escape(alert.subject)}</td><td>{escape(alert_line(alert)[24:].strip())}</td></tr>"
        for alert in alerts
    )
    return PAGE.format(
        style=STYLE,
        cards=cards,
        traffic=_traffic(year, alerts),
        delays=_delays(year, alerts),
        blizzard="".join(_blizzard(year, alerts, airport) for airport in AIRPORTS),
        rows=rows,
    )


def _traffic(year: _Year, alerts: Iterable[Anomaly]) -> str:
    days = sorted(year.departures)
    plot = Plot(WIDTH, 280, (days[0], days[-1] + 1), 1_100)
    plot.grid((0, 250, 500, 750, 1_000), _months(days))
    plot.area([(day + 0.5, year.departures[day]) for day in days], "actual")
    plot.line([(day + 0.5, year.expected[day]) for day in sorted(year.expected)], "model")
    dips: dict[int, set[str]] = defaultdict(set)
    for alert in alerts:
        if alert.kind == "dip":
            dips[local_time(alert.start).toordinal()].add(alert.subject)
    for place, names, row in _pins(dips):
        plot.pin(place + 0.5, year.departures[place], f"{_short(place)} {names}", "dip", row=row)
    return plot.render()


def _delays(year: _Year, alerts: Iterable[Anomaly]) -> str:
    days = sorted(year.delay)
    plot = Plot(WIDTH, 280, (days[0], days[-1] + 1), 76_000)
    plot.grid((0, 20_000, 40_000, 60_000), _months(days))
    spikes = {local_time(alert.start).toordinal(): alert for alert in alerts if alert.kind == "spike"}
    for day in days:
        title = f"{date.fromordinal(day)}: {year.delay[day]:,} minutes"
        plot.bar(day, day + 1, year.delay[day], "spike" if day in spikes else "delay", title)
    plot.steps([(day, limit) for day, limit in sorted(year.limit.items()) if day <= days[-1]], 1, "model")
    for place, names, row in _pins({day: {""} for day in spikes}):
        plot.pin(place + 0.5, year.delay[place], f"{_short(place)}{names}", "spike", row=row)
    return plot.render()


def _blizzard(year: _Year, alerts: Iterable[Anomaly], airport: str) -> str:
    start = from_datetime(datetime(2013, 2, 7, tzinfo=NEW_YORK))
    hours = [start + number * HOUR for number in range(96)]
    plot = Plot(WIDTH, 150, (start, start + 96 * HOUR), 34)
    midnights = [start + number * 24 * HOUR for number in range(4)]
    plot.grid((0, 10, 20, 30), [(at, f"{local_time(at):%a %-d %b}") for at in midnights])
    for alert in alerts:
        if alert.kind == "dip" and alert.subject == airport and hours[0] <= alert.start <= hours[-1]:
            # An alert is valid for the rest of its local day. The next day can have another alert.
            plot.band(alert.start, day_of(alert.start).end, "alarm", alert_line(alert))
    for at in hours:
        departures, expected = year.hours.get((airport, at), (0, None))
        usual = "" if expected is None else f", {expected} are usual"
        title = f"{local_time(at):%a %H:%M}: {departures} departures{usual}"
        plot.bar(at, at + HOUR, departures, "actual", title)
    models = [(at, year.hours.get((airport, at), (0, None))[1]) for at in hours]
    plot.steps([(at, expected) for at, expected in models if expected is not None], HOUR, "model")
    plot.note(f"{airport}, {AIRPORTS[airport]}")
    return plot.render()


def _pins(marked: dict[int, set[str]]) -> Iterable[tuple[int, str, int]]:
    """Days with their names and the row of their labels. Labels of neighbouring days are in different rows."""
    last, row = -1_000, 0
    for day in sorted(marked):
        row = row + 1 if day - last < 30 else 0
        last = day
        yield day, " ".join(sorted(marked[day])), row


def _months(days: Sequence[int]) -> list[tuple[float, str]]:
    firsts = [day for day in days if date.fromordinal(day).day == 1]
    return [(day, f"{date.fromordinal(day):%b}") for day in firsts]


def _short(day: int) -> str:
    return f"{date.fromordinal(day):%-d %b}"
